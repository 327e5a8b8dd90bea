//! The lists and dicts of a snapshot while it is read.

use foldhash::fast::RandomState;
use gpuheap_record::{Events, FrameId, Recording};
use indexmap::IndexSet;

use super::fields::{Fields, Shape};
use super::lists::Lists;
use super::notes::Notes;
use super::rows::{AnnotationRow, BlockRow, HistoryRow, SegmentRow};
use super::scalars::Caches;
use super::texts::Texts;
use crate::error::{At, Cause};
use crate::pickle::{Host, Kind, Outcome, Value};

/// What a dict has become.
#[derive(Clone, Copy)]
pub(crate) enum Dict {
    /// Nothing was set yet.
    Empty,
    /// Nothing that was set so far has a meaning here.
    Foreign,
    /// What was set is kept in this slot of [`Objects::open`], until the dict is used.
    Open(u32),
    /// The same for good: it is read when the whole file is there.
    Kept(u32),
    Event(u32),
    Segment(u32),
    Block(u32),
    Annotation(u32),
    History(u32),
    Frame(FrameId),
}

/// Labels of [`Kind::Made`] values.
pub(crate) const MADE_FRAME: u8 = 0;
pub(crate) const MADE_STACK: u8 = 1;

/// Everything that is open while a snapshot is read, and the recording that grows out of it.
#[derive(Default)]
pub(crate) struct Objects {
    pub(super) texts: Texts,
    pub(super) wide: Vec<i128>,
    pub(super) floats: Vec<f64>,
    /// Tuples of two integers: pools.
    pub(super) pairs: IndexSet<(u64, u64), RandomState>,
    pub(super) lists: Lists,
    pub(super) dicts: Vec<Dict>,
    pub(super) open: Vec<Vec<(Value, Value)>>,
    free_slots: Vec<u32>,
    open_bytes: usize,
    fields: Option<Box<Fields>>,
    /// Some keys of the dict without meaning that was set last, to describe a file that is no snapshot.
    pub(super) foreign: (u32, Vec<Value>),
    pub(super) recording: Recording,
    /// The events of all devices, in the order of the file.
    pub(super) events: Events,
    pub(super) segments: Vec<SegmentRow>,
    /// Blocks that no segment took yet. Row `n` of the file's blocks is at `n - first_block`.
    pub(super) blocks: Vec<BlockRow>,
    pub(super) first_block: u32,
    /// What the blocks take that segments have.
    pub(super) block_bytes: usize,
    pub(super) annotations: Vec<AnnotationRow>,
    pub(super) histories: Vec<HistoryRow>,
    pub(super) caches: Caches,
    pub(super) notes: Notes,
    /// See [`Host::taken`].
    pub(super) taken: usize,
    /// See [`Host::allow`].
    pub(super) allowed: usize,
}

/// How many keys of a foreign dict are told.
const TOLD_KEYS: usize = 4;

impl Objects {
    pub(super) fn dict_of(&self, value: Value) -> Option<Dict> {
        self.dicts.get(value.id_of(Kind::Dict)? as usize).copied()
    }

    /// Decides what a list or dict is, now that something refers to it.
    #[inline]
    pub(super) fn settle(&mut self, value: Value, at: u64) -> Outcome<()> {
        match value.kind() {
            Kind::List => self.close_frames(value, at),
            Kind::Dict => match self.dict_of(value) {
                Some(Dict::Open(slot)) => self.settle_dict(value, slot, at),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn settle_dict(&mut self, dict: Value, slot: u32, at: u64) -> Outcome<()> {
        let pairs = self.open.get_mut(slot as usize).map(std::mem::take).unwrap_or_default();
        let mut fields = self.fields.take().unwrap_or_default();
        fields.clear();
        for &(key, value) in &pairs {
            fields.set(key, value);
        }
        let shape = Shape::of_complete(fields.keys());
        if shape == Shape::Late || (shape == Shape::Foreign && self.is_numbered(&pairs)) {
            if let Some(kept) = self.open.get_mut(slot as usize) {
                *kept = pairs;
            }
            self.set_dict(dict, Dict::Kept(slot));
        } else {
            let state = self.new_row(shape, &fields, at)?;
            self.set_dict(dict, state);
            self.free_slots.push(slot);
            self.open_bytes = self.open_bytes.saturating_sub(pairs.capacity() * size_of::<(Value, Value)>());
        }
        self.fields = Some(fields);
        Ok(())
    }

    /// Whether this is the dict of divisions in the settings, whose keys are sizes.
    fn is_numbered(&self, pairs: &[(Value, Value)]) -> bool {
        pairs.first().is_some_and(|&(key, _)| {
            let text = self.texts.get(key).unwrap_or_default();
            key.kind() == Kind::Int || (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
        })
    }

    fn set_dict(&mut self, dict: Value, state: Dict) {
        if let Some(place) = self.dicts.get_mut(dict.id() as usize) {
            *place = state;
        }
    }

    /// Keeps `pairs` until the dict is used.
    fn open_dict(&mut self, dict: Value, pairs: &[[Value; 2]]) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.open.push(Vec::new());
            u32::try_from(self.open.len() - 1).unwrap_or(u32::MAX)
        });
        self.set_dict(dict, Dict::Open(slot));
        self.keep(slot, pairs);
    }

    fn keep(&mut self, slot: u32, pairs: &[[Value; 2]]) {
        if let Some(kept) = self.open.get_mut(slot as usize) {
            let before = kept.capacity();
            kept.extend(pairs.iter().map(|&[key, value]| (key, value)));
            let grown = (kept.capacity() - before) * size_of::<(Value, Value)>();
            self.open_bytes += grown;
            self.taken += grown;
        }
    }

    /// Makes the row that a dict stands for.
    #[inline]
    fn new_row(&mut self, shape: Shape, fields: &Fields, at: u64) -> Outcome<Dict> {
        Ok(match shape {
            Shape::Event => Dict::Event(self.new_event(fields, at)?),
            Shape::Segment => Dict::Segment(self.new_segment(fields, at)?),
            Shape::Block => Dict::Block(self.new_block(fields, at)?),
            Shape::Annotation => Dict::Annotation(self.new_annotation(fields, at)?),
            Shape::History => Dict::History(self.new_history(fields, at)?),
            Shape::Frame => Dict::Frame(self.frame(fields, None)),
            Shape::Late | Shape::Unclear | Shape::Foreign => Dict::Foreign,
        })
    }

    /// Sets more keys of a dict that is a row already.
    #[cold]
    fn grow(&mut self, dict: Value, state: Dict, fields: &Fields, at: u64) -> Outcome<()> {
        match state {
            Dict::Event(row) => self.grow_event(row, fields, at),
            Dict::Segment(row) => self.grow_segment(row, fields, at),
            Dict::Block(row) => self.grow_block(row, fields, at),
            Dict::Annotation(row) => self.grow_annotation(row, fields, at),
            Dict::History(row) => self.grow_history(row, fields, at),
            Dict::Frame(frame) => {
                let frame = self.frame(fields, Some(frame));
                self.set_dict(dict, Dict::Frame(frame));
                Ok(())
            }
            Dict::Empty | Dict::Foreign | Dict::Open(_) | Dict::Kept(_) => Ok(()),
        }
    }

    /// For readers whose lists and dicts are complete when they are closed: gives back the row of `value` if it is a
    /// frame or a stack, and returns a value that does without.
    pub(super) fn complete(&mut self, value: Value, at: u64) -> Outcome<Value> {
        self.settle(value, at)?;
        if value.kind() == Kind::Dict
            && value.id() as usize + 1 == self.dicts.len()
            && let Some(Dict::Frame(frame)) = self.dict_of(value)
        {
            self.dicts.pop();
            return Ok(Value::labelled(Kind::Made, frame.get(), MADE_FRAME));
        }
        Ok(match self.lists.give_back_stack(value) {
            Some(stack) => Value::labelled(Kind::Made, stack.get(), MADE_STACK),
            None => value,
        })
    }
}

impl Host for Objects {
    #[inline]
    fn text(&mut self, text: &[u8]) -> Value {
        self.texts.intern(text)
    }

    fn wide(&mut self, value: i128) -> Value {
        let Ok(id) = u32::try_from(self.wide.len()) else { return Value::OPAQUE };
        self.wide.push(value);
        Value::handle(Kind::Wide, id)
    }

    fn float(&mut self, value: f64) -> Value {
        let Ok(id) = u32::try_from(self.floats.len()) else { return Value::OPAQUE };
        self.floats.push(value);
        Value::handle(Kind::Float, id)
    }

    #[inline]
    fn list(&mut self) -> Value {
        self.lists.new_list()
    }

    #[inline]
    fn dict(&mut self) -> Value {
        let Ok(id) = u32::try_from(self.dicts.len()) else { return Value::OPAQUE };
        self.dicts.push(Dict::Empty);
        Value::handle(Kind::Dict, id)
    }

    fn tuple(&mut self, items: &[Value], at: u64) -> Outcome<Value> {
        for &item in items {
            self.settle(item, at)?;
        }
        if let [first, second] = *items
            && let (Some(first), Some(second)) = (first.as_int(), second.as_int())
        {
            let (row, _) = self.pairs.insert_full((first.cast_unsigned(), second.cast_unsigned()));
            return Ok(u32::try_from(row).map_or(Value::OPAQUE, |row| Value::handle(Kind::Tuple, row)));
        }
        Ok(self
            .frame_of_tuple(items)
            .map_or(Value::OPAQUE, |frame| Value::labelled(Kind::Made, frame.get(), MADE_FRAME)))
    }

    #[inline]
    fn append(&mut self, list: Value, items: &[Value], at: u64) -> Outcome<()> {
        self.append_items(list, items, at)
    }

    #[inline]
    fn set_items(&mut self, dict: Value, pairs: &[Value], at: u64) -> Outcome<()> {
        let Some(state) = self.dict_of(dict) else { return Ok(()) };
        let (pairs, _) = pairs.as_chunks::<2>();
        let mut fields = self.fields.take().unwrap_or_default();
        fields.clear();
        for &[key, value] in pairs {
            fields.set(key, value);
            if matches!(value.kind(), Kind::List | Kind::Dict) {
                self.settle(value, at)?;
            }
        }
        match state {
            Dict::Empty | Dict::Foreign => {
                let shape = Shape::of(fields.keys());
                // A dict that is set key by key has more to come.
                let more = pairs.len() == 1;
                match shape {
                    Shape::Late | Shape::Unclear => self.open_dict(dict, pairs),
                    _ if more => self.open_dict(dict, pairs),
                    Shape::Foreign => {
                        self.foreign.0 = dict.id();
                        self.foreign.1.clear();
                        self.foreign.1.extend(pairs.iter().take(TOLD_KEYS).map(|&[key, _]| key));
                        if pairs.first().is_some_and(|&[key, value]| self.is_numbered(&[(key, value)])) {
                            self.open_dict(dict, pairs);
                        } else {
                            self.set_dict(dict, Dict::Foreign);
                        }
                    }
                    shape => {
                        let state = self.new_row(shape, &fields, at)?;
                        self.set_dict(dict, state);
                    }
                }
            }
            Dict::Open(slot) | Dict::Kept(slot) => self.keep(slot, pairs),
            row => self.grow(dict, row, &fields, at)?,
        }
        self.fields = Some(fields);
        Ok(())
    }

    fn text_of(&self, value: Value) -> Option<&str> {
        self.texts.get(value)
    }

    fn heap_bytes(&self) -> usize {
        let recording = &self.recording;
        let tables = self.texts.heap_bytes()
            + self.lists.heap_bytes()
            + self.dicts.capacity() * size_of::<Dict>()
            + self.wide.capacity() * size_of::<i128>()
            + self.floats.capacity() * size_of::<f64>()
            + self.pairs.capacity() * (size_of::<(u64, u64)>() + 24)
            + self.open_bytes
            + self.open.capacity() * size_of::<Vec<(Value, Value)>>()
            + self.free_slots.capacity() * size_of::<u32>();
        let rows = self.events.heap_bytes()
            + self.segments.capacity() * size_of::<SegmentRow>()
            + self.blocks.capacity() * size_of::<BlockRow>()
            + self.annotations.capacity() * size_of::<AnnotationRow>()
            + self.histories.capacity() * size_of::<HistoryRow>();
        let kept = recording.stacks.heap_bytes()
            + recording.frames.len() * 56
            + recording.strings.len() * 56
            + recording.streams.len() * 40
            + recording.pools.len() * 48
            + recording.contexts.len() * 40
            + self.block_bytes;
        tables + rows + kept
    }

    fn taken(&self) -> usize {
        self.taken
    }

    fn allow(&mut self, bytes: usize) {
        self.taken = 0;
        self.allowed = bytes;
    }
}

/// The error for an object that is used a second time, where every use must have its own.
#[cold]
pub(super) fn shared(what: &'static str, at: u64) -> Cause {
    Cause::Shared { what, at: At::Byte(at) }
}
