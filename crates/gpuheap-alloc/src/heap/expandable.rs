//! Expandable segments: address ranges that get and lose physical memory piece by piece.

use gpuheap_record::BlockState;

use super::{Block, BlockId, Heap, HeapError, Lane, Segment};

impl Heap {
    /// Adds physical memory to an expandable range: the new range joins a segment of the same lane that it touches.
    pub fn map(&mut self, address: u64, size: u64, lane: Lane) -> Result<BlockId, HeapError> {
        self.check_vacant(address, size)?;
        let fits = |block: &Block| block.expandable && block.lane == lane;
        let before = self.segments.range(..address).next_back();
        let before =
            before.filter(|&(&start, segment)| start + segment.size == address && fits(self.block(segment.first)));
        let before = before.map(|(&start, segment)| (start, self.last_block(segment.first)));
        let after = self.segments.get(&(address + size)).filter(|segment| fits(self.block(segment.first)));
        let after = after.map(|segment| (segment.first, segment.size));
        let id = self.place_block(Block {
            address,
            size,
            requested: 0,
            state: BlockState::Free,
            lane,
            expandable: true,
            owner: 0,
            previous: before.map(|(_, last)| last),
            next: after.map(|(first, _)| first),
            lane_index: 0,
        });
        let start = match before {
            Some((start, last)) => {
                self.blocks[last.index()].next = Some(id);
                start
            }
            None => {
                self.segments.insert(address, Segment { size: 0, first: id });
                address
            }
        };
        let mut grown = size;
        if let Some((first, after_size)) = after {
            self.blocks[first.index()].previous = Some(id);
            self.segments.remove(&(address + size));
            grown += after_size;
        }
        if let Some(segment) = self.segments.get_mut(&start) {
            segment.size += grown;
        }
        self.totals.reserved += size;
        Ok(self.join_neighbours(id))
    }

    /// Takes the physical memory of a range away, which must lie inside one free block.
    pub fn unmap(&mut self, address: u64, size: u64) -> Result<(), HeapError> {
        let bad = HeapError::BadRange { address };
        let end = address.checked_add(size).filter(|_| size > 0).ok_or(bad)?;
        let (&start, &segment) = self.segments.range(..=address).next_back().ok_or(HeapError::NoBlock { address })?;
        let mut id = segment.first;
        while self.block(id).end() <= address {
            id = self.block(id).next.ok_or(HeapError::NoBlock { address })?;
        }
        let block = *self.block(id);
        if block.state != BlockState::Free {
            return Err(HeapError::WrongState { address: block.address, state: block.state });
        }
        if block.end() < end {
            return Err(HeapError::TooSmall { address: block.address, size: block.size, needed: size });
        }
        let segment_end = start + segment.size;
        let (low, high) = (address - block.address, block.end() - end);
        self.remove_block(id);
        self.segments.remove(&start);
        self.totals.reserved -= size;
        let remainder = Block { previous: None, next: None, ..block };
        let mut low_last = block.previous;
        if low > 0 {
            let rest = self.insert_block(Block { size: low, previous: block.previous, ..remainder });
            if let Some(previous) = block.previous {
                self.blocks[previous.index()].next = Some(rest);
            }
            low_last = Some(rest);
        } else if let Some(previous) = block.previous {
            self.blocks[previous.index()].next = None;
        }
        let mut high_first = block.next;
        if high > 0 {
            let rest = self.insert_block(Block { address: end, size: high, next: block.next, ..remainder });
            if let Some(next) = block.next {
                self.blocks[next.index()].previous = Some(rest);
            }
            high_first = Some(rest);
        } else if let Some(next) = block.next {
            self.blocks[next.index()].previous = None;
        }
        if low_last.is_some() {
            let first = if block.previous.is_some() { segment.first } else { low_last.unwrap_or(segment.first) };
            self.segments.insert(start, Segment { size: address - start, first });
        }
        if let Some(first) = high_first {
            self.segments.insert(end, Segment { size: segment_end - end, first });
        }
        Ok(())
    }
}
