//! Makes recordings: a program's allocations and frees go through the allocator's rules, and what happens is written
//! down as PyTorch would.

use std::collections::BTreeMap;

use gpuheap_alloc::torch::{Allocator, Config, Request};
use gpuheap_alloc::{BlockId, Heap, SimulatedDevice};
use gpuheap_record::{
    Annotation, AnnotationStage, Block, BlockState, Event, EventKind, Frame, Recording, Segment, StackId,
};

/// A program under way.
pub(crate) struct Maker {
    recording: Recording,
    allocator: Allocator<SimulatedDevice>,
    /// Live blocks by the number that the program gave them: block, requested size, stack.
    live: BTreeMap<u32, (BlockId, u64, StackId)>,
    next: u32,
    time_us: u64,
}

impl Maker {
    pub(crate) fn new() -> Self {
        Self::under(None)
    }

    /// A program that may reserve `cap` bytes.
    pub(crate) fn under(cap: Option<u64>) -> Self {
        let allocator = Allocator::over(Heap::new(), Config::default(), cap, SimulatedDevice::new(None));
        let mut recording = Recording::default();
        recording.settings.known = true;
        recording.device_mut(0);
        Self { recording, allocator, live: BTreeMap::new(), next: 1, time_us: 1_000_000 }
    }

    /// A stack: frames as `function@file:line`, innermost first.
    pub(crate) fn stack(&mut self, frames: &[&str]) -> StackId {
        let frames: Vec<_> = frames
            .iter()
            .map(|frame| {
                let (function, place) = frame.split_once('@').expect("function@file:line");
                let (file, line) = place.rsplit_once(':').expect("function@file:line");
                let frame = Frame {
                    function: self.recording.strings.intern(function),
                    file: self.recording.strings.intern(file),
                    line: line.parse().expect("a line number"),
                };
                self.recording.frames.insert(frame)
            })
            .collect();
        self.recording.stacks.intern(&frames)
    }

    fn event(&mut self, kind: EventKind, address: u64, size: u64, stream: u64, stack: StackId) {
        self.time_us += 10;
        let stream = self.recording.streams.insert(stream);
        let event = Event { kind, address, size, stream, time_us: self.time_us, stack, ..Event::default() };
        self.recording.device_mut(0).events.push(event);
    }

    fn segments(&self) -> BTreeMap<u64, (u64, u64)> {
        let heap = self.allocator.heap();
        heap.segments().map(|segment| (segment.address, (segment.size, segment.lane.stream))).collect()
    }

    /// Allocates on a stream; `None` if there is no memory.
    pub(crate) fn allocate_on(&mut self, size: u64, stream: u64, stack: StackId) -> Option<u32> {
        let before = self.segments();
        let owner = self.next;
        self.next += 1;
        let given = self.allocator.allocate(Request { size, stream, ..Request::default() }, owner);
        let after = self.segments();
        for (&address, &(size, stream)) in before.iter().filter(|(address, _)| !after.contains_key(address)) {
            self.event(EventKind::SegmentFree, address, size, stream, stack);
        }
        for (&address, &(size, stream)) in after.iter().filter(|(address, _)| !before.contains_key(address)) {
            self.event(EventKind::SegmentAlloc, address, size, stream, stack);
        }
        match given {
            Ok(block) => {
                let address = self.allocator.heap().block(block).address;
                self.event(EventKind::Alloc, address, size, stream, stack);
                self.live.insert(owner, (block, size, stack));
                Some(owner)
            }
            Err(error) => {
                self.event(EventKind::OutOfMemory, 0, error.rounded, stream, stack);
                None
            }
        }
    }

    pub(crate) fn allocate(&mut self, size: u64, stack: StackId) -> u32 {
        self.allocate_on(size, 0, stack).expect("there is memory")
    }

    pub(crate) fn free(&mut self, number: u32) {
        let (block, size, stack) = self.live.remove(&number).expect("the block is live");
        let (address, stream) = {
            let block = self.allocator.heap().block(block);
            (block.address, block.lane.stream)
        };
        self.event(EventKind::FreeRequested, address, size, stream, stack);
        self.event(EventKind::FreeCompleted, address, size, stream, stack);
        self.allocator.free(block).expect("a live block can be freed");
    }

    pub(crate) fn free_all(&mut self, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            self.free(number);
        }
    }

    /// The numbers of all live blocks.
    pub(crate) fn live(&self) -> Vec<u32> {
        self.live.keys().copied().collect()
    }

    /// An optimizer step begins and ends here.
    pub(crate) fn optimizer_step(&mut self) {
        for stage in [AnnotationStage::Start, AnnotationStage::End] {
            self.time_us += 10;
            let name = self.recording.strings.intern("Optimizer.step#Test.step");
            self.recording.annotations.push(Annotation { name, stage, device: None, time_us: self.time_us });
        }
    }

    /// Bytes of live blocks and of segments.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let totals = self.allocator.heap().totals();
        (totals.allocated, totals.reserved)
    }

    /// The recording, as it would be dumped now.
    pub(crate) fn recording(&self) -> Recording {
        let mut recording = self.recording.clone();
        let stacks: BTreeMap<BlockId, StackId> = self.live.values().map(|&(block, _, stack)| (block, stack)).collect();
        let heap = self.allocator.heap();
        let segments = heap.segments().map(|view| Segment {
            address: view.address,
            total_size: view.size,
            stream: recording.streams.find(&view.lane.stream).unwrap_or_default(),
            kind: view.lane.kind,
            pool: view.lane.pool,
            blocks: view
                .blocks
                .iter()
                .map(|block| Block {
                    address: block.address,
                    size: block.size,
                    requested_size: block.requested,
                    state: block.state,
                    stack: match block.state {
                        BlockState::Free => StackId::default(),
                        _ => heap.at(block.address).and_then(|id| stacks.get(&id).copied()).unwrap_or_default(),
                    },
                })
                .collect(),
            ..Segment::default()
        });
        let segments: Vec<Segment> = segments.collect();
        recording.device_mut(0).segments = segments;
        recording
    }

    /// The same without its first `lost` events, as when a ring buffer was too short.
    pub(crate) fn recording_without(&self, lost: usize) -> Recording {
        let mut recording = self.recording();
        let count = recording.device_mut(0).events.len();
        recording.device_mut(0).events.keep(lost..count);
        recording
    }
}
