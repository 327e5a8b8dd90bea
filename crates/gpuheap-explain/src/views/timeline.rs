//! Memory by class through time.

use serde::Serialize;

use crate::analysis::Analysis;
use crate::lifetimes::AllocationId;
use crate::report::Class;
use crate::views::deltas;

/// Memory through time: exact values at some ticks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Timeline {
    /// The ticks, ascending.
    pub ticks_delta: Vec<i64>,
    /// Microseconds since the first event; empty where the recording has no times.
    pub time_delta: Vec<i64>,
    /// Reserved bytes.
    pub reserved_delta: Vec<i64>,
    /// For each of [`Class::ALL`] a column of bytes: what was asked for, and the rounding. Together they are the allocated
    /// bytes.
    pub classes_delta: Vec<Vec<i64>>,
}

impl Analysis {
    /// Memory through time from one tick to another, at no more than about `points` ticks. They are chosen so that
    /// the most and the least of allocated memory and the most of reserved memory in each part are among them.
    #[must_use]
    pub fn timeline(&self, from: u32, to: u32, points: usize) -> Timeline {
        let to = to.min(self.last_tick());
        at_ticks(self, &extremes(self, from.min(to), to, points / 3))
    }
}

/// The timeline of a whole page: a few thousand ticks over all, and finer ones where the reader looks.
pub(crate) fn overview(analysis: &Analysis) -> Timeline {
    const PARTS: usize = 1000;
    const NEAR_PARTS: usize = 100;
    let last = analysis.last_tick();
    let mut ticks = extremes(analysis, 0, last, PARTS);
    let near = last / 500 + 32;
    for (_, tick) in analysis.moments() {
        ticks.push(tick);
        ticks.extend(extremes(analysis, tick.saturating_sub(near), tick.saturating_add(near).min(last), NEAR_PARTS));
    }
    for finding in analysis.report.findings.iter().take(20) {
        let Some(tick) = finding.event.and_then(|event| u32::try_from(event).ok()) else { continue };
        ticks.push(tick.saturating_add(1).min(last));
    }
    let steps = analysis.step_ticks();
    if let [.., from, _, to] = steps.as_slice() {
        ticks.extend(extremes(analysis, *from, *to, 2 * NEAR_PARTS));
    }
    if steps.len() <= PARTS {
        ticks.extend(steps);
    }
    ticks.sort_unstable();
    ticks.dedup();
    at_ticks(analysis, &ticks)
}

/// For each of `parts` equal parts of a range the ticks of its extremes, ascending.
fn extremes(analysis: &Analysis, from: u32, to: u32, parts: usize) -> Vec<u32> {
    let replay = &analysis.basis.replay;
    let parts = u64::try_from(parts.max(1)).unwrap_or(1);
    let span = u64::from(to - from);
    if span < 3 * parts {
        return (from..=to).collect();
    }
    let mut ticks = vec![from, to];
    for part in 0..parts {
        let at = |part: u64| from + u32::try_from(part * span / parts).unwrap_or(0);
        let range = at(part)..=at(part + 1).max(at(part));
        let allocated = |tick: &u32| replay.allocated[*tick as usize];
        // Of equal values the first: that is when it happened.
        ticks.extend(range.clone().min_by_key(allocated));
        ticks.extend(range.clone().min_by_key(|tick| std::cmp::Reverse(allocated(tick))));
        ticks.extend(range.min_by_key(|tick| std::cmp::Reverse(replay.reserved[*tick as usize])));
    }
    ticks.sort_unstable();
    ticks.dedup();
    ticks
}

/// The exact values at these ticks, which ascend.
pub(crate) fn at_ticks(analysis: &Analysis, ticks: &[u32]) -> Timeline {
    let replay = &analysis.basis.replay;
    let (Some(&first), Some(&last)) = (ticks.first(), ticks.last()) else { return Timeline::default() };
    // For each tick the first of `ticks` that is not before it.
    let mut after = Vec::with_capacity((last - first) as usize + 1);
    for (index, &tick) in ticks.iter().enumerate() {
        after.resize((tick - first) as usize + 1, index);
    }
    let point_of =
        |tick: u32| if tick <= first { 0 } else { after.get((tick - first) as usize).copied().unwrap_or(ticks.len()) };
    let mut changes = vec![vec![0_i64; ticks.len() + 1]; Class::ALL.len()];
    let rows = replay.allocations.rows();
    let count = rows.partition_point(|row| row.born.0 <= last);
    for (index, row) in rows[..count].iter().enumerate().filter(|(_, row)| row.freed.0 > first) {
        let (from, to) = (point_of(row.born.0), point_of(row.freed.0));
        if from == to {
            continue;
        }
        let requested = row.requested.min(row.size);
        let class = analysis.basis.classes.class(AllocationId::from_index(index));
        for (class, bytes) in [(class, requested), (Class::Rounding, row.size - requested)] {
            let column = &mut changes[class as usize];
            column[from] = column[from].saturating_add_unsigned(bytes);
            column[to] = column[to].saturating_sub_unsigned(bytes);
        }
    }
    for column in &mut changes {
        column.pop();
    }
    let start_us = analysis.time_us(0);
    Timeline {
        ticks_delta: deltas(ticks.iter().map(|&tick| u64::from(tick))),
        time_delta: if start_us == 0 {
            Vec::new()
        } else {
            // A clock that was set back must not turn the axis around.
            let mut latest = start_us;
            deltas(ticks.iter().map(|&tick| {
                latest = latest.max(analysis.time_us(tick));
                latest - start_us
            }))
        },
        reserved_delta: deltas(ticks.iter().map(|&tick| replay.reserved[tick as usize])),
        classes_delta: changes,
    }
}
