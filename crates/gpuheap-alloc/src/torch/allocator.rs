//! An allocator that runs by the rules over a device.

use gpuheap_record::PoolId;

use super::rules::{Config, Decision, decide, release_order};
use crate::device::Device;
use crate::heap::{Heap, HeapError, Lane};

/// What a program asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// Bytes, not rounded.
    pub size: u64,
    /// The stream's raw handle.
    pub stream: u64,
    /// The pool.
    pub pool: PoolId,
}

/// What the allocator gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// First address.
    pub address: u64,
    /// Bytes of the block: the rounded request, or a little more where the rest was too small to be split off.
    pub size: u64,
    /// Bytes of the segment that had to be made for it.
    pub new_segment: Option<u64>,
    /// Whether cached segments had to be released first.
    pub retried: bool,
}

/// The device has no memory left, even after every unused segment went back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("out of memory: {rounded} bytes were asked for, {reserved} are reserved, {allocated} of them allocated")]
pub struct OutOfMemory {
    /// The rounded request in bytes.
    pub rounded: u64,
    /// Bytes that stay reserved.
    pub reserved: u64,
    /// Bytes that the program holds.
    pub allocated: u64,
}

/// PyTorch's caching allocator over a device.
#[derive(Clone, Debug)]
pub struct Allocator<D> {
    config: Config,
    heap: Heap,
    device: D,
}

impl<D: Device> Allocator<D> {
    /// An allocator without memory.
    #[must_use]
    pub fn new(config: Config, device: D) -> Self {
        Self { config, heap: Heap::new(), device }
    }

    /// Its segments and blocks.
    #[must_use]
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Serves a request: from a free block, else from a new segment, else after giving every unused segment back.
    pub fn allocate(&mut self, request: Request) -> Result<Allocation, OutOfMemory> {
        let rounded = self.config.round(request.size);
        let lane = Lane { pool: request.pool, kind: self.config.kind(rounded), stream: request.stream };
        if let Some(allocation) = self.place(lane, rounded, request.size) {
            return Ok(allocation);
        }
        self.release_unused();
        match self.place(lane, rounded, request.size) {
            Some(allocation) => Ok(Allocation { retried: true, ..allocation }),
            None => {
                let totals = self.heap.totals();
                Err(OutOfMemory { rounded, reserved: totals.reserved, allocated: totals.allocated })
            }
        }
    }

    /// Takes back the block at `address`.
    pub fn free(&mut self, address: u64) -> Result<(), HeapError> {
        self.heap.request_free(address)?;
        self.heap.complete_free(address).map(drop)
    }

    /// Gives every segment that is one free block back to the device (`empty_cache`).
    pub fn release_unused(&mut self) {
        for address in release_order(&self.heap, &[]) {
            if self.heap.remove_segment(address).is_ok() {
                self.device.free(address);
            }
        }
    }

    fn place(&mut self, lane: Lane, rounded: u64, requested: u64) -> Option<Allocation> {
        let (block, new_segment) = match decide(&self.heap, &self.config, lane, rounded) {
            Decision::Take(block) => (block, None),
            Decision::NewSegment(size) => {
                let address = self.device.allocate(size)?;
                (self.heap.add_segment(address, size, lane).ok()?, Some(size))
            }
        };
        let split = self.config.splits(lane.kind, self.heap.block(block).size, rounded);
        let block = self.heap.carve(block, rounded, requested, split, 0).ok()?;
        let block = self.heap.block(block);
        Some(Allocation { address: block.address, size: block.size, new_segment, retried: false })
    }
}
