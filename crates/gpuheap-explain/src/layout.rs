//! Where free memory lies at one moment.

use crate::lifetimes::{LaneId, Tick};
use crate::replay::Replay;

/// A free range inside one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeRange {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) lane: LaneId,
}

/// Every free range at `tick`, by ascending address. Ranges of neighbouring parts of one expandable segment are one.
pub(crate) fn free_ranges(replay: &Replay, tick: Tick) -> Vec<FreeRange> {
    let mut segments: Vec<_> = replay.segments.iter().filter(|segment| segment.is_live_at(tick)).copied().collect();
    segments.sort_unstable_by_key(|segment| segment.address);
    let mut blocks: Vec<(u64, u64)> = replay
        .allocations
        .rows()
        .iter()
        .filter(|row| row.placed && row.is_active_at(tick))
        .map(|row| (row.address, row.size))
        .collect();
    blocks.sort_unstable();
    let mut blocks = blocks.into_iter().peekable();
    let mut free: Vec<FreeRange> = Vec::new();
    let mut joinable = false;
    for segment in segments {
        let end = segment.address.saturating_add(segment.size);
        let mut at = segment.address;
        let mut add = |from: u64, to: u64, join: bool| {
            if from >= to {
                return;
            }
            match free.last_mut() {
                Some(last) if join && last.lane == segment.lane && last.address + last.size == from => {
                    last.size += to - from;
                }
                _ => free.push(FreeRange { address: from, size: to - from, lane: segment.lane }),
            }
        };
        while let Some(&(address, size)) = blocks.peek() {
            if address >= end {
                break;
            }
            add(at, address.min(end), joinable && segment.expandable && at == segment.address);
            at = at.max(address.saturating_add(size));
            if at > end {
                // The block reaches into the next part of the range.
                break;
            }
            blocks.next();
        }
        add(at, end, joinable && segment.expandable && at == segment.address);
        joinable = segment.expandable;
    }
    free
}
