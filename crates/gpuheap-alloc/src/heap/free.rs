//! Free blocks in search order.

use std::collections::BTreeMap;

use gpuheap_record::{PoolId, SegmentKind};

use super::{Block, BlockId, Heap, Lane};

/// No handle of an expandable segment is smaller.
const SMALLEST_HANDLE: u64 = 2 << 20;

/// Blocks by size, then address: the first that is not too small is the best fit, and among equal sizes the lowest
/// address wins.
type BySize = BTreeMap<(u64, u64), BlockId>;

/// The free blocks of one lane.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeBlocks {
    pub(super) all: BySize,
    /// Those that can go back to the driver, in whole or in part. Holes between blocks in use are many more, and a
    /// release need not look at them.
    releasable: BySize,
}

impl Block {
    /// Whether the driver could take it back, or a part of it.
    fn is_releasable(&self) -> bool {
        self.is_whole_segment() || (self.expandable && self.size >= SMALLEST_HANDLE)
    }
}

impl Heap {
    /// The best fit in `lane`: the smallest free block of at least `size` bytes, the lowest address among equals.
    #[must_use]
    pub fn best_fit(&self, lane: Lane, size: u64) -> Option<BlockId> {
        let free = &self.free[self.lanes.find(lane)? as usize].all;
        free.range((size, 0)..).next().map(|(_, &block)| block)
    }

    /// The free blocks of one kind of one pool in search order (stream, size, address).
    pub fn free_blocks(&self, pool: PoolId, kind: SegmentKind) -> impl Iterator<Item = (BlockId, &Block)> {
        let of_pool = self.lanes.of_pool(pool, kind);
        of_pool.flat_map(|index| self.free[index as usize].all.values().map(|&id| (id, self.block(id))))
    }

    /// Those of them that can go back to the driver, in whole or in part, in the same order.
    pub fn releasable(&self, pool: PoolId, kind: SegmentKind) -> impl Iterator<Item = (BlockId, &Block)> {
        let of_pool = self.lanes.of_pool(pool, kind);
        of_pool.flat_map(|index| self.free[index as usize].releasable.values().map(|&id| (id, self.block(id))))
    }

    /// The free blocks of one lane of at least `size` bytes, from the smallest.
    pub fn free_of(&self, lane: Lane, size: u64) -> impl Iterator<Item = &Block> {
        let free = self.lanes.find(lane).map(|index| &self.free[index as usize].all);
        free.into_iter().flat_map(move |free| free.range((size, 0)..)).map(|(_, &id)| self.block(id))
    }

    /// Those of them that can go back to the driver, from the largest.
    pub fn largest_releasable(&self, lane: Lane, size: u64) -> impl Iterator<Item = &Block> {
        let free = self.lanes.find(lane).map(|index| &self.free[index as usize].releasable);
        free.into_iter().flat_map(move |free| free.range((size, 0)..).rev()).map(|(_, &id)| self.block(id))
    }

    pub(super) fn add_to_free(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.index()];
        block.since = self.searches;
        let block = *block;
        if block.expandable && !self.without_addresses {
            self.free_expandable.insert(block.address, id);
        }
        let free = &mut self.free[block.lane_index as usize];
        free.all.insert((block.size, block.address), id);
        if block.is_releasable() {
            free.releasable.insert((block.size, block.address), id);
        }
        self.free_count += 1;
    }

    pub(super) fn take_from_free(&mut self, id: BlockId) {
        let block = &self.blocks[id.index()];
        if block.expandable && !self.without_addresses {
            self.free_expandable.remove(&block.address);
        }
        let free = &mut self.free[block.lane_index as usize];
        free.all.remove(&(block.size, block.address));
        // The first block of a segment that is being put together was whole when it was added.
        if block.is_releasable() || block.previous.is_none() {
            free.releasable.remove(&(block.size, block.address));
        }
        self.free_count -= 1;
    }
}
