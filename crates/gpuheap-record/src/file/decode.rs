//! Files to recordings.

use std::io::{self, Read};

use flate2::Crc;
use flate2::read::DeflateDecoder;

use super::columns::{Cursor, Problem};
use super::error::FileError;
use super::{HOST, MAGIC, MOST_PAYLOAD, MOST_RATIO, MOST_SIZE, MOST_TIME_US, VERSION};
use crate::{
    Annotation, AnnotationStage, Block, BlockState, Context, ContextId, DeviceId, DeviceMemory, DeviceRecording, Event,
    EventKind, Events, Frame, FrameId, Name, NamedAs, Note, PoolId, Recording, Segment, SegmentKind, StackId, StreamId,
    StringId,
};

/// Bytes of a chunk before its payload.
const HEADER: usize = 16;
/// The parts that are known, `DONE` apart.
const TAGS: [&[u8; 4]; 14] = [
    b"STRS", b"FRMS", b"STKS", b"STRM", b"POOL", b"CTXT", b"EVNT", b"SEGS", b"ANNO", b"NAME", b"dmem", b"fact",
    b"SETS", b"NOTE",
];
/// What every file may become, however small it is.
const FLOOR: u64 = 16 << 20;
/// Notes beyond this many are only counted.
const MOST_NOTES: usize = 200;
/// The problem of a part that would take memory out of proportion to the file.
const TOO_LARGE: Problem = "it is too large";

/// A recording that was read.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The recording, up to the last whole group.
    pub recording: Recording,
    /// Where the last whole group ends, in bytes of the file.
    pub whole: u64,
    /// Why reading ended there; `None` if that is the end of the file.
    pub lost: Option<&'static str>,
}

/// Reads a file of the own format. What follows the last whole group is left out, and [`Loaded::lost`] says why.
pub fn read(mut input: impl Read) -> Result<Loaded, FileError> {
    let failed = |offset| move |source| FileError::Read { offset, source };
    let mut start = [0; MAGIC.len() + 2];
    if fill(&mut input, &mut start).map_err(failed(0))? < start.len() || !start.starts_with(MAGIC) {
        return Err(FileError::NotARecording);
    }
    let version = u16::from_le_bytes([start[MAGIC.len()], start[MAGIC.len() + 1]]);
    if version == 0 {
        return Err(FileError::NotARecording);
    }
    if version > VERSION {
        return Err(FileError::Newer { what: format!("version {version}"), offset: MAGIC.len() as u64 });
    }
    let mut state = State::new();
    let mut offset = start.len() as u64;
    let mut whole = None;
    let mut inflated = 0_u64;
    let lost = loop {
        let mut header = [0; HEADER];
        match fill(&mut input, &mut header).map_err(failed(offset))? {
            0 => break (whole != Some(offset)).then_some("the file ends within a group"),
            HEADER => {}
            _ => break Some("the file ends within a part"),
        }
        let [tag, stored, raw, crc] = split(&header);
        let (stored, raw) = (u32::from_le_bytes(stored) as usize, u32::from_le_bytes(raw) as usize);
        let mut payload = Vec::new();
        // What a damaged header asks for is not reserved before it is there.
        let read = input.by_ref().take(stored as u64).read_to_end(&mut payload).map_err(failed(offset))?;
        if read < stored {
            break Some("the file ends within a part");
        }
        let mut sum = Crc::new();
        sum.update(&header[..HEADER - 4]);
        sum.update(&payload);
        if sum.sum() != u32::from_le_bytes(crc) {
            break Some("a part is damaged");
        }
        let end = offset + (HEADER + stored) as u64;
        inflated += raw as u64;
        if raw > MOST_PAYLOAD || inflated > FLOOR + end * MOST_RATIO {
            return Err(FileError::TooLarge { offset });
        }
        let malformed = |what| FileError::Malformed { tag: String::from_utf8_lossy(&tag).into_owned(), offset, what };
        if &tag == b"DONE" {
            state.commit();
            whole = Some(end);
        } else if tag[0].is_ascii_uppercase() || TAGS.contains(&&tag) {
            let mut bytes = Vec::with_capacity(raw);
            let inflate = DeflateDecoder::new(payload.as_slice()).take(raw as u64 + 1).read_to_end(&mut bytes);
            if inflate.is_err() || bytes.len() != raw {
                return Err(malformed("it does not decompress to what it says"));
            }
            if !TAGS.contains(&&tag) {
                return Err(FileError::Newer { what: format!("part `{}`", String::from_utf8_lossy(&tag)), offset });
            }
            state.room = FLOOR + end * MOST_RATIO;
            state.chunk(tag, &bytes).map_err(|what| match what {
                TOO_LARGE => FileError::TooLarge { offset },
                what => malformed(what),
            })?;
        }
        offset = end;
    };
    let Some(whole) = whole else {
        return Err(FileError::Damaged { offset, what: lost.unwrap_or("there is nothing in it") });
    };
    Ok(Loaded { recording: state.finish(), whole, lost })
}

/// Reads until the buffer is full or the input ends; says how much there was.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match input.read(&mut buffer[read..]) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

fn split(header: &[u8; HEADER]) -> [[u8; 4]; 4] {
    let word = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
    [word(0), word(4), word(8), word(12)]
}

/// The recording so far: events go in at once and are taken out again if their group is not whole, the rest waits.
struct State {
    recording: Recording,
    settings: Option<crate::AllocatorSettings>,
    annotations: Vec<Annotation>,
    names: Vec<Name>,
    device_memory: Vec<DeviceMemory>,
    facts: Vec<(String, String)>,
    notes: Vec<Note>,
    segments: Vec<(u32, Vec<Segment>)>,
    /// Bytes of memory that what was read takes, about, and that it may take.
    taken: u64,
    room: u64,
    /// Notes that were not kept.
    more_notes: usize,
    /// Events of whole groups, by device.
    whole: Vec<(u32, usize)>,
}

impl State {
    fn new() -> Self {
        // Unlike a new recording, without the rows that all have: the file names them.
        let recording = Recording {
            strings: crate::StringTable::new(),
            streams: crate::StreamTable::new(),
            pools: crate::PoolTable::new(),
            contexts: crate::Table::new(),
            ..Recording::default()
        };
        Self {
            recording,
            settings: None,
            annotations: Vec::new(),
            names: Vec::new(),
            device_memory: Vec::new(),
            facts: Vec::new(),
            notes: Vec::new(),
            segments: Vec::new(),
            taken: 0,
            room: 0,
            more_notes: 0,
            whole: Vec::new(),
        }
    }

    /// Takes room for `count` rows of about `bytes` bytes of memory each, before they are read.
    fn take(&mut self, count: usize, bytes: usize) -> Result<(), Problem> {
        self.taken = self.taken.saturating_add((count as u64).saturating_mul(bytes as u64));
        if self.taken > self.room { Err(TOO_LARGE) } else { Ok(()) }
    }

    fn chunk(&mut self, tag: [u8; 4], bytes: &[u8]) -> Result<(), Problem> {
        let mut cursor = Cursor { bytes };
        match &tag {
            b"STRS" => self.strings(&mut cursor)?,
            b"FRMS" => self.frames(&mut cursor)?,
            b"STKS" => self.stacks(&mut cursor)?,
            b"STRM" => {
                let count = cursor.count(1)?;
                self.take(count, 48)?;
                let handles = cursor.column(count, Cursor::number)?;
                fresh(handles.into_iter().map(|handle| {
                    let next = self.recording.streams.len();
                    self.recording.streams.insert(handle).index() == next
                }))?;
            }
            b"POOL" => {
                let count = cursor.count(2)?;
                self.take(count, 80)?;
                let first = cursor.column(count, Cursor::number)?;
                let second = cursor.column(count, Cursor::number)?;
                fresh(first.into_iter().zip(second).map(|pool| {
                    let next = self.recording.pools.len();
                    self.recording.pools.insert(pool).index() == next
                }))?;
            }
            b"CTXT" => {
                let count = cursor.count(2)?;
                self.take(count, 56)?;
                let strings = self.recording.strings.len();
                let compile = cursor.column(count, |cursor| cursor.below(strings))?;
                let user = cursor.column(count, |cursor| cursor.below(strings))?;
                fresh(compile.into_iter().zip(user).map(|(compile, user)| {
                    let context = Context { compile: StringId::new(compile), user: StringId::new(user) };
                    let next = self.recording.contexts.len();
                    self.recording.contexts.insert(context).index() == next
                }))?;
            }
            b"EVNT" => self.events(&mut cursor)?,
            b"SEGS" => self.segments(&mut cursor)?,
            b"ANNO" => self.annotations(&mut cursor)?,
            b"NAME" => self.names(&mut cursor)?,
            b"dmem" => self.device_memory(&mut cursor)?,
            b"fact" => {
                for _ in 0..cursor.count(2)? {
                    let (name, value) = (cursor.text()?, cursor.text()?);
                    self.take(1, 96 + name.len() + value.len())?;
                    self.facts.push((name.to_owned(), value.to_owned()));
                }
            }
            b"SETS" => {
                // Pairs of texts, of two bytes at least.
                self.take(cursor.bytes.len() / 2, 56)?;
                self.settings = Some(settings(&mut cursor)?);
            }
            _ => {
                for _ in 0..cursor.count(1)? {
                    let text = cursor.text()?;
                    if self.notes.len() < MOST_NOTES {
                        self.take(1, 24 + text.len())?;
                        self.notes.push(Note(text.to_owned()));
                    } else {
                        self.more_notes += 1;
                    }
                }
            }
        }
        cursor.end()
    }

    fn strings(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Problem> {
        for _ in 0..cursor.count(1)? {
            let text = cursor.text()?;
            self.take(1, 48 + text.len())?;
            let next = self.recording.strings.len();
            fresh([self.recording.strings.intern(text).index() == next])?;
        }
        Ok(())
    }

    fn frames(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Problem> {
        let count = cursor.count(3)?;
        self.take(count, 48)?;
        let functions = cursor.deltas(count)?;
        let files = cursor.deltas(count)?;
        let lines = cursor.deltas(count)?;
        let strings = self.recording.strings.len() as u64;
        for ((function, file), line) in functions.into_iter().zip(files).zip(lines) {
            let text = |row: u64| {
                let row = u32::try_from(row).ok().filter(|&row| u64::from(row) < strings);
                row.map(StringId::new).ok_or("it names a text that is not there")
            };
            let line = u32::try_from(line).map_err(|_| "a line is too large")?;
            let next = self.recording.frames.len();
            let frame = Frame { function: text(function)?, file: text(file)?, line };
            fresh([self.recording.frames.insert(frame).index() == next])?;
        }
        Ok(())
    }

    fn stacks(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Problem> {
        let count = cursor.count(2)?;
        self.take(count, 48)?;
        let back = cursor.column(count, Cursor::number)?;
        let frames = cursor.deltas(count)?;
        for (back, frame) in back.into_iter().zip(frames) {
            let next = self.recording.stacks.len();
            let caller = usize::try_from(back).ok().filter(|&back| back > 0).and_then(|back| next.checked_sub(back));
            let caller = caller.map(StackId::from_index).ok_or("it names a stack that is not there")?;
            let frame = usize::try_from(frame).ok().filter(|&frame| frame < self.recording.frames.len());
            let frame = frame.map(FrameId::from_index).ok_or("it names a frame that is not there")?;
            fresh([self.recording.stacks.child(caller, frame).index() == next])?;
        }
        Ok(())
    }

    fn device(&mut self, number: u32) -> &mut DeviceRecording {
        if number == HOST {
            self.recording.host.get_or_insert_with(DeviceRecording::default)
        } else {
            self.recording.device_mut(number)
        }
    }

    fn events(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Problem> {
        let number = cursor.small()?;
        let count = cursor.count(7)?;
        // The columns while they are read, and the rows.
        self.take(count, 96)?;
        let recording = &self.recording;
        let [streams, stacks, contexts, pools] =
            [recording.streams.len(), recording.stacks.len(), recording.contexts.len(), recording.pools.len()];
        let kinds = cursor.raw(count)?;
        let addresses = cursor.deltas(count)?;
        let sizes = cursor.column(count, size)?;
        let of_stream = cursor.column(count, |cursor| cursor.below(streams))?;
        let times_us = cursor.deltas(count)?;
        if times_us.iter().any(|&time| time > MOST_TIME_US) {
            return Err("a time is out of range");
        }
        let of_stack = cursor.deltas(count)?;
        let of_context = cursor.column(count, |cursor| cursor.below(contexts))?;
        let of_pool = if cursor.bytes.is_empty() {
            Vec::new()
        } else {
            cursor.column(count, |cursor| cursor.below(pools.saturating_add(1)))?
        };
        let events = &mut self.device(number).events;
        for (row, &kind) in kinds.iter().enumerate() {
            let stack = usize::try_from(of_stack[row]).ok().filter(|&stack| stack < stacks);
            events.push(Event {
                kind: event_kind(kind)?,
                address: addresses[row],
                size: sizes[row],
                stream: StreamId::new(of_stream[row]),
                time_us: times_us[row],
                stack: stack.map(StackId::from_index).ok_or("it names a stack that is not there")?,
                context: ContextId::new(of_context[row]),
                pool: of_pool.get(row).and_then(|pool| pool.checked_sub(1)).map(PoolId::new),
            });
        }
        Ok(())
    }

    fn segments(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Problem> {
        let number = cursor.small()?;
        let before = cursor.number()?;
        let recording = &self.recording;
        let [streams, stacks, pools] = [recording.streams.len(), recording.stacks.len(), recording.pools.len()];
        let mut segments = Vec::new();
        for _ in 0..cursor.count(7)? {
            self.take(1, 96)?;
            let (address, total_size) = (cursor.number()?, size(cursor)?);
            let stream = StreamId::new(cursor.below(streams)?);
            let flags = cursor.below(4)?;
            let pool = PoolId::new(cursor.below(pools)?);
            let stack = StackId::new(cursor.below(stacks)?);
            let count = cursor.count(5)?;
            self.take(count, 48)?;
            let blocks = cursor.column(count, |cursor| {
                Ok(Block {
                    address: address.wrapping_add(cursor.signed()?.cast_unsigned()),
                    size: size(cursor)?,
                    requested_size: size(cursor)?,
                    state: match cursor.below(3)? {
                        0 => BlockState::Allocated,
                        1 => BlockState::PendingFree,
                        _ => BlockState::Free,
                    },
                    stack: StackId::new(cursor.below(stacks)?),
                })
            })?;
            let kind = if flags & 1 == 1 { SegmentKind::Large } else { SegmentKind::Small };
            segments.push(Segment {
                address,
                total_size,
                stream,
                kind,
                pool,
                expandable: flags & 2 == 2,
                stack,
                blocks,
            });
        }
        match self.segments.iter_mut().find(|(of, _)| *of == number) {
            Some((_, known)) if before == known.len() as u64 => known.append(&mut segments),
            Some((_, known)) if before == 0 => *known = segments,
            None if before == 0 => self.segments.push((number, segments)),
            _ => return Err("segments before it are missing"),
        }
        Ok(())
    }

    fn device_memory(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Problem> {
        let count = cursor.count(7)?;
        self.take(count, 160)?;
        let devices = cursor.column(count, Cursor::small)?;
        let times_us = cursor.deltas(count)?;
        if times_us.iter().any(|&time| time > MOST_TIME_US) {
            return Err("a time is out of range");
        }
        let total = cursor.column(count, size)?;
        let free = cursor.column(count, size)?;
        let reserved = cursor.column(count, size)?;
        let own = cursor.column(count, Cursor::number)?;
        let others = cursor.column(count, Cursor::number)?;
        if own.iter().chain(&others).any(|&bytes| bytes > MOST_SIZE + 1) {
            return Err("a size is out of range");
        }
        for (row, device) in devices.into_iter().enumerate() {
            self.device_memory.push(DeviceMemory {
                device: DeviceId::new(device),
                time_us: times_us[row],
                total: total[row],
                free: free[row],
                reserved: reserved[row],
                own: own[row].checked_sub(1),
                others: others[row].checked_sub(1),
            });
        }
        Ok(())
    }

    fn annotations(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Problem> {
        let count = cursor.count(4)?;
        self.take(count, 56)?;
        let strings = self.recording.strings.len();
        let names = cursor.column(count, |cursor| cursor.below(strings))?;
        let stages = cursor.column(count, |cursor| cursor.below(2))?;
        let devices = cursor.column(count, Cursor::small)?;
        let times_us = cursor.deltas(count)?;
        for (row, name) in names.into_iter().enumerate() {
            self.annotations.push(Annotation {
                name: StringId::new(name),
                stage: if stages[row] == 0 { AnnotationStage::Start } else { AnnotationStage::End },
                device: devices[row].checked_sub(1).map(DeviceId::new),
                time_us: times_us[row],
            });
        }
        Ok(())
    }

    fn names(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Problem> {
        let count = cursor.count(5)?;
        self.take(count, 72)?;
        let strings = self.recording.strings.len();
        let devices = cursor.column(count, Cursor::small)?;
        let kinds = cursor.column(count, |cursor| cursor.below(NamedAs::ALL.len()))?;
        let names = cursor.deltas(count)?;
        let times_us = cursor.deltas(count)?;
        let addresses = cursor.deltas(count)?;
        for (row, name) in names.into_iter().enumerate() {
            let name = usize::try_from(name).ok().filter(|&name| name < strings);
            self.names.push(Name {
                device: DeviceId::new(devices[row]),
                address: addresses[row],
                time_us: times_us[row],
                named_as: NamedAs::ALL[kinds[row] as usize],
                name: name.map(StringId::from_index).ok_or("it names a text that is not there")?,
            });
        }
        Ok(())
    }

    /// The group is whole.
    fn commit(&mut self) {
        for (number, segments) in std::mem::take(&mut self.segments) {
            self.device(number).segments = segments;
        }
        self.recording.annotations.append(&mut self.annotations);
        self.recording.names.append(&mut self.names);
        self.recording.device_memory.append(&mut self.device_memory);
        self.recording.facts.append(&mut self.facts);
        self.recording.notes.append(&mut self.notes);
        if let Some(settings) = self.settings.take() {
            self.recording.settings = settings;
        }
        let recording = &self.recording;
        self.whole = recording.devices.iter().map(|device| (device.device.get(), device.events.len())).collect();
        self.whole.extend(recording.host.as_ref().map(|host| (HOST, host.events.len())));
    }

    /// The recording without what was not whole.
    fn finish(mut self) -> Recording {
        let whole = std::mem::take(&mut self.whole);
        let count = |number: u32| whole.iter().find(|&&(of, _)| of == number).map(|&(_, count)| count);
        let cut = |events: &mut Events, count: usize| {
            if count < events.len() {
                events.keep_first(count);
            }
        };
        self.recording.devices.retain_mut(|device| {
            let count = count(device.device.get());
            cut(&mut device.events, count.unwrap_or(0));
            count.is_some()
        });
        self.recording.host = self.recording.host.take().and_then(|mut host| {
            cut(&mut host.events, count(HOST)?);
            Some(host)
        });
        if self.more_notes > 0 {
            self.recording.notes.push(Note(format!("{} more notes are left out", self.more_notes)));
        }
        // What every recording has.
        self.recording.strings.intern("");
        self.recording.streams.insert(0);
        self.recording.pools.insert((0, 0));
        self.recording.contexts.insert(Context::default());
        self.recording
    }
}

/// Rows of tables are new, each of them: ids count them.
fn fresh(rows: impl IntoIterator<Item = bool>) -> Result<(), Problem> {
    if rows.into_iter().all(|is_new| is_new) { Ok(()) } else { Err("a row is there twice") }
}

/// The size of a block or a segment.
fn size(cursor: &mut Cursor<'_>) -> Result<u64, Problem> {
    let size = cursor.number()?;
    if size > MOST_SIZE { Err("a size is out of range") } else { Ok(size) }
}

fn event_kind(byte: u8) -> Result<EventKind, Problem> {
    EventKind::ALL.get(usize::from(byte)).copied().ok_or("it has a kind of event that is not known")
}

fn settings(cursor: &mut Cursor<'_>) -> Result<crate::AllocatorSettings, Problem> {
    let flags = cursor.below(4)?;
    let conf = cursor.text()?.to_owned();
    let max_split_size = cursor.number()?.checked_sub(1);
    let threshold = cursor.raw(8)?;
    let threshold = f64::from_le_bytes(threshold.try_into().map_err(|_| "it ends too early")?);
    let mut settings = crate::AllocatorSettings {
        known: flags & 1 == 1,
        conf,
        max_split_size,
        garbage_collection_threshold: if threshold.is_finite() { threshold.clamp(0.0, 1.0) } else { 0.0 },
        expandable_segments: flags & 2 == 2,
        ..crate::AllocatorSettings::default()
    };
    for divisions in &mut settings.roundup_power2_divisions {
        *divisions = cursor.number()?;
    }
    let count = cursor.count(2)?;
    settings.all = cursor.column(count, |cursor| Ok((cursor.text()?.to_owned(), cursor.text()?.to_owned())))?;
    Ok(settings)
}
