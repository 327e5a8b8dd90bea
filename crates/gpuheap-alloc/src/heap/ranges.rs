//! Address ranges for expandable segments, and where they grow.

use std::collections::BTreeMap;

use gpuheap_record::BlockState;

use super::{BlockId, Heap, Lane};

/// The address ranges that were reserved, by first address.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    by_start: BTreeMap<u64, Range>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    end: u64,
    lane: Lane,
}

/// The most free blocks or gaps that one request looks at. No program has as many; a damaged recording may.
const MOST_LOOKS: usize = 4096;

/// Where memory is mapped for a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Growth {
    /// First address of the block that results: that of a free block that grows, or of the first mapped piece.
    pub start: u64,
    /// The free block that grows, if there is one right before the unmapped memory.
    pub front: Option<BlockId>,
    /// What is mapped, in this order: first address and bytes, whole handles.
    pub pieces: Vec<(u64, u64)>,
}

impl Heap {
    /// Reserves addresses for a lane. A range of another lane that was assumed to reach into them ends before.
    pub fn reserve_range(&mut self, start: u64, size: u64, lane: Lane) {
        let end = start.saturating_add(size);
        let next = self.ranges.by_start.range(start..).next().map_or(end, |(&next, _)| next.min(end));
        if let Some((_, before)) = self.ranges.by_start.range_mut(..start).next_back() {
            before.end = before.end.min(start);
        }
        self.ranges.by_start.insert(start, Range { end: next, lane });
    }

    /// Whether any addresses were reserved for expandable segments.
    #[must_use]
    pub fn has_ranges(&self) -> bool {
        !self.ranges.by_start.is_empty()
    }

    /// First and last address (exclusive) of the range that holds `address`, and its lane.
    #[must_use]
    pub fn range_at(&self, address: u64) -> Option<(u64, u64, Lane)> {
        let (&start, range) = self.ranges.by_start.range(..=address).next_back()?;
        (address < range.end).then_some((start, range.end, range.lane))
    }

    /// Forgets the range at `address` if nothing of it is mapped.
    pub fn drop_empty_range(&mut self, address: u64) {
        let range = self.range_at(address);
        if let Some((start, ..)) = range.filter(|&(start, end, _)| self.segments.range(start..end).next().is_none()) {
            self.ranges.by_start.remove(&start);
        }
    }

    /// Bytes without memory right behind a block of an expandable segment.
    fn room_behind(&self, id: BlockId) -> u64 {
        let block = self.block(id);
        if !block.expandable || block.next.is_some() {
            return 0;
        }
        let behind = block.end();
        let Some((_, end, _)) = self.range_at(block.address) else { return 0 };
        let next = self.segments.range(behind..end.max(behind)).next().map_or(end, |(&next, _)| next);
        next.saturating_sub(behind)
    }

    /// The size that a free block can grow to without moving.
    fn potential(&self, id: BlockId) -> u64 {
        self.block(id).size.saturating_add(self.room_behind(id))
    }

    /// The best fit where segments can grow: among the free blocks that are large enough, in order of size, the first
    /// whose potential size is not larger than that of the next.
    #[must_use]
    pub fn best_fit_expandable(&self, lane: Lane, size: u64) -> Option<BlockId> {
        let free = &self.free[self.lanes.find(lane)? as usize];
        let mut candidates = free.all.range((size, 0)..).map(|(_, &id)| id);
        let mut best = candidates.next()?;
        if !self.block(best).expandable {
            return Some(best);
        }
        let mut potential = self.potential(best);
        for next in candidates.take(MOST_LOOKS) {
            let next_potential = self.potential(next);
            if next_potential >= potential {
                break;
            }
            (best, potential) = (next, next_potential);
            if !self.block(best).expandable {
                break;
            }
        }
        Some(best)
    }

    /// The best fit among native blocks, where segments are no longer made expandable: the first of them that is large
    /// enough.
    #[must_use]
    pub fn best_fit_native(&self, lane: Lane, size: u64) -> Option<BlockId> {
        let free = &self.free[self.lanes.find(lane)? as usize];
        free.all.range((size, 0)..).map(|(_, &id)| id).find(|&id| !self.block(id).expandable)
    }

    /// Where the ranges of a lane grow for a request of `size` bytes with handles of `handle` bytes: at the lowest
    /// address from which free and unmapped memory cover it without a break. `None` if no range has the room.
    #[must_use]
    pub fn growth(&self, lane: Lane, size: u64, handle: u64) -> Option<Growth> {
        for (&start, range) in self.ranges.by_start.iter().filter(|(_, range)| range.lane == lane) {
            let mut gap_start = start;
            for _ in 0..MOST_LOOKS {
                let next = self.segments.range(gap_start..range.end.max(gap_start)).next();
                let gap_end = next.map_or(range.end, |(&next, _)| next);
                if gap_end > gap_start {
                    let front = self.tails.get(&gap_start).copied();
                    let front = front.filter(|&id| gap_start > start && self.block(id).state == BlockState::Free);
                    if let Some(growth) = self.grow_from(front, gap_start, range.end, size, handle) {
                        return Some(growth);
                    }
                }
                let Some((&segment, entry)) = next else { break };
                gap_start = segment + entry.size;
            }
        }
        None
    }

    fn grow_from(&self, front: Option<BlockId>, gap_start: u64, end: u64, size: u64, handle: u64) -> Option<Growth> {
        let (start, mut covered) = front.map_or((gap_start, 0), |id| (self.block(id).address, self.block(id).size));
        let mut pieces = Vec::new();
        let mut at = gap_start;
        while covered < size {
            let next = self.segments.range(at..end.max(at)).next();
            let gap = next.map_or(end, |(&next, _)| next).saturating_sub(at);
            if gap > 0 {
                let wanted = (size - covered).min(gap).checked_next_multiple_of(handle).unwrap_or(gap).min(gap);
                pieces.push((at, wanted));
                covered = covered.saturating_add(wanted);
                at += wanted;
                continue;
            }
            // All of this gap is used: the block behind it must be free to go on.
            let (_, segment) = next?;
            let block = self.block(segment.first);
            if block.state != BlockState::Free {
                return None;
            }
            covered = covered.saturating_add(block.size);
            at = block.end();
            if covered < size && block.next.is_some() {
                return None;
            }
        }
        Some(Growth { start, front, pieces })
    }

    /// The whole handles inside a free block of an expandable segment: first address and bytes.
    #[must_use]
    pub fn whole_handles(&self, id: BlockId, handle: u64) -> Option<(u64, u64)> {
        let block = self.block(id);
        let (start, _, _) = self.range_at(block.address).filter(|_| block.expandable)?;
        let first = (block.address - start).checked_next_multiple_of(handle)?;
        let end = (block.end() - start) / handle * handle;
        (first < end).then(|| (start + first, end - first))
    }
}
