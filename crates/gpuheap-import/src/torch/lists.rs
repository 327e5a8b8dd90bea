//! Lists: what they hold is known from their first item, and mostly they are no more than a range of rows.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use gpuheap_record::{Frame, FrameId, StackId, StackTable, StringId};
use hashbrown::HashTable;

use super::notes::Oddity;
use super::objects::{Dict, MADE_FRAME, MADE_STACK, Objects, shared};
use crate::error::{At, Cause};
use crate::pickle::{Kind, Outcome, Value};

/// What a list holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub(crate) enum Content {
    #[default]
    Empty,
    /// Frames, in [`Lists::frames`]: `start` is the first.
    Frames,
    /// The same, closed: `start` is the stack.
    Stack,
    /// Rows of the events, one after the other.
    Events,
    /// Rows of the segments.
    Segments,
    /// Rows of the blocks.
    Blocks,
    /// Rows of the annotations.
    Annotations,
    /// Rows of the histories; only the first, which is the newest, is of interest.
    Histories,
    /// Lists and texts, in [`Lists::values`].
    Values,
    /// Nothing that is looked at.
    Foreign,
}

/// A list: what it holds, from which row on, how many.
#[derive(Clone, Copy, Default)]
pub(crate) struct List {
    pub(crate) content: Content,
    pub(crate) start: u32,
    pub(crate) length: u32,
}

impl List {
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.length as usize
    }
}

/// Every list of the file.
#[derive(Default)]
pub(crate) struct Lists {
    rows: Vec<List>,
    /// The frames of lists that nothing has used yet: usually those of one list, or none.
    frames: Vec<FrameId>,
    /// How many lists have their frames there.
    with_frames: usize,
    values: Vec<Value>,
    known: KnownStacks,
}

/// Every stack that was closed so far, as the plain list of its frames: nearly all lists repeat one of them, and
/// comparing plain lists is what that costs.
#[derive(Default)]
struct KnownStacks {
    frames: Vec<FrameId>,
    index: HashTable<KnownStack>,
    hasher: RandomState,
}

#[derive(Clone, Copy)]
struct KnownStack {
    hash: u64,
    start: usize,
    length: u32,
    stack: StackId,
}

impl KnownStacks {
    /// The stack of `frames`, or their hash.
    #[inline]
    fn find(&self, frames: &[FrameId]) -> Result<StackId, u64> {
        let hash = hash(&self.hasher, frames);
        let known = self.index.find(hash, |known| {
            known.hash == hash && self.frames.get(known.start..known.start + known.length as usize) == Some(frames)
        });
        known.map(|known| known.stack).ok_or(hash)
    }

    fn insert(&mut self, hash: u64, frames: &[FrameId], stack: StackId) {
        let Ok(length) = u32::try_from(frames.len()) else { return };
        let start = self.frames.len();
        self.frames.extend_from_slice(frames);
        self.index.insert_unique(hash, KnownStack { hash, start, length, stack }, |known| known.hash);
    }

    fn heap_bytes(&self) -> usize {
        self.frames.capacity() * size_of::<FrameId>() + self.index.capacity() * (size_of::<KnownStack>() + 1)
    }
}

fn hash(seed: &RandomState, frames: &[FrameId]) -> u64 {
    let mut hasher = seed.build_hasher();
    let (pairs, rest) = frames.as_chunks::<2>();
    for &[one, other] in pairs {
        hasher.write_u64((u64::from(one.get()) << 32) | u64::from(other.get()));
    }
    for frame in rest {
        hasher.write_u32(frame.get());
    }
    hasher.finish()
}

/// Above this length, the memory for a stack is asked for before and not after.
const LONG_STACK: usize = 4096;
/// What a frame of a new stack takes, roughly.
const STACK_BYTES: usize = 64;

impl Lists {
    #[inline]
    pub(super) fn new_list(&mut self) -> Value {
        let Ok(id) = u32::try_from(self.rows.len()) else { return Value::OPAQUE };
        self.rows.push(List::default());
        Value::handle(Kind::List, id)
    }

    pub(super) fn get(&self, list: Value) -> Option<List> {
        self.rows.get(list.id_of(Kind::List)? as usize).copied()
    }

    fn set(&mut self, list: Value, row: List) {
        if let Some(place) = self.rows.get_mut(list.id() as usize) {
            *place = row;
        }
    }

    pub(super) fn values_of(&self, list: List) -> &[Value] {
        if list.content == Content::Values { self.values.get(list.range()).unwrap_or_default() } else { &[] }
    }

    /// Takes the row of `value` away if it is the newest list and a stack: the stack says it all.
    pub(super) fn give_back_stack(&mut self, value: Value) -> Option<StackId> {
        let list = self.get(value).filter(|_| value.id() as usize + 1 == self.rows.len())?;
        if list.content != Content::Stack {
            return None;
        }
        self.rows.pop();
        Some(StackId::new(list.start))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.rows.capacity() * size_of::<List>()
            + self.frames.capacity() * size_of::<FrameId>()
            + self.values.capacity() * size_of::<Value>()
            + self.known.heap_bytes()
    }
}

/// Makes room for `added` rows at the end of `table` for a list that is `list` now: it stays where it is if nothing
/// was added behind it, else it moves.
fn to_end<T: Copy>(table: &mut Vec<T>, list: &mut List) -> usize {
    if list.range().end == table.len() {
        return 0;
    }
    let start = u32::try_from(table.len()).unwrap_or(u32::MAX);
    table.extend_from_within(list.range().start.min(table.len())..list.range().end.min(table.len()));
    list.start = start;
    list.length as usize * size_of::<T>()
}

impl Objects {
    pub(super) fn append_items(&mut self, list: Value, items: &[Value], at: u64) -> Outcome<()> {
        let (Some(&first), Some(mut row)) = (items.first(), self.lists.get(list)) else { return Ok(()) };
        if items.contains(&list) {
            return Err(shared("list", at).into());
        }
        let fresh = row.content == Content::Empty;
        if fresh {
            self.settle(first, at)?;
            (row.content, row.start) = self.content_for(first);
        }
        match row.content {
            Content::Frames | Content::Stack => return self.append_frames(list, row, items, fresh, at),
            Content::Values => return self.append_values(list, row, items, fresh, at),
            Content::Empty | Content::Foreign => {
                for &item in items {
                    self.settle(item, at)?;
                }
            }
            Content::Events | Content::Segments | Content::Blocks | Content::Annotations | Content::Histories => {
                self.append_rows(&mut row, items, at)?;
            }
        }
        self.lists.set(list, row);
        Ok(())
    }

    /// What a list holds whose first item is `first`, and its first row.
    fn content_for(&self, first: Value) -> (Content, u32) {
        match (first.kind(), self.dict_of(first)) {
            (_, Some(Dict::Frame(_))) => (Content::Frames, 0),
            (Kind::Made, _) if first.label() == MADE_FRAME => (Content::Frames, 0),
            (_, Some(Dict::Event(row))) => (Content::Events, row),
            (_, Some(Dict::Segment(row))) => (Content::Segments, row),
            (_, Some(Dict::Block(row))) => (Content::Blocks, row),
            (_, Some(Dict::Annotation(row))) => (Content::Annotations, row),
            (_, Some(Dict::History(row))) => (Content::Histories, row),
            (Kind::List | Kind::Text, _) => (Content::Values, 0),
            _ => (Content::Foreign, 0),
        }
    }

    fn append_rows(&mut self, list: &mut List, items: &[Value], at: u64) -> Outcome<()> {
        let mut left_out = 0;
        for &item in items {
            if let Some(Dict::Open(_)) = self.dict_of(item) {
                self.settle(item, at)?;
            }
            let (what, row) = match (list.content, self.dict_of(item)) {
                (Content::Events, Some(Dict::Event(row))) => ("event", row),
                (Content::Segments, Some(Dict::Segment(row))) => ("segment", row),
                (Content::Blocks, Some(Dict::Block(row))) => ("block", row),
                (Content::Annotations, Some(Dict::Annotation(row))) => ("annotation", row),
                (Content::Histories, Some(Dict::History(_))) => continue,
                _ => {
                    left_out += 1;
                    continue;
                }
            };
            if list.start.checked_add(list.length) != Some(row) {
                return Err(shared(what, at).into());
            }
            list.length += 1;
        }
        let name = match list.content {
            Content::Events => "device_traces",
            Content::Segments => "segments",
            Content::Blocks => "blocks",
            Content::Annotations => "external_annotations",
            _ => "history",
        };
        self.notes.add(Oddity::Entry(name), left_out);
        Ok(())
    }

    fn append_values(&mut self, list: Value, mut row: List, items: &[Value], fresh: bool, at: u64) -> Outcome<()> {
        for &item in items {
            self.settle(item, at)?;
        }
        if fresh {
            row.start = u32::try_from(self.lists.values.len()).unwrap_or(u32::MAX);
        }
        self.taken += to_end(&mut self.lists.values, &mut row) + size_of_val(items);
        self.lists.values.extend_from_slice(items);
        row.length = row.length.saturating_add(u32::try_from(items.len()).unwrap_or(u32::MAX));
        self.lists.set(list, row);
        Ok(())
    }

    fn append_frames(&mut self, list: Value, mut row: List, items: &[Value], fresh: bool, at: u64) -> Outcome<()> {
        if row.content == Content::Stack {
            // Interning it anew at each change would make the work quadratic, and what used it would not see the change.
            return Err(Box::new(Cause::Changed { what: "list of frames", at: At::Byte(at) }));
        }
        if fresh {
            row.start = u32::try_from(self.lists.frames.len()).unwrap_or(u32::MAX);
            self.lists.with_frames += 1;
        }
        self.taken += to_end(&mut self.lists.frames, &mut row) + items.len() * size_of::<FrameId>();
        let mut left_out = 0;
        self.lists.frames.reserve(items.len());
        for &item in items {
            if let Some(&Dict::Frame(frame)) = self.dicts.get(item.id() as usize)
                && item.kind() == Kind::Dict
            {
                self.lists.frames.push(frame);
                continue;
            }
            match self.frame_of(item, at)? {
                Some(frame) => self.lists.frames.push(frame),
                None => left_out += 1,
            }
        }
        self.notes.add(Oddity::Entry("frames"), left_out);
        row.length = u32::try_from(self.lists.frames.len().saturating_sub(row.start as usize)).unwrap_or(u32::MAX);
        self.lists.set(list, row);
        Ok(())
    }

    /// The frame that a value stands for, if it does: a dict, a tuple or, in older files, a text.
    #[cold]
    fn frame_of(&mut self, value: Value, at: u64) -> Outcome<Option<FrameId>> {
        self.settle(value, at)?;
        Ok(match (value.kind(), self.dict_of(value)) {
            (_, Some(Dict::Frame(frame))) => Some(frame),
            (Kind::Made, _) if value.label() == MADE_FRAME => Some(FrameId::new(value.id())),
            (Kind::Text, _) => self.frame_of_text(value),
            _ => None,
        })
    }

    fn frame_of_text(&mut self, text: Value) -> Option<FrameId> {
        let function = self.texts.string(text, &mut self.recording.strings)?;
        Some(self.recording.frames.insert(Frame { function, file: StringId::new(0), line: 0 }))
    }

    /// The frame of a tuple `(file, line, function, …)` or `(function, file, line)`.
    pub(super) fn frame_of_tuple(&mut self, items: &[Value]) -> Option<FrameId> {
        let (file, line, function) = match *items {
            [file, line, function, ..] if line.kind() == Kind::Int => (file, line, function),
            [function, file, line, ..] if line.kind() == Kind::Int => (file, line, function),
            _ => return None,
        };
        let function = self.texts.string(function, &mut self.recording.strings)?;
        let file = self.texts.string(file, &mut self.recording.strings)?;
        let line = line.as_int().and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
        Some(self.recording.frames.insert(Frame { function, file, line }))
    }

    /// Turns a list of frames into a stack, now that something refers to it.
    #[inline]
    pub(super) fn close_frames(&mut self, list: Value, at: u64) -> Outcome<()> {
        let Some(row) = self.lists.get(list) else { return Ok(()) };
        if row.content != Content::Frames {
            return Ok(());
        }
        let frames = self.lists.frames.get(row.range()).unwrap_or_default();
        if frames.len() > LONG_STACK && frames.len() * STACK_BYTES > self.allowed {
            return Err(Box::new(Cause::Memory { at: At::Byte(at) }));
        }
        let stack = match self.lists.known.find(frames) {
            Ok(stack) => stack,
            Err(hash) => {
                let before = self.recording.stacks.len();
                let stack = self.recording.stacks.intern(frames);
                self.taken += (self.recording.stacks.len() - before + frames.len()) * STACK_BYTES;
                self.lists.known.insert(hash, frames, stack);
                stack
            }
        };
        self.lists.set(list, List { content: Content::Stack, start: stack.get(), length: 1 });
        self.lists.with_frames = self.lists.with_frames.saturating_sub(1);
        if self.lists.with_frames == 0 {
            self.lists.frames.clear();
        } else if row.range().end == self.lists.frames.len() {
            self.lists.frames.truncate(row.start as usize);
        }
        Ok(())
    }

    /// The stack that a value stands for.
    #[inline]
    pub(super) fn stack_of(&mut self, value: Value, at: u64) -> Outcome<StackId> {
        match value.kind() {
            Kind::None => return Ok(StackTable::EMPTY),
            Kind::Made if value.label() == MADE_STACK => return Ok(StackId::new(value.id())),
            Kind::List => {}
            _ => {
                self.notes.count(Oddity::Stack);
                return Ok(StackTable::EMPTY);
            }
        }
        self.close_frames(value, at)?;
        let list = self.lists.get(value).unwrap_or_default();
        match list.content {
            Content::Empty => Ok(StackTable::EMPTY),
            Content::Stack => Ok(StackId::new(list.start)),
            Content::Values => self.stack_of_texts(value, list, at),
            _ => {
                self.notes.count(Oddity::Stack);
                Ok(StackTable::EMPTY)
            }
        }
    }

    #[cold]
    fn stack_of_texts(&mut self, value: Value, list: List, at: u64) -> Outcome<StackId> {
        let texts = self.lists.values_of(list).to_vec();
        let frames: Option<Vec<FrameId>> = texts.into_iter().map(|text| self.frame_of_text(text)).collect();
        let Some(frames) = frames else {
            self.notes.count(Oddity::Stack);
            // The next use must not look at every item again.
            self.lists.set(value, List { content: Content::Foreign, ..list });
            return Ok(StackTable::EMPTY);
        };
        if frames.len() > LONG_STACK && frames.len() * STACK_BYTES > self.allowed {
            return Err(Box::new(Cause::Memory { at: At::Byte(at) }));
        }
        let before = self.recording.stacks.len();
        let stack = self.recording.stacks.intern(&frames);
        self.taken += (self.recording.stacks.len() - before) * STACK_BYTES;
        self.lists.set(value, List { content: Content::Stack, start: stack.get(), length: 1 });
        Ok(stack)
    }
}
