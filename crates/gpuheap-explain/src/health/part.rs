//! Where a program began to do something else: levels before and after are not one series.

use crate::steps::FEWEST_BOUNDARIES;

use super::series::Point;

/// Points that are judged together.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) points: &'a [Point],
    /// Points before these, which are of what the program did before.
    pub(super) before: &'a [Point],
    /// The step from which on these are, if they began after the warm-up of the whole.
    pub(super) since: Option<u64>,
}

impl Part<'_> {
    /// How many steps these are.
    pub(super) fn steps(&self) -> u64 {
        match (self.points.first(), self.points.last()) {
            (Some(first), Some(last)) => {
                let every = self.points.get(1).map_or(1, |second| (second.step - first.step).max(1));
                (last.step - first.step).saturating_add(every)
            }
            _ => 0,
        }
    }

    /// Whether this only repeats what came before a fall: a list that is cleared each epoch fills again. It does not if
    /// the level has risen beyond what there was, or goes on to rise for much longer.
    pub(super) fn repeats(&self, level: u64) -> bool {
        let most = self.before.iter().map(|point| point.most_blocks).max();
        most.is_some_and(|most| level <= most) && self.points.len() <= 2 * self.before.len()
    }
}

/// The largest jump of the level is a change of what the program does if it is this many times the next largest.
const JUMP: u64 = 4;
/// So many changes are looked through, the latest of which counts.
const MOST_JUMPS: usize = 8;

/// A jump by this share of the level is noticed at once.
const NOTICED: f64 = 0.05;

/// The points since the program last began to do something else: a second model, an evaluation, another batch size. The
/// steps before such a jump say nothing of those after it, and the jump itself is no growth.
pub(super) fn after_jumps(points: &[Point]) -> Part<'_> {
    let warm_up = (points.len() / 5).max(2);
    let mut start = 0;
    for _ in 0..MOST_JUMPS {
        let Some(at) = jump(&points[start..]) else { break };
        start += at;
    }
    // What moves in the first steps is the warm-up of all.
    let since = (start > warm_up).then(|| points[start].step);
    Part { points: &points[start..], before: &points[..start], since }
}

fn jump(points: &[Point]) -> Option<usize> {
    let largest = |of: fn(&Point) -> u64| {
        let mut largest = (0_u64, 0_usize);
        let mut second = 0_u64;
        for (index, pair) in points.windows(2).enumerate() {
            let change = of(&pair[1]).abs_diff(of(&pair[0]));
            if change > largest.0 {
                second = largest.0;
                largest = (change, index + 1);
            } else {
                second = second.max(change);
            }
        }
        (largest.0 > JUMP.saturating_mul(second)).then_some(largest)
    };
    let level = points.last().map_or(0, |point| point.most_allocated);
    // So few steps after it tell nothing yet. That is said only of what matters.
    let enough = |at: usize| points.len() - at >= FEWEST_BOUNDARIES;
    let matters = |at: usize| {
        let change = points[at].allocated.abs_diff(points[at - 1].allocated);
        points.len() >= FEWEST_BOUNDARIES && change as f64 >= NOTICED * level as f64
    };
    let found = |(_, at): &(u64, usize)| enough(*at) || matters(*at);
    let found = largest(|point| point.blocks).filter(found).or_else(|| largest(|point| point.allocated).filter(found));
    found.map(|(_, at)| at)
}
