//! Lanes: what a free block and a request must have in common.

use std::collections::BTreeMap;

use gpuheap_record::{PoolId, SegmentKind};

/// What must be the same for a free block to serve a request: pool, kind and stream. A block never changes its lane.
/// Lanes of one kind of one pool are ordered by stream, as PyTorch walks them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lane {
    /// The default pool, or a private one.
    pub pool: PoolId,
    /// Small or large.
    pub kind: SegmentKind,
    /// The stream's raw handle: PyTorch orders free blocks by it, as an unsigned number.
    pub stream: u64,
}

/// The lanes that a heap has seen, each with a number.
#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    /// Every lane with its number, in the order of lanes.
    order: BTreeMap<Lane, u32>,
    /// The lane that was looked up last: most programs use one or two.
    last: Option<(Lane, u32)>,
}

impl Lanes {
    /// The number of a lane, if it was seen.
    pub(super) fn find(&self, lane: Lane) -> Option<u32> {
        match self.last {
            Some((last, index)) if last == lane => Some(index),
            _ => self.order.get(&lane).copied(),
        }
    }

    /// The numbers of the lanes of one kind of one pool, in the order of streams.
    pub(super) fn of_pool(&self, pool: PoolId, kind: SegmentKind) -> impl Iterator<Item = u32> + '_ {
        let first = Lane { pool, kind, stream: 0 };
        let last = Lane { stream: u64::MAX, ..first };
        self.order.range(first..=last).map(|(_, &index)| index)
    }

    /// The number of a lane, which is new if it was not seen.
    pub(super) fn index(&mut self, lane: Lane) -> u32 {
        if let Some((last, index)) = self.last.filter(|&(last, _)| last == lane) {
            debug_assert_eq!(self.order.get(&last), Some(&index));
            return index;
        }
        let next = u32::try_from(self.order.len()).unwrap_or(u32::MAX);
        let index = *self.order.entry(lane).or_insert(next);
        self.last = Some((lane, index));
        index
    }
}
