//! The counters over the recording, thinned for drawing.

use gpuheap_record::Bytes;

use crate::replay::Replay;
use crate::report::TimelinePoint;

/// How many points are kept.
const MOST_POINTS: usize = 240;

/// At most a few hundred points of equal numbers of events; each has the most of its share, so no peak is lost.
pub(crate) fn timeline(replay: &Replay, times_us: &[u64]) -> Vec<TimelinePoint> {
    let ticks = replay.allocated.len();
    let points = MOST_POINTS.min(ticks.saturating_sub(1));
    let most = |column: &[u64]| column.iter().copied().max().unwrap_or(0);
    (0..points)
        .map(|point| {
            // Tick 0 is before the first event and belongs to the first point.
            let from = point * (ticks - 1) / points;
            let to = ((point + 1) * (ticks - 1) / points).max(from + 1);
            let column = |values: &[u64]| Bytes::new(most(&values[from..=to]));
            let event = to - 1;
            TimelinePoint {
                event: event as u64,
                time_us: times_us.get(event).copied().unwrap_or(0),
                allocated_bytes: column(&replay.allocated),
                reserved_bytes: column(&replay.reserved),
            }
        })
        .collect()
}
