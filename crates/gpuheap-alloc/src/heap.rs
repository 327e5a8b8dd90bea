//! The state of a caching allocator: segments, blocks, and free blocks in search order.

mod block;
mod expandable;
mod free;
mod lanes;
mod ranges;

use std::collections::BTreeMap;

use foldhash::HashMap;
use gpuheap_record::BlockState;

pub use block::{Block, BlockId, HeapError, InitialBlock, SegmentView, Totals};
use free::FreeBlocks;
pub use lanes::Lane;
use lanes::Lanes;
pub use ranges::Growth;
use ranges::Ranges;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Segment {
    size: u64,
    first: BlockId,
}

/// Segments cut into blocks.
#[derive(Clone, Debug, Default)]
pub struct Heap {
    blocks: Vec<Block>,
    vacant: Vec<BlockId>,
    by_address: HashMap<u64, BlockId>,
    /// By lane index.
    free: Vec<FreeBlocks>,
    lanes: Lanes,
    segments: BTreeMap<u64, Segment>,
    ranges: Ranges,
    /// Free blocks of expandable segments by address, where blocks can be found by it.
    free_expandable: BTreeMap<u64, BlockId>,
    /// The last block of each expandable segment, by the address behind it.
    tails: HashMap<u64, BlockId>,
    totals: Totals,
    /// Whether blocks can not be found by their address.
    without_addresses: bool,
    /// Searches of the default large pool so far.
    searches: u64,
    free_count: usize,
}

impl Heap {
    /// A heap without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A heap whose blocks are known by id alone: [`Heap::at`] finds nothing, and every change costs less.
    #[must_use]
    pub fn without_addresses() -> Self {
        Self { without_addresses: true, ..Self::default() }
    }

    /// Counts a search of the default large pool: its free blocks age by one.
    pub fn count_search(&mut self) {
        self.searches += 1;
    }

    /// How many searches a free block of the default large pool has seen.
    #[must_use]
    pub fn age(&self, id: BlockId) -> u64 {
        self.searches - self.block(id).since
    }

    /// Sums over all segments, in bytes.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The block of `id`.
    #[must_use]
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }

    /// The block that starts at `address`.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<BlockId> {
        self.by_address.get(&address).copied()
    }

    /// How many free blocks there are.
    #[must_use]
    pub fn free_count(&self) -> usize {
        self.free_count
    }

    /// All segments by ascending address.
    pub fn segments(&self) -> impl Iterator<Item = SegmentView> + '_ {
        self.segments.iter().map(|(&address, segment)| {
            let first = self.block(segment.first);
            let blocks = std::iter::successors(Some(*first), |block| block.next.map(|next| *self.block(next)));
            SegmentView {
                address,
                size: segment.size,
                lane: first.lane,
                expandable: first.expandable,
                blocks: blocks.collect(),
            }
        })
    }

    /// How many segments there are.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Adds a segment that is one free block.
    pub fn add_segment(&mut self, address: u64, size: u64, lane: Lane) -> Result<BlockId, HeapError> {
        let whole = InitialBlock { size, requested: 0, state: BlockState::Free, owner: 0 };
        self.add_segment_with(address, lane, false, &[whole])
    }

    /// Adds a segment with the given blocks, which tile it from `address` upwards. Returns the first of them.
    pub fn add_segment_with(
        &mut self,
        address: u64,
        lane: Lane,
        expandable: bool,
        blocks: &[InitialBlock],
    ) -> Result<BlockId, HeapError> {
        let size = blocks.iter().try_fold(0_u64, |sum, block| sum.checked_add(block.size));
        let size = size.filter(|_| blocks.iter().all(|block| block.size > 0)).ok_or(HeapError::BadRange { address })?;
        self.check_vacant(address, size)?;
        let mut at = address;
        let mut previous: Option<BlockId> = None;
        let mut first = BlockId(u32::MAX);
        for block in blocks {
            let id = self.insert_block(Block {
                address: at,
                size: block.size,
                requested: block.requested,
                state: block.state,
                lane,
                expandable,
                owner: block.owner,
                previous,
                next: None,
                lane_index: 0,
                since: 0,
            });
            if let Some(previous) = previous {
                self.blocks[previous.index()].next = Some(id);
            } else {
                self.segments.insert(address, Segment { size, first: id });
                first = id;
            }
            self.count(id, true);
            previous = Some(id);
            at += block.size;
        }
        if let Some(last) = previous.filter(|_| expandable) {
            self.tails.insert(at, last);
        }
        self.totals.reserved += size;
        Ok(first)
    }

    /// Removes the segment at `address`, which must be one free block, and returns its size.
    pub fn remove_segment(&mut self, address: u64) -> Result<u64, HeapError> {
        let segment = *self.segments.get(&address).ok_or(HeapError::NoBlock { address })?;
        let block = *self.block(segment.first);
        if block.state != BlockState::Free || !block.is_whole_segment() {
            return Err(HeapError::NotWhole { address });
        }
        self.remove_block(segment.first);
        self.segments.remove(&address);
        self.totals.reserved -= segment.size;
        Ok(segment.size)
    }

    /// Gives the low `size` bytes of the free block `id` to `owner`, who asked for `requested` of them. With `split`
    /// the rest stays free, otherwise the whole block is given.
    pub fn carve(
        &mut self,
        id: BlockId,
        size: u64,
        requested: u64,
        split: bool,
        owner: u32,
    ) -> Result<BlockId, HeapError> {
        let block = *self.block(id);
        if block.state != BlockState::Free {
            return Err(HeapError::WrongState { address: block.address, state: block.state });
        }
        if block.size < size || size == 0 {
            return Err(HeapError::TooSmall { address: block.address, size: block.size, needed: size });
        }
        self.take_from_free(id);
        if split && block.size > size {
            let rest = self.insert_block(Block {
                address: block.address + size,
                size: block.size - size,
                previous: Some(id),
                ..block
            });
            if let Some(next) = block.next {
                self.blocks[next.index()].previous = Some(rest);
            } else if block.expandable {
                self.tails.insert(block.end(), rest);
            }
            let low = &mut self.blocks[id.index()];
            low.size = size;
            low.next = Some(rest);
        }
        let low = &mut self.blocks[id.index()];
        low.state = BlockState::Allocated;
        low.requested = requested;
        low.owner = owner;
        self.count(id, true);
        Ok(id)
    }

    /// The program drops the block at `address`; it stays active until [`Heap::complete_free`].
    pub fn request_free(&mut self, address: u64) -> Result<BlockId, HeapError> {
        let id = self.at(address).ok_or(HeapError::NoBlock { address })?;
        self.request_free_of(id).map(|()| id)
    }

    /// The program drops an allocated block; it stays active until [`Heap::complete_free_of`].
    pub fn request_free_of(&mut self, id: BlockId) -> Result<(), HeapError> {
        let block = &mut self.blocks[id.index()];
        if block.state != BlockState::Allocated {
            return Err(HeapError::WrongState { address: block.address, state: block.state });
        }
        block.state = BlockState::PendingFree;
        self.totals.allocated -= block.size;
        Ok(())
    }

    /// The block at `address` can be used again: it merges with free neighbours. Returns the block that it is now part
    /// of.
    pub fn complete_free(&mut self, address: u64) -> Result<BlockId, HeapError> {
        let id = self.at(address).ok_or(HeapError::NoBlock { address })?;
        self.complete_free_of(id)
    }

    /// A block that is not free can be used again: it merges with free neighbours. Returns the block that it is now part
    /// of.
    pub fn complete_free_of(&mut self, id: BlockId) -> Result<BlockId, HeapError> {
        let block = self.block(id);
        if block.state == BlockState::Free {
            return Err(HeapError::WrongState { address: block.address, state: block.state });
        }
        self.count(id, false);
        let block = &mut self.blocks[id.index()];
        block.state = BlockState::Free;
        block.requested = 0;
        block.owner = 0;
        Ok(self.join_neighbours(id))
    }

    /// Whether a segment could be added there.
    #[must_use]
    pub fn is_vacant(&self, address: u64, size: u64) -> bool {
        self.check_vacant(address, size).is_ok()
    }

    fn check_vacant(&self, address: u64, size: u64) -> Result<(), HeapError> {
        let bad = HeapError::BadRange { address };
        let end = address.checked_add(size).filter(|_| size > 0).ok_or(bad)?;
        let below = self.segments.range(..end).next_back();
        match below {
            Some((&start, segment)) if start + segment.size > address => Err(bad),
            _ => Ok(()),
        }
    }

    /// Adds a block; a free one is put in search order.
    fn insert_block(&mut self, block: Block) -> BlockId {
        let id = self.place_block(block);
        if block.state == BlockState::Free {
            self.add_to_free(id);
        }
        id
    }

    fn place_block(&mut self, mut block: Block) -> BlockId {
        block.lane_index = self.lanes.index(block.lane);
        if self.free.len() <= block.lane_index as usize {
            self.free.resize_with(block.lane_index as usize + 1, FreeBlocks::default);
        }
        let id = match self.vacant.pop() {
            Some(id) => {
                self.blocks[id.index()] = block;
                id
            }
            None => {
                let id = BlockId(u32::try_from(self.blocks.len()).unwrap_or(u32::MAX));
                self.blocks.push(block);
                id
            }
        };
        if !self.without_addresses {
            self.by_address.insert(block.address, id);
        }
        id
    }

    fn remove_block(&mut self, id: BlockId) {
        let block = *self.block(id);
        if block.state == BlockState::Free {
            self.take_from_free(id);
        }
        self.forget_address(block.address);
        self.vacant.push(id);
    }

    fn forget_address(&mut self, address: u64) {
        if !self.without_addresses {
            self.by_address.remove(&address);
        }
    }

    /// Merges the free block `id`, which is not in search order yet, with its free neighbours and puts it there.
    fn join_neighbours(&mut self, id: BlockId) -> BlockId {
        let mut id = id;
        let is_free =
            |heap: &Self, block: Option<BlockId>| block.filter(|&block| heap.block(block).state == BlockState::Free);
        if let Some(previous) = is_free(self, self.block(id).previous) {
            self.take_from_free(previous);
            self.absorb_next(previous, id);
            id = previous;
        }
        if let Some(next) = is_free(self, self.block(id).next) {
            self.take_from_free(next);
            self.absorb_next(id, next);
        }
        self.add_to_free(id);
        id
    }

    fn absorb_next(&mut self, id: BlockId, next: BlockId) {
        let absorbed = *self.block(next);
        let block = &mut self.blocks[id.index()];
        block.size += absorbed.size;
        block.next = absorbed.next;
        if let Some(behind) = absorbed.next {
            self.blocks[behind.index()].previous = Some(id);
        } else if absorbed.expandable {
            self.tails.insert(absorbed.end(), id);
        }
        self.forget_address(absorbed.address);
        self.vacant.push(next);
    }

    /// Adds a block that is not free to the totals, or takes it out.
    fn count(&mut self, id: BlockId, add: bool) {
        let block = *self.block(id);
        let change = |total: &mut u64, amount: u64| if add { *total += amount } else { *total -= amount };
        if block.state == BlockState::Allocated {
            change(&mut self.totals.allocated, block.size);
        }
        if block.state != BlockState::Free {
            change(&mut self.totals.active, block.size);
            change(&mut self.totals.requested, block.requested);
        }
    }
}
