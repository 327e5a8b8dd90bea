//! Blocks, segments and what can be wrong with a change to them.

use gpuheap_record::BlockState;

use super::Lane;

/// A block of a [`Heap`](super::Heap). Ids are reused after merges: hold one only until the heap changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub(super) u32);

impl BlockId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A part of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that the program asked for; 0 for free blocks.
    pub requested: u64,
    /// What it is doing.
    pub state: BlockState,
    /// Where it belongs.
    pub lane: Lane,
    /// Whether it lies in an expandable segment.
    pub expandable: bool,
    /// A number of the caller's for blocks that are not free: whose it is.
    pub owner: u32,
    pub(super) previous: Option<BlockId>,
    pub(super) next: Option<BlockId>,
    /// The number of its lane.
    pub(super) lane_index: u32,
    /// Searches of the default large pool before it became free: see [`Heap::age`](super::Heap::age).
    pub(super) since: u64,
}

impl Block {
    /// Whether nothing else is in its segment.
    #[must_use]
    pub fn is_whole_segment(&self) -> bool {
        self.previous.is_none() && self.next.is_none()
    }

    /// The first address behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// A block of a segment that is there from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitialBlock {
    /// Bytes.
    pub size: u64,
    /// Bytes that the program asked for.
    pub requested: u64,
    /// What it is doing.
    pub state: BlockState,
    /// See [`Block::owner`].
    pub owner: u32,
}

/// Sums over a heap, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// All segments.
    pub reserved: u64,
    /// Blocks that the program holds.
    pub allocated: u64,
    /// Blocks that the program holds, or dropped while another stream still uses them.
    pub active: u64,
    /// What the program asked for in the active blocks.
    pub requested: u64,
}

/// A segment and its blocks by ascending address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentView {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Where its blocks belong.
    pub lane: Lane,
    /// Whether it is a mapped part of an expandable range.
    pub expandable: bool,
    /// Its blocks, which tile it.
    pub blocks: Vec<Block>,
}

/// Why a change does not fit the state of the heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeapError {
    /// No block starts there.
    #[error("no block starts at {address:#x}")]
    NoBlock {
        /// The address.
        address: u64,
    },
    /// The block is in another state than the change needs.
    #[error("the block at {address:#x} is {state:?}")]
    WrongState {
        /// The address.
        address: u64,
        /// What the block is doing.
        state: BlockState,
    },
    /// The block is smaller than what is to be placed in it.
    #[error("the free block at {address:#x} has {size} bytes, {needed} are needed")]
    TooSmall {
        /// The address.
        address: u64,
        /// Bytes that it has.
        size: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// The range is taken, empty, or beyond the end of the address space.
    #[error("the range at {address:#x} overlaps another segment, or is empty")]
    BadRange {
        /// The address.
        address: u64,
    },
    /// The segment still holds blocks in use.
    #[error("the segment at {address:#x} is not one free block")]
    NotWhole {
        /// The address.
        address: u64,
    },
}
