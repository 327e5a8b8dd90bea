//! Reserved memory that the allocator could not use for what was asked.

use gpuheap_record::{Bytes, PoolId};

use crate::layout::free_ranges;
use crate::ledger::lane_sums;
use crate::lifetimes::Tick;
use crate::replay::Replay;

/// From this share of the most reserved memory on, waste is a finding.
pub(crate) const SHARE: f64 = 0.2;
/// Less than ten of the allocator's 20 MiB segments is its granularity, not a fault.
pub(crate) const FEWEST_BYTES: Bytes = Bytes::new(10 * (20 << 20));

/// How much more was reserved than was ever needed at once.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Fragmentation {
    /// The most reserved memory.
    pub(crate) reserved: Bytes,
    /// The most that was in use at once.
    pub(crate) active: Bytes,
    /// What lies between the two, without what idle streams, other streams and private pools have free.
    pub(crate) waste: Bytes,
    /// Free ranges at the moment of most reserved memory.
    pub(crate) free_ranges: usize,
    /// The largest of them.
    pub(crate) largest_free: Bytes,
    /// All of them.
    pub(crate) free: Bytes,
    /// The allocation that took the most memory from the driver although enough lay free in pieces: its tick.
    pub(crate) worst: Option<Tick>,
    /// Segments that were made while at least as much was free as was asked for.
    pub(crate) needless_segments: usize,
    /// Bytes of them.
    pub(crate) needless_bytes: Bytes,
}

/// Free bytes that the main stream's requests cannot use whatever their size: those of private pools and of other
/// streams.
fn out_of_reach(replay: &Replay, tick: Tick) -> Bytes {
    let sums = lane_sums(replay, tick);
    let main = replay.lanes.iter().max_by_key(|(id, _)| sums[id.index()].reserved).map(|(_, lane)| lane.stream);
    let others = replay.lanes.iter().filter(|(_, lane)| lane.pool != PoolId::default() || Some(lane.stream) != main);
    others.map(|(id, _)| Bytes::new(sums[id.index()].free())).sum()
}

/// Compares the most reserved with the most used memory; `None` if the waste is not worth a word. `stranded` are the
/// bytes that idle streams hold, which are not for want of a fitting piece.
pub(crate) fn find(replay: &Replay, stranded: Bytes) -> Option<Fragmentation> {
    let reserved = replay.peaks.reserved_bytes;
    let active = replay.peaks.active_bytes;
    let waste = reserved - active - stranded.max(out_of_reach(replay, replay.peak_reserved));
    if waste.share_of(reserved) < SHARE || waste < FEWEST_BYTES {
        return None;
    }
    let ranges = free_ranges(replay, replay.peak_reserved);
    let free = ranges.iter().map(|range| Bytes::new(range.size)).sum();
    let largest_free = ranges.iter().map(|range| Bytes::new(range.size)).max().unwrap_or_default();
    let (worst, needless_segments, needless_bytes) = needless(replay);
    Some(Fragmentation {
        reserved,
        active,
        waste,
        free_ranges: ranges.len(),
        largest_free,
        free,
        worst,
        needless_segments,
        needless_bytes,
    })
}

/// Segments that were made although their size was free already, only not in one piece.
fn needless(replay: &Replay) -> (Option<Tick>, usize, Bytes) {
    let mut worst: Option<(u64, Tick)> = None;
    let (mut count, mut bytes) = (0, Bytes::ZERO);
    for segment in replay.segments.iter().filter(|segment| segment.born > Tick::START) {
        let before = segment.born.index() - 1;
        let free = replay.reserved[before].saturating_sub(replay.allocated[before]);
        if free >= segment.size {
            count += 1;
            bytes += Bytes::new(segment.size);
            if worst.is_none_or(|(size, _)| segment.size > size) {
                worst = Some((segment.size, segment.born));
            }
        }
    }
    (worst.map(|(_, tick)| tick), count, bytes)
}

/// The most that waited for another stream at once, and when.
pub(crate) fn most_pending(replay: &Replay) -> (Bytes, Tick) {
    let mut changes: Vec<(Tick, i128)> = Vec::new();
    for row in replay.allocations.rows() {
        // A free without other streams completes with the next event.
        if row.freed != Tick::NEVER && row.completed.0.saturating_sub(row.freed.0) > 1 {
            changes.push((row.freed, i128::from(row.size)));
            if row.completed != Tick::NEVER {
                changes.push((row.completed, -i128::from(row.size)));
            }
        }
    }
    changes.sort_unstable();
    let (mut now, mut most, mut when) = (0_i128, 0_i128, Tick::START);
    for (tick, change) in changes {
        now += change;
        if now > most {
            (most, when) = (now, tick);
        }
    }
    (Bytes::new(u64::try_from(most).unwrap_or(u64::MAX)), when)
}

/// Free bytes of all lanes at a tick.
pub(crate) fn cached(replay: &Replay, tick: Tick) -> Bytes {
    lane_sums(replay, tick).iter().map(|sum| Bytes::new(sum.free())).sum()
}
