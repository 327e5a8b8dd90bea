//! The recording as a whole.

use std::path::PathBuf;

use crate::event::Events;
use crate::id::{ContextId, DeviceId, FrameId, StackId, StringId};
use crate::segment::Segment;
use crate::settings::AllocatorSettings;
use crate::stack::{Frame, StackTable};
use crate::table::{FrameTable, PoolTable, StreamTable, StringTable};

/// What happened to the memory of one or more devices over time.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Where the recording came from.
    pub source: Source,
    /// Every string.
    pub strings: StringTable,
    /// Every frame.
    pub frames: FrameTable,
    /// Every stack.
    pub stacks: StackTable,
    /// Every stream, by raw handle. Id 0 is the default stream.
    pub streams: StreamTable,
    /// Every pool. Id 0 is the default pool.
    pub pools: PoolTable,
    /// What frameworks attached to events. Id 0 is empty.
    pub contexts: crate::Table<ContextId, Context>,
    /// One entry a device that has events or segments, by ascending ordinal.
    pub devices: Vec<DeviceRecording>,
    /// Pinned host memory, where the recording has it: same rows, no streams.
    pub host: Option<DeviceRecording>,
    /// Named ranges of time, oldest first.
    pub annotations: Vec<Annotation>,
    /// What the program called some of its memory, in the order in which it was said.
    pub names: Vec<Name>,
    /// What the driver said of whole devices, in the order in which it was asked.
    pub device_memory: Vec<DeviceMemory>,
    /// What else is known of the program and its machine, such as versions: each a name and a value.
    pub facts: Vec<(String, String)>,
    /// The allocator's settings.
    pub settings: AllocatorSettings,
    /// What the reader should know about how the file was read.
    pub notes: Vec<Note>,
}

/// Where a recording came from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Source {
    /// The file, or `-` for standard input.
    pub path: PathBuf,
    /// What kind of file it was.
    pub format: Format,
    /// How it was compressed.
    pub compression: Compression,
    /// Bytes read from the file, before decompression.
    pub bytes: u64,
}

/// The kinds of file that a recording can be read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// A pickled PyTorch memory snapshot.
    #[default]
    TorchPickle,
    /// The same content as JSON.
    TorchJson,
    /// Our own format: see [`file`](crate::file).
    Gpuheap,
}

/// How a file was compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

/// The events of one device and its segments after the last of them.
#[derive(Clone, Debug, Default)]
pub struct DeviceRecording {
    /// The device.
    pub device: DeviceId,
    /// Every change, oldest first.
    pub events: Events,
    /// What the allocator held at the end, by ascending address.
    pub segments: Vec<Segment>,
}

/// What a framework attached to an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Context {
    /// The compiled region that ran (`compile_context`); empty if none.
    pub compile: StringId,
    /// The text that the program set (`user_metadata`); empty if none.
    pub user: StringId,
}

/// Whether an annotation opens or closes its range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AnnotationStage {
    /// The range begins.
    Start,
    /// The range ends.
    End,
}

/// One end of a named range of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Annotation {
    /// The range's name, such as `Optimizer.step#AdamW.step`.
    pub name: StringId,
    /// Which end.
    pub stage: AnnotationStage,
    /// The device that was current, where recorded.
    pub device: Option<DeviceId>,
    /// When, in microseconds, on the clock of the events.
    pub time_us: u64,
}

/// What memory is for, as the program itself says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NamedAs {
    /// A parameter or buffer of a module.
    Parameter,
    /// The gradient of a parameter.
    Gradient,
    /// What an optimizer keeps for a parameter.
    OptimizerState,
    /// What a module's forward pass made.
    Activation,
    /// A batch, or other data.
    Input,
    /// Keys and values of generated tokens.
    Cache,
    /// Anything else that has a name.
    Other,
}

impl NamedAs {
    /// All of them, in the order of their numbers in files.
    pub const ALL: [Self; 7] = [
        Self::Parameter,
        Self::Gradient,
        Self::OptimizerState,
        Self::Activation,
        Self::Input,
        Self::Cache,
        Self::Other,
    ];
}

/// What the program calls the block at an address, at one time: addresses are used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// The device that the memory is of.
    pub device: DeviceId,
    /// An address in the block.
    pub address: u64,
    /// When the program held the block by this name, in microseconds, on the clock of the events.
    pub time_us: u64,
    /// What it is for.
    pub named_as: NamedAs,
    /// The name, such as `model.layers.3.weight`.
    pub name: StringId,
}

/// All memory of a device at one time, whoever has it, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceMemory {
    /// The device.
    pub device: DeviceId,
    /// When, in microseconds, on the clock of the events.
    pub time_us: u64,
    /// What the device has.
    pub total: u64,
    /// What the driver could still give to anyone.
    pub free: u64,
    /// What the allocator had taken from the driver.
    pub reserved: u64,
    /// All that the recorded process held: reserved memory, the context, libraries. `None` if nobody said.
    pub own: Option<u64>,
    /// What other processes held. `None` if nobody said.
    pub others: Option<u64>,
}

impl DeviceMemory {
    /// What was taken, and not by the allocator: contexts, libraries, other processes.
    #[must_use]
    pub fn outside(&self) -> u64 {
        self.total.saturating_sub(self.free).saturating_sub(self.reserved)
    }
}

/// Something about the recording that limits what can be said: one sentence, for the reader of a report.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Note(pub String);

impl Default for Recording {
    fn default() -> Self {
        let mut recording = Self {
            source: Source::default(),
            strings: StringTable::new(),
            frames: FrameTable::new(),
            stacks: StackTable::new(),
            streams: StreamTable::new(),
            pools: PoolTable::new(),
            contexts: crate::Table::new(),
            devices: Vec::new(),
            host: None,
            annotations: Vec::new(),
            names: Vec::new(),
            device_memory: Vec::new(),
            facts: Vec::new(),
            settings: AllocatorSettings::default(),
            notes: Vec::new(),
        };
        // The ids that every table promises for "nothing" and "default".
        recording.strings.intern("");
        recording.streams.insert(0);
        recording.pools.insert((0, 0));
        recording.contexts.insert(Context::default());
        recording
    }
}

impl Recording {
    /// The entry of the device with this ordinal, which is added if it is new.
    pub fn device_mut(&mut self, ordinal: u32) -> &mut DeviceRecording {
        let device = DeviceId::new(ordinal);
        let index = match self.devices.binary_search_by_key(&device, |entry| entry.device) {
            Ok(index) => index,
            Err(index) => {
                self.devices.insert(index, DeviceRecording { device, ..DeviceRecording::default() });
                index
            }
        };
        &mut self.devices[index]
    }

    /// The frame of `id`, with empty texts if there is none.
    #[must_use]
    pub fn frame(&self, id: FrameId) -> Frame {
        self.frames.get(id).copied().unwrap_or(Frame { function: StringId::new(0), file: StringId::new(0), line: 0 })
    }

    /// The function name of a frame.
    #[must_use]
    pub fn function(&self, id: FrameId) -> &str {
        self.strings.text(self.frame(id).function)
    }

    /// The file of a frame.
    #[must_use]
    pub fn file(&self, id: FrameId) -> &str {
        self.strings.text(self.frame(id).file)
    }

    /// The frames of a stack, innermost first.
    pub fn frames_of(&self, stack: StackId) -> impl Iterator<Item = FrameId> + '_ {
        self.stacks.frames(stack)
    }

    /// How many events all devices have together.
    #[must_use]
    pub fn event_count(&self) -> usize {
        self.devices.iter().map(|device| device.events.len()).sum()
    }
}
