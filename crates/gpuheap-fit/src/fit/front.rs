//! Time against memory: the plans for smaller and smaller budgets.

use super::frame::Frame;
use super::{Fit, FrontPoint, Verdict};
use crate::plan::{Found, Planner};

/// Plans that are asked for, at most.
const MOST: usize = 96;

impl Frame<'_> {
    /// The fastest plan of all, then each time the fastest that takes less than the one before, down to the smallest. So
    /// no budget has a plan that is faster than the front there, as long as there are no more than [`MOST`]: then the
    /// steps are larger. The plan of the answer is on it with the figures of the answer.
    pub(super) fn front(&self, planner: &Planner<'_>, answer: &Fit) -> Vec<FrontPoint> {
        let Some(smallest) = planner.smallest() else { return Vec::new() };
        let needs = |found: &Found| self.budget_of(planner.needs(found));
        let least = needs(&smallest);
        let mut points: Vec<FrontPoint> = Vec::new();
        let mut budget = super::ENDLESS;
        for asked in 0..MOST {
            let Some(found) = self.cap_within(budget).and_then(|cap| planner.fastest(cap)) else { break };
            let taken = needs(&found);
            points.push(point(taken, &found));
            // What is left of the way is divided by what is left of the steps, once a byte less each time is too slow.
            let span = taken.saturating_sub(least);
            let stride = if asked < MOST / 2 { 1 } else { (span / (MOST - asked) as u64).max(1) };
            let Some(next) = taken.min(budget).checked_sub(stride).filter(|&next| next >= least) else { break };
            budget = next;
        }
        points.push(point(least, &smallest));
        if answer.verdict == Verdict::Fits {
            let plan = answer.plan.iter().map(|planned| planned.lever.clone()).collect();
            points.retain(|point| point.plan != plan);
            points.push(FrontPoint { budget_bytes: answer.peak.high, step_us: answer.step_us, plan });
        }
        undominated(points)
    }
}

fn point(budget_bytes: u64, found: &Found) -> FrontPoint {
    FrontPoint { budget_bytes, step_us: found.time.total_us, plan: found.levers.clone() }
}

/// The points that no other is better than in both, from the most memory to the least.
fn undominated(mut points: Vec<FrontPoint>) -> Vec<FrontPoint> {
    points.sort_by(|one, other| one.budget_bytes.cmp(&other.budget_bytes).then(one.step_us.total_cmp(&other.step_us)));
    let mut front: Vec<FrontPoint> = Vec::new();
    for point in points {
        if front.last().is_none_or(|last| point.step_us < last.step_us) {
            front.push(point);
        }
    }
    front.reverse();
    front
}
