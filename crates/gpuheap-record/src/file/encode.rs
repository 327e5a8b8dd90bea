//! Recordings to files.

use std::io::{self, Write};

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use super::columns::Sink;
use super::{HOST, MAGIC, MOST_SIZE, MOST_TIME_US, VERSION};
use crate::{AnnotationStage, BlockState, DeviceRecording, EventId, Recording, SegmentKind, StackId};

/// Rows of one chunk: small enough to be compressed in a moment.
const ROWS: usize = 1 << 16;

/// Writes a recording as one file.
pub fn write(recording: &Recording, out: impl Write) -> io::Result<()> {
    let mut writer = Writer::new(out)?;
    writer.append(recording)?;
    writer.finish()
}

/// Writes a recording that grows: each [`append`](Self::append) adds what is new as one group, which a reader takes as
/// a whole or not at all.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    strings: usize,
    frames: usize,
    stacks: usize,
    streams: usize,
    pools: usize,
    contexts: usize,
    annotations: usize,
    names: usize,
    device_memory: usize,
    facts: usize,
    notes: usize,
    /// Events written so far, by device.
    events: Vec<(u32, usize)>,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        Ok(Self {
            out,
            strings: 0,
            frames: 0,
            stacks: 0,
            streams: 0,
            pools: 0,
            contexts: 0,
            annotations: 0,
            names: 0,
            device_memory: 0,
            facts: 0,
            notes: 0,
            events: Vec::new(),
        })
    }

    /// Writes what `recording` has more than at the last call, and its state now. Tables and events only ever grow
    /// between calls.
    pub fn append(&mut self, recording: &Recording) -> io::Result<()> {
        self.tables(recording)?;
        for device in &recording.devices {
            self.device(device, device.device.get())?;
        }
        if let Some(host) = &recording.host {
            self.device(host, HOST)?;
        }
        self.rest(recording)?;
        self.chunk(*b"DONE", &Sink::default())?;
        self.out.flush()
    }

    /// Ends the file.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn chunk(&mut self, tag: [u8; 4], payload: &Sink) -> io::Result<()> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(6));
        encoder.write_all(&payload.bytes)?;
        let stored = encoder.finish()?;
        let length = |bytes: usize| {
            u32::try_from(bytes).map_err(|_| io::Error::other("a part of the recording is larger than 4 GiB"))
        };
        let lengths = [length(stored.len())?.to_le_bytes(), length(payload.bytes.len())?.to_le_bytes()];
        let header = [tag, lengths[0], lengths[1]].concat();
        let mut crc = Crc::new();
        crc.update(&header);
        crc.update(&stored);
        self.out.write_all(&header)?;
        self.out.write_all(&crc.sum().to_le_bytes())?;
        self.out.write_all(&stored)
    }

    /// The new rows of a table, in chunks of bounded size.
    fn table<T: Copy>(&mut self, tag: [u8; 4], rows: &[T], mut encode: impl FnMut(&mut Sink, &[T])) -> io::Result<()> {
        for rows in rows.chunks(ROWS) {
            let mut sink = Sink::default();
            sink.number(rows.len() as u64);
            encode(&mut sink, rows);
            self.chunk(tag, &sink)?;
        }
        Ok(())
    }

    fn tables(&mut self, recording: &Recording) -> io::Result<()> {
        let strings: Vec<&str> = recording.strings.iter().skip(self.strings).map(|(_, text)| &**text).collect();
        // Long texts need chunks of fewer rows.
        let mut from = 0;
        while from < strings.len() {
            let mut bytes = 0;
            let more = strings[from..].iter().take(ROWS).take_while(|text| {
                bytes += text.len();
                bytes < 1 << 20
            });
            let to = from + more.count().max(1);
            self.table(*b"STRS", &strings[from..to], |sink, texts| {
                for text in texts {
                    sink.text(text);
                }
            })?;
            from = to;
        }
        self.strings = recording.strings.len();

        let frames: Vec<_> = recording.frames.iter().skip(self.frames).map(|(_, frame)| *frame).collect();
        self.table(*b"FRMS", &frames, |sink, frames| {
            sink.deltas(frames.iter().map(|frame| u64::from(frame.function.get())));
            sink.deltas(frames.iter().map(|frame| u64::from(frame.file.get())));
            sink.deltas(frames.iter().map(|frame| u64::from(frame.line)));
        })?;
        self.frames = recording.frames.len();

        // Stack 0 is the empty one and known to all.
        let stacks: Vec<StackId> = (self.stacks.max(1)..recording.stacks.len()).map(StackId::from_index).collect();
        self.table(*b"STKS", &stacks, |sink, stacks| {
            sink.column(stacks.iter().map(|&stack| u64::from(stack.get() - recording.stacks.caller(stack).get())));
            let frame = |stack: &StackId| recording.stacks.innermost(*stack).unwrap_or_default();
            sink.deltas(stacks.iter().map(|stack| u64::from(frame(stack).get())));
        })?;
        self.stacks = recording.stacks.len();

        let streams: Vec<u64> = recording.streams.iter().skip(self.streams).map(|(_, &handle)| handle).collect();
        self.table(*b"STRM", &streams, |sink, handles| sink.column(handles.iter().copied()))?;
        self.streams = recording.streams.len();

        let pools: Vec<(u64, u64)> = recording.pools.iter().skip(self.pools).map(|(_, &pool)| pool).collect();
        self.table(*b"POOL", &pools, |sink, pools| {
            sink.column(pools.iter().map(|pool| pool.0));
            sink.column(pools.iter().map(|pool| pool.1));
        })?;
        self.pools = recording.pools.len();

        let contexts: Vec<_> = recording.contexts.iter().skip(self.contexts).map(|(_, context)| *context).collect();
        self.table(*b"CTXT", &contexts, |sink, contexts| {
            sink.column(contexts.iter().map(|context| u64::from(context.compile.get())));
            sink.column(contexts.iter().map(|context| u64::from(context.user.get())));
        })?;
        self.contexts = recording.contexts.len();
        Ok(())
    }

    fn device(&mut self, device: &DeviceRecording, number: u32) -> io::Result<()> {
        let events = &device.events;
        let index = match self.events.iter().position(|&(of, _)| of == number) {
            Some(index) => index,
            None => {
                self.events.push((number, 0));
                self.events.len() - 1
            }
        };
        let rows: Vec<EventId> = (self.events[index].1..events.len()).map(EventId::from_index).collect();
        for rows in rows.chunks(ROWS) {
            let mut sink = Sink::default();
            sink.number(u64::from(number));
            sink.number(rows.len() as u64);
            sink.bytes.extend(rows.iter().map(|&id| events.kind(id) as u8));
            sink.deltas(rows.iter().map(|&id| events.address(id)));
            sink.column(rows.iter().map(|&id| events.size(id)));
            sink.column(rows.iter().map(|&id| u64::from(events.stream(id).get())));
            // A snapshot may say any time; the file must be one that is read.
            sink.deltas(rows.iter().map(|&id| events.get(id).time_us.min(MOST_TIME_US)));
            sink.deltas(rows.iter().map(|&id| u64::from(events.stack(id).get())));
            sink.column(rows.iter().map(|&id| u64::from(events.get(id).context.get())));
            let pool = |id: &EventId| events.get(*id).pool.map_or(0, |pool| u64::from(pool.get()) + 1);
            if rows.iter().any(|id| pool(id) > 0) {
                sink.column(rows.iter().map(pool));
            }
            self.chunk(*b"EVNT", &sink)?;
        }
        self.events[index].1 = events.len();
        self.segments(device, number)
    }

    fn segments(&mut self, device: &DeviceRecording, number: u32) -> io::Result<()> {
        // Each chunk says how many segments come before it, so that a large state can be in several.
        let mut before = 0;
        loop {
            let mut blocks = 0;
            let here = device.segments[before..].iter().take_while(|segment| {
                blocks += segment.blocks.len() + 1;
                blocks <= ROWS
            });
            let count = here.count().max(1).min(device.segments.len() - before);
            let mut sink = Sink::default();
            sink.number(u64::from(number));
            sink.number(before as u64);
            sink.number(count as u64);
            for segment in &device.segments[before..before + count] {
                sink.number(segment.address);
                sink.number(segment.total_size);
                sink.number(u64::from(segment.stream.get()));
                sink.number(u64::from(segment.kind == SegmentKind::Large) | u64::from(segment.expandable) << 1);
                sink.number(u64::from(segment.pool.get()));
                sink.number(u64::from(segment.stack.get()));
                sink.number(segment.blocks.len() as u64);
                for block in &segment.blocks {
                    sink.signed(block.address.wrapping_sub(segment.address).cast_signed());
                    sink.number(block.size);
                    sink.number(block.requested_size);
                    sink.number(match block.state {
                        BlockState::Allocated => 0,
                        BlockState::PendingFree => 1,
                        BlockState::Free => 2,
                    });
                    sink.number(u64::from(block.stack.get()));
                }
            }
            self.chunk(*b"SEGS", &sink)?;
            before += count;
            if before >= device.segments.len() {
                return Ok(());
            }
        }
    }

    fn rest(&mut self, recording: &Recording) -> io::Result<()> {
        let annotations = &recording.annotations[self.annotations.min(recording.annotations.len())..];
        self.table(*b"ANNO", annotations, |sink, rows| {
            sink.column(rows.iter().map(|row| u64::from(row.name.get())));
            sink.column(rows.iter().map(|row| u64::from(row.stage == AnnotationStage::End)));
            sink.column(rows.iter().map(|row| row.device.map_or(0, |device| u64::from(device.get()) + 1)));
            sink.deltas(rows.iter().map(|row| row.time_us));
        })?;
        self.annotations = recording.annotations.len();

        let names = &recording.names[self.names.min(recording.names.len())..];
        self.table(*b"NAME", names, |sink, rows| {
            sink.column(rows.iter().map(|row| u64::from(row.device.get())));
            sink.column(rows.iter().map(|row| row.named_as as u64));
            sink.deltas(rows.iter().map(|row| u64::from(row.name.get())));
            sink.deltas(rows.iter().map(|row| row.time_us));
            sink.deltas(rows.iter().map(|row| row.address));
        })?;
        self.names = recording.names.len();

        let memory = &recording.device_memory[self.device_memory.min(recording.device_memory.len())..];
        self.table(*b"dmem", memory, |sink, rows| {
            sink.column(rows.iter().map(|row| u64::from(row.device.get())));
            // What a driver says may be out of range; the file must be one that is read.
            sink.deltas(rows.iter().map(|row| row.time_us.min(MOST_TIME_US)));
            sink.column(rows.iter().map(|row| row.total.min(MOST_SIZE)));
            sink.column(rows.iter().map(|row| row.free.min(MOST_SIZE)));
            sink.column(rows.iter().map(|row| row.reserved.min(MOST_SIZE)));
            let known = |bytes: Option<u64>| bytes.map_or(0, |bytes| bytes.min(MOST_SIZE) + 1);
            sink.column(rows.iter().map(|row| known(row.own)));
            sink.column(rows.iter().map(|row| known(row.others)));
        })?;
        self.device_memory = recording.device_memory.len();

        let facts = &recording.facts[self.facts.min(recording.facts.len())..];
        let facts: Vec<(&str, &str)> = facts.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.table(*b"fact", &facts, |sink, facts| {
            for (name, value) in facts {
                sink.text(name);
                sink.text(value);
            }
        })?;
        self.facts = recording.facts.len();

        let settings = &recording.settings;
        let mut sink = Sink::default();
        sink.number(u64::from(settings.known) | u64::from(settings.expandable_segments) << 1);
        sink.text(&settings.conf);
        sink.number(settings.max_split_size.map_or(0, |size| size.saturating_add(1)));
        sink.bytes.extend(settings.garbage_collection_threshold.to_le_bytes());
        sink.column(settings.roundup_power2_divisions.iter().copied());
        sink.number(settings.all.len() as u64);
        for (name, value) in &settings.all {
            sink.text(name);
            sink.text(value);
        }
        self.chunk(*b"SETS", &sink)?;

        let notes: Vec<&str> = recording.notes.iter().skip(self.notes).map(|note| note.0.as_str()).collect();
        self.table(*b"NOTE", &notes, |sink, notes| {
            for note in notes {
                sink.text(note);
            }
        })?;
        self.notes = recording.notes.len();
        Ok(())
    }
}
