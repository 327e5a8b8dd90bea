//! An allocator that runs by the rules over a device.

use foldhash::HashMap;
use gpuheap_record::{PoolId, SegmentKind};

use super::release::{Release, collection_pass, full_release_blocks, partial_release};
use super::rules::{Config, Decision, find, new_memory};
use crate::device::Device;
use crate::heap::{BlockId, Heap, HeapError, Lane};

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

/// The device has no memory left, or the cap leaves none, even after everything unused went back.
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

/// What an allocator did, as `torch.cuda.memory_stats()` counts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// The most reserved memory, in bytes.
    pub peak_reserved: u64,
    /// The most allocated memory, in bytes.
    pub peak_allocated: u64,
    /// The most allocated memory and such as waits for other streams, in bytes.
    pub peak_active: u64,
    /// Native segments that came from the driver (`segment.all.allocated`).
    pub segments: u64,
    /// Calls that took memory from the driver or gave it back.
    pub driver_calls: u64,
    /// Full releases for a request (`num_alloc_retries`).
    pub retries: u64,
}

/// PyTorch's caching allocator over a device.
#[derive(Clone, Debug)]
pub struct Allocator<D> {
    config: Config,
    cap: Option<u64>,
    heap: Heap,
    device: D,
    /// Blocks that the program dropped while another stream still uses them, by owner.
    pending: HashMap<u32, BlockId>,
    counters: Counters,
}

impl<D: Device> Allocator<D> {
    /// An allocator without memory, which never reserves more than `cap` bytes.
    #[must_use]
    pub fn new(config: Config, cap: Option<u64>, device: D) -> Self {
        Self::over(Heap::new(), config, cap, device)
    }

    /// An allocator that goes on with the state `heap`.
    #[must_use]
    pub fn over(heap: Heap, config: Config, cap: Option<u64>, device: D) -> Self {
        let totals = heap.totals();
        let counters = Counters {
            peak_reserved: totals.reserved,
            peak_allocated: totals.allocated,
            peak_active: totals.active,
            ..Counters::default()
        };
        Self { config, cap, heap, device, pending: HashMap::default(), counters }
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

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Serves a request: from a free block, else from new memory, else after giving unused memory back, as little as the
    /// settings allow first.
    pub fn allocate(&mut self, request: Request, owner: u32) -> Result<BlockId, OutOfMemory> {
        let rounded = self.config.round(request.size);
        let lane = Lane { pool: request.pool, kind: self.config.kind(rounded), stream: request.stream };
        let collects = self.config.garbage_collection_threshold > 0.0 && self.cap.is_some();
        if collects && lane.pool == PoolId::default() && lane.kind == SegmentKind::Large {
            self.heap.count_search();
        }
        let found = match find(&self.heap, &self.config, lane, rounded) {
            Some(block) => Some(block),
            None => {
                if collects {
                    self.collect();
                }
                self.grow(lane, rounded)
            }
        };
        let block = match found {
            Some(block) => block,
            None => self.grow_after_release(lane, rounded)?,
        };
        let splits = self.config.splits(lane.kind, self.heap.block(block).size, rounded);
        let block = self.heap.carve(block, rounded, request.size, splits, owner).map_err(|_| self.failed(rounded))?;
        let totals = self.heap.totals();
        self.counters.peak_allocated = self.counters.peak_allocated.max(totals.allocated);
        self.counters.peak_active = self.counters.peak_active.max(totals.active);
        Ok(block)
    }

    /// Takes back a block that no other stream uses.
    pub fn free(&mut self, block: BlockId) -> Result<(), HeapError> {
        self.heap.request_free_of(block)?;
        self.heap.complete_free_of(block).map(drop)
    }

    /// Takes back a block that another stream still uses: its memory can be used again after [`Allocator::complete`], or
    /// after a full release, which waits for all streams.
    pub fn defer(&mut self, block: BlockId) -> Result<(), HeapError> {
        self.heap.request_free_of(block)?;
        self.pending.insert(self.heap.block(block).owner, block);
        Ok(())
    }

    /// No other stream uses the block of `owner` any more.
    pub fn complete(&mut self, owner: u32) -> Result<(), HeapError> {
        match self.pending.remove(&owner) {
            Some(block) => self.heap.complete_free_of(block).map(drop),
            None => Ok(()),
        }
    }

    /// Gives everything unused back to the device (`empty_cache`).
    pub fn release_unused(&mut self) {
        let mut owners: Vec<u32> = self.pending.keys().copied().collect();
        owners.sort_unstable();
        for owner in owners {
            // A pending block can always be completed.
            let _ = self.complete(owner);
        }
        for (block, release) in full_release_blocks(&self.heap, &self.config, &[]) {
            match release {
                Release::Segment(address) => {
                    self.release_segment(address);
                }
                Release::Handles(address, size) => {
                    if self.heap.unmap_of(block, address, size).is_ok() {
                        self.counters.driver_calls += 1;
                        self.device.unmap(size);
                        self.heap.drop_empty_range(address);
                    }
                }
            }
        }
    }

    fn release_segment(&mut self, address: u64) -> u64 {
        match self.heap.remove_segment(address) {
            Ok(size) => {
                self.counters.driver_calls += 1;
                self.device.free(address);
                size
            }
            Err(_) => 0,
        }
    }

    /// Gives old unused segments back until enough is gone.
    fn collect(&mut self) {
        let Some(cap) = self.cap else { return };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a cap is no larger")]
        let threshold = (self.config.garbage_collection_threshold * cap as f64) as u64;
        let Some(mut target) = self.heap.totals().reserved.checked_sub(threshold).filter(|&target| target > 0) else {
            return;
        };
        while target > 0 {
            let pass = collection_pass(&self.heap, |_| false);
            if pass.is_empty() {
                break;
            }
            for (address, _) in pass {
                target = target.saturating_sub(self.release_segment(address));
            }
        }
    }

    /// New memory for a request: the free block that it becomes. `None` if the cap or the device has none.
    fn grow(&mut self, lane: Lane, rounded: u64) -> Option<BlockId> {
        let reserved = self.heap.totals().reserved;
        let refused = self.cap.is_some_and(|cap| reserved.saturating_add(self.config.segment_size(rounded)) > cap);
        if refused {
            return None;
        }
        let block = match new_memory(&self.heap, &self.config, lane, rounded) {
            Decision::NewSegment(size) => {
                let address = self.device.allocate(size)?;
                self.counters.segments += 1;
                self.counters.driver_calls += 1;
                self.heap.add_segment(address, size, lane).ok()?
            }
            // With a split limit, the free block in front may be large enough and yet not allowed: then nothing is mapped.
            Decision::Grow(growth) if growth.pieces.is_empty() => growth.front?,
            Decision::Grow(growth) => self.map(&growth.pieces, lane)?,
            Decision::NewRange(size) => {
                let (start, length) = self.device.reserve(self.config.handle(lane.kind))?;
                self.heap.reserve_range(start, length, lane);
                self.map(&[(start, size)], lane)?
            }
            Decision::Take(block) => block,
        };
        self.counters.peak_reserved = self.counters.peak_reserved.max(self.heap.totals().reserved);
        Some(block)
    }

    fn map(&mut self, pieces: &[(u64, u64)], lane: Lane) -> Option<BlockId> {
        let mut block = None;
        for &(address, size) in pieces {
            self.device.map(size).then_some(())?;
            self.counters.driver_calls += 1;
            block = Some(self.heap.map(address, size, lane).ok()?);
        }
        block
    }

    fn grow_after_release(&mut self, lane: Lane, rounded: u64) -> Result<BlockId, OutOfMemory> {
        let (partial, suffices) = partial_release(&self.heap, &self.config, lane, rounded, |_| false);
        for address in partial {
            self.release_segment(address);
        }
        let grown = if suffices { self.grow(lane, rounded) } else { None };
        if let Some(block) = grown {
            return Ok(block);
        }
        self.release_unused();
        self.counters.retries += 1;
        self.grow(lane, rounded).ok_or_else(|| self.failed(rounded))
    }

    fn failed(&self, rounded: u64) -> OutOfMemory {
        let totals = self.heap.totals();
        OutOfMemory { rounded, reserved: totals.reserved, allocated: totals.allocated }
    }
}
