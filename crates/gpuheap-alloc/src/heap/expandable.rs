//! Expandable segments: address ranges that get and lose physical memory piece by piece.

use gpuheap_record::BlockState;

use super::{Block, BlockId, Heap, HeapError, Lane, Segment};

impl Heap {
    /// Adds physical memory to an expandable range: the new range joins a segment of the same lane that it touches.
    pub fn map(&mut self, address: u64, size: u64, lane: Lane) -> Result<BlockId, HeapError> {
        self.check_vacant(address, size)?;
        let fits = |block: &Block| block.expandable && block.lane == lane;
        let before = self.tails.get(&address).copied().filter(|&last| fits(self.block(last)));
        let before = before.and_then(|last| Some((*self.segments.range(..address).next_back()?.0, last)));
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
            since: 0,
        });
        let start = match before {
            Some((start, last)) => {
                self.tails.remove(&address);
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
        } else {
            self.tails.insert(address + size, id);
        }
        if let Some(segment) = self.segments.get_mut(&start) {
            segment.size += grown;
        }
        self.totals.reserved += size;
        Ok(self.join_neighbours(id))
    }

    /// Takes the physical memory of a range away, which must lie inside one free block of an expandable segment.
    pub fn unmap(&mut self, address: u64, size: u64) -> Result<(), HeapError> {
        let (_, &id) = self.free_expandable.range(..=address).next_back().ok_or(HeapError::NoBlock { address })?;
        self.unmap_of(id, address, size)
    }

    /// Takes the physical memory of a part of the free block `id` away. What is left of the block on both sides stays.
    pub fn unmap_of(&mut self, id: BlockId, address: u64, size: u64) -> Result<(), HeapError> {
        let bad = HeapError::BadRange { address };
        let end = address.checked_add(size).filter(|_| size > 0).ok_or(bad)?;
        let block = *self.block(id);
        if block.state != BlockState::Free {
            return Err(HeapError::WrongState { address: block.address, state: block.state });
        }
        if address < block.address || block.end() < end || !block.expandable {
            return Err(HeapError::TooSmall { address: block.address, size: block.size, needed: size });
        }
        let (&start, &segment) = self.segments.range(..=address).next_back().ok_or(HeapError::NoBlock { address })?;
        let segment_end = start + segment.size;
        let (low, high) = (address - block.address, block.end() - end);
        self.remove_block(id);
        self.segments.remove(&start);
        self.totals.reserved -= size;
        let remainder = Block { previous: None, next: None, ..block };
        let low_last =
            match (low > 0).then(|| self.insert_block(Block { size: low, previous: block.previous, ..remainder })) {
                None => block.previous,
                rest => rest,
            };
        let high_first = match (high > 0)
            .then(|| self.insert_block(Block { address: end, size: high, next: block.next, ..remainder }))
        {
            None => block.next,
            rest => rest,
        };
        if let Some(previous) = block.previous {
            self.blocks[previous.index()].next = low_last.filter(|_| low > 0);
        }
        if let Some(next) = block.next {
            self.blocks[next.index()].previous = high_first.filter(|_| high > 0);
        }
        if let Some(last) = low_last {
            let first = if block.previous.is_some() { segment.first } else { last };
            self.segments.insert(start, Segment { size: address - start, first });
            self.tails.insert(address, last);
        }
        match high_first {
            Some(first) => {
                self.segments.insert(end, Segment { size: segment_end - end, first });
                if block.next.is_none() {
                    self.tails.insert(segment_end, first);
                }
            }
            None => {
                self.tails.remove(&segment_end);
            }
        }
        Ok(())
    }
}
