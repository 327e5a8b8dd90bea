//! Allocation policies: the rules by which an allocator turns requests into blocks of device memory.
//!
//! [`Heap`] is the state that every policy works on: segments from the driver, cut into blocks, with the free ones in
//! search order. [`torch`] holds the rules of PyTorch's caching allocator and an allocator that runs by them over any
//! [`Device`]. Rules and state are apart on purpose: a recording can be followed step by step with the recorded
//! placements while each decision of the rules is compared with what really happened.
#![forbid(unsafe_code)]

mod device;
mod heap;
pub mod torch;

pub use device::{Device, Direction, SimulatedDevice};
pub use heap::{Block, BlockId, Growth, Heap, HeapError, InitialBlock, Lane, SegmentView, Totals};
