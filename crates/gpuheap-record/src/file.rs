//! The own format of recordings on disk: `.gpuheap`.
//!
//! # Layout
//! A file is the twelve bytes of [`MAGIC`], the format's version (`u16`, little-endian) and chunks. A chunk is:
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | tag, ASCII. A reader that does not know it skips the chunk if its first letter is small, else it gives up |
//! | 4 | bytes of the stored payload (`u32`, little-endian, like all below) |
//! | 4 | bytes of the payload before compression, at most 64 MiB |
//! | 4 | CRC-32 of the twelve bytes before it and of the stored payload |
//! | … | the payload, compressed as raw deflate (RFC 1951) |
//!
//! Chunks come in groups; a group counts when its `DONE` has been read. So a file that a crash cut short, or that is
//! still being written, is read up to its last whole group, and a writer [appends](Writer::append) what is new without
//! touching what is there.
//!
//! Numbers in payloads are LEB128 (seven bits a byte, the lowest first), signed ones in zigzag form. A column is one
//! number a row; columns of addresses, times and stacks hold differences from the row before. Texts are their length
//! in bytes and UTF-8. Ids are rows of the tables, in the order in which these were written, over all groups.
//!
//! | tag | payload |
//! | --- | --- |
//! | `STRS` | new strings: count, texts |
//! | `FRMS` | new frames: count, columns function, file (strings), line |
//! | `STKS` | new stacks: count, columns caller (stacks, how far back), frame |
//! | `STRM` | new streams: count, raw handles |
//! | `POOL` | new pools: count, columns of their two numbers |
//! | `CTXT` | new contexts: count, columns compile, user (strings) |
//! | `EVNT` | new events of a device: device, count, a byte a row for the kind, columns address, size, stream, time, stack, context, and pool + 1 (0: not named), the last left out if none is named |
//! | `SEGS` | the segments of a device after its last event; replaces those of earlier groups |
//! | `ANNO` | new annotations: count, columns name, stage, device + 1 (0: none), time |
//! | `NAME` | new names of memory: count, columns device, kind, name (strings), time, address |
//! | `dmem` | what the driver said of devices: count, columns device, time, total, free, reserved, own + 1 and others' + 1 (0: not said) |
//! | `fact` | new facts: count, names and values as texts in turn |
//! | `SETS` | the allocator's settings; replaces those of earlier groups |
//! | `NOTE` | new notes: count, texts |
//! | `DONE` | nothing |
//!
//! Device 2³²−1 is pinned host memory.

mod columns;
mod decode;
mod encode;
mod error;

pub use decode::{Loaded, read};
pub use encode::{Writer, write};
pub use error::FileError;

/// The first bytes of a file. The first is no text, and line ends that a transfer changed show.
pub const MAGIC: &[u8; 12] = b"\x89gpuheap\r\n\x1a\n";

/// The version that is written.
pub const VERSION: u16 = 1;

/// The most bytes of a payload before compression.
const MOST_PAYLOAD: usize = 64 << 20;
/// What a file may become when it is decompressed, in times of its size, beside a few megabytes that every file may.
const MOST_RATIO: u64 = 250;
/// The device number of pinned host memory.
const HOST: u32 = u32::MAX;
/// The largest size of a block, a segment or a device, in bytes, and the latest time, in microseconds: as in snapshots,
/// more than any device has, and the year 9999.
const MOST_SIZE: u64 = 1 << 46;
const MOST_TIME_US: u64 = 253_402_300_799_000_000;

#[cfg(test)]
mod tests;
