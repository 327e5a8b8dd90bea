//! The state of the allocator at the end of a recording.

use crate::id::{PoolId, StackId, StreamId};

/// Which of the two kinds of pool a segment serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum SegmentKind {
    /// Requests of at most 1 MiB.
    Small,
    /// All larger requests.
    #[default]
    Large,
}

/// A range of device memory that came from the driver.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// First address.
    pub address: u64,
    /// Bytes from the driver.
    pub total_size: u64,
    /// The stream that its blocks serve.
    pub stream: StreamId,
    /// Small or large.
    pub kind: SegmentKind,
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// Whether it is a mapped part of an expandable address range.
    pub expandable: bool,
    /// Where it was first needed, if recorded.
    pub stack: StackId,
    /// Its blocks by ascending address. They tile it where the recording is sound.
    pub blocks: Vec<Block>,
}

/// What a block is doing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum BlockState {
    /// The program holds it.
    Allocated,
    /// The program dropped it, another stream may still use it.
    PendingFree,
    /// It can be given out.
    #[default]
    Free,
}

/// A part of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Block {
    /// First address.
    pub address: u64,
    /// Bytes that it takes.
    pub size: u64,
    /// Bytes that the program asked for; 0 for a free block (recordings leave stale values there).
    pub requested_size: u64,
    /// What it is doing.
    pub state: BlockState,
    /// Where it was allocated, if recorded.
    pub stack: StackId,
}
