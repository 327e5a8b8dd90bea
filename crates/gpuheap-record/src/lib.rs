//! The recording: what happened to the memory of one or more devices over time.
//!
//! Importers fill a [`Recording`]; analyses read it. It is a struct of arrays: every [event](Events) is one row over
//! a few columns, and everything that repeats (strings, frames, stacks, streams, pools) is interned once and referred
//! to by a typed id. A million events take about 40 MB.
//!
//! ```
//! use gpuheap_record::{Event, EventKind, Frame, Recording};
//!
//! let mut recording = Recording::default();
//! let frame = Frame {
//!     function: recording.strings.intern("train"),
//!     file: recording.strings.intern("train.py"),
//!     line: 16,
//! };
//! let frame = recording.frames.insert(frame);
//! let stack = recording.stacks.intern(&[frame]);
//! let device = recording.device_mut(0);
//! device.events.push(Event { kind: EventKind::Alloc, address: 0x7f00_0000_0000, size: 4096, stack, ..Event::default() });
//! assert_eq!(device.events.len(), 1);
//! ```
#![forbid(unsafe_code)]

mod bytes;
mod event;
pub mod file;
mod id;
mod recording;
mod segment;
mod settings;
mod stack;
mod table;

pub use bytes::{Bytes, ParseBytesError};
pub use event::{Event, EventKind, Events};
pub use id::{ContextId, DeviceId, EventId, FrameId, PoolId, StackId, StreamId, StringId, TypedId};
pub use recording::{
    Annotation, AnnotationStage, Compression, Context, DeviceMemory, DeviceRecording, Format, Name, NamedAs, Note,
    Recording, Source,
};
pub use segment::{Block, BlockState, Segment, SegmentKind};
pub use settings::{AllocatorSettings, ROUNDUP_INTERVALS};
pub use stack::{DRIVER_FILE, Frame, StackTable};
pub use table::{FrameTable, PoolTable, StreamTable, StringTable, Table};
