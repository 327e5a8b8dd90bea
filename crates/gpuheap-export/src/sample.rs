//! Recordings of a few events, for tests.

use std::sync::Arc;

use gpuheap_explain::{Analysis, Options};
use gpuheap_record::{Event, EventKind, Frame, FrameId, Recording, StackId};

/// A device under way.
pub(crate) struct Sample {
    pub(crate) recording: Recording,
    /// The time of the next event, and what lies between events.
    time_us: u64,
    step_us: u64,
}

impl Sample {
    pub(crate) fn new() -> Self {
        let mut recording = Recording::default();
        recording.device_mut(0);
        recording.source.path = "run.pickle".into();
        Self { recording, time_us: 1_700_000_000_000_000, step_us: 10 }
    }

    pub(crate) fn with_times(mut self, time_us: u64, step_us: u64) -> Self {
        (self.time_us, self.step_us) = (time_us, step_us);
        self
    }

    pub(crate) fn frame(&mut self, function: &str, file: &str, line: u32) -> FrameId {
        let (function, file) = (self.recording.strings.intern(function), self.recording.strings.intern(file));
        self.recording.frames.insert(Frame { function, file, line })
    }

    /// A stack of one frame below `main (run.py:1)`.
    pub(crate) fn stack(&mut self, function: &str, file: &str, line: u32) -> StackId {
        let frames = [self.frame(function, file, line), self.frame("main", "run.py", 1)];
        self.recording.stacks.intern(&frames)
    }

    pub(crate) fn event(&mut self, kind: EventKind, address: u64, size: u64, stack: StackId) {
        let event = Event { kind, address, size, time_us: self.time_us, stack, ..Event::default() };
        self.time_us = self.time_us.saturating_add(self.step_us);
        self.recording.device_mut(0).events.push(event);
    }

    pub(crate) fn alloc(&mut self, address: u64, size: u64, stack: StackId) {
        self.event(EventKind::Alloc, address, size, stack);
    }

    pub(crate) fn free(&mut self, address: u64, size: u64) {
        let none = StackId::default();
        self.event(EventKind::FreeRequested, address, size, none);
        self.event(EventKind::FreeCompleted, address, size, none);
    }

    pub(crate) fn analysis(self) -> Analysis {
        Analysis::new(Arc::new(self.recording), &Options::default()).expect("it has a device")
    }
}

/// A segment and three blocks, one of which is freed before the last is made.
pub(crate) fn small() -> Analysis {
    let mut sample = Sample::new();
    let load = sample.stack("load", "data.py", 7);
    let train = sample.stack("train", "train.py", 16);
    sample.event(EventKind::SegmentAlloc, 0x1000_0000, 20 << 20, load);
    sample.alloc(0x1000_0000, 3 << 20, load);
    sample.alloc(0x1030_0000, (2 << 20) - 100, train);
    sample.free(0x1000_0000, 3 << 20);
    sample.alloc(0x1000_0000, 1 << 20, StackId::default());
    sample.analysis()
}

/// Segments and nothing in them.
pub(crate) fn empty() -> Analysis {
    let mut sample = Sample::new();
    sample.event(EventKind::SegmentAlloc, 0x1000_0000, 20 << 20, StackId::default());
    sample.analysis()
}

/// Names and times that no program has, and sizes whose sum no number holds.
pub(crate) fn hostile() -> Analysis {
    let mut sample = Sample::new().with_times(u64::MAX - 3, 1);
    let names =
        ["<img src=x onerror=alert(1)>", "=1+1", "a;b\r\n\"c\", 'd'", "\0\u{1b}[31m\u{202e}", &"λ".repeat(1 << 20)];
    for (index, name) in names.iter().enumerate() {
        let stack = sample.stack(name, name, u32::MAX);
        sample.alloc(0x1000 * (index as u64 + 1), u64::MAX / 2, stack);
    }
    // A stack that no screen shows, and a free of what never was.
    let frame = sample.frame("recurse", "deep.py", 3);
    let deep = sample.recording.stacks.intern(&vec![frame; 5000]);
    sample.alloc(0x9000, u64::MAX, deep);
    sample.free(0xdead, 1);
    sample.free(0x1000, u64::MAX / 2);
    sample.analysis()
}

/// The same as [`small`] without times.
pub(crate) fn untimed() -> Analysis {
    let mut sample = Sample::new().with_times(0, 0);
    let stack = sample.stack("train", "train.py", 16);
    for index in 0..20 {
        sample.alloc(0x1000 * (index + 1), 0x1000, stack);
    }
    sample.analysis()
}
