//! Time against memory: the plans for smaller and smaller budgets.

use super::FrontPoint;
use super::frame::Frame;
use crate::plan::Planner;

/// Points of the front, at most.
const POINTS: usize = 12;

impl Frame<'_> {
    /// Plans for budgets from what the model takes as it is down to the smallest.
    pub(super) fn front(&self, planner: &Planner<'_>, most: u64, least: Option<u64>) -> Vec<FrontPoint> {
        let Some(least) = least else { return Vec::new() };
        let mut front: Vec<FrontPoint> = Vec::new();
        let span = most.saturating_sub(least);
        for point in 0..POINTS as u64 {
            let budget = most - span * point / (POINTS as u64 - 1);
            let Some(found) = self.cap_of(budget).and_then(|cap| planner.fastest(cap)) else { continue };
            let needs = self.high(planner.needs(&found).saturating_add(self.outside), found.exchanges);
            let step_us = found.time.total_us;
            // A point that is no faster than one with less memory is on no front.
            while front.last().is_some_and(|last| last.step_us >= step_us && last.budget_bytes >= needs) {
                front.pop();
            }
            if front.last().is_none_or(|last| needs < last.budget_bytes) {
                front.push(FrontPoint { budget_bytes: needs, step_us, plan: found.levers });
            }
        }
        front
    }
}
