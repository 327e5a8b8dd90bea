//! From the keys and values of a dict to a row.

use gpuheap_record::{
    AnnotationStage, Block, BlockState, Event, EventKind, Frame, FrameId, Segment, SegmentKind, StackId, StackTable,
    StringId,
};

use super::fields::Fields;
use super::lists::Content;
use super::notes::Oddity;
use super::objects::{Objects, shared};
use super::word::Word;
use crate::pickle::{Kind, Outcome, Value};

/// No block, segment or request is larger than this: 64 TiB. Sums of sizes that hold to it stay far from overflow.
const MAX_SIZE: u64 = 1 << 46;
/// No program sees more devices than this.
pub(super) const MAX_DEVICE: u64 = 4095;

/// A segment and the device that it is on.
#[derive(Default)]
pub(crate) struct SegmentRow {
    pub(crate) device: u32,
    pub(crate) segment: Segment,
    pub(crate) has_address: bool,
    pub(crate) taken: bool,
}

/// A block; without an address it follows the one before.
#[derive(Clone, Copy, Default)]
pub(crate) struct BlockRow {
    block: Block,
    has_address: bool,
    /// Whether a segment has it.
    taken: bool,
}

/// An annotation; without a stage it is of no use.
#[derive(Clone, Copy, Default)]
pub(crate) struct AnnotationRow {
    pub(crate) name: StringId,
    pub(crate) stage: Option<AnnotationStage>,
    pub(crate) device: Option<u32>,
    pub(crate) time_us: u64,
}

/// What the block of an older snapshot was last used for.
#[derive(Clone, Copy, Default)]
pub(crate) struct HistoryRow {
    real_size: u64,
    stack: StackId,
}

/// Adds a row to its table; the number that it has there.
fn append<T>(table: &mut Vec<T>, row: T) -> u32 {
    let number = u32::try_from(table.len()).unwrap_or(u32::MAX);
    table.push(row);
    number
}

/// Events.
impl Objects {
    #[inline]
    pub(super) fn new_event(&mut self, fields: &Fields, at: u64) -> Outcome<u32> {
        let event = self.event(fields, Event { kind: EventKind::Other, ..Event::default() }, at)?;
        if fields.get(Word::Action).is_none() {
            self.notes.count(Oddity::NoAction);
        }
        Ok(self.events.push(event).get())
    }

    pub(super) fn grow_event(&mut self, row: u32, fields: &Fields, at: u64) -> Outcome<()> {
        let id = gpuheap_record::EventId::new(row);
        let event = self.event(fields, self.events.get(id), at)?;
        self.events.set(id, event);
        Ok(())
    }

    #[inline]
    fn event(&mut self, fields: &Fields, mut event: Event, at: u64) -> Outcome<Event> {
        if let Some(action) = fields.get(Word::Action) {
            event.kind = self.kind_of(action);
        }
        let free = fields.get(Word::DeviceFree).map(|value| (Word::DeviceFree, value));
        let address = fields.get(Word::Addr).map(|value| (Word::Addr, value));
        let address = if event.kind == EventKind::OutOfMemory { free.or(address) } else { address.or(free) };
        if let Some((key, value)) = address {
            event.address = self.address(key, value, at)?;
        }
        if let Some(size) = fields.get(Word::Size) {
            event.size = self.number(Word::Size, size, MAX_SIZE, at)?;
        }
        if event.kind != EventKind::OutOfMemory {
            Self::check_range(Word::Addr, event.address, event.size, at)?;
        }
        if let Some(stream) = fields.get(Word::Stream) {
            event.stream = self.stream(stream, at)?;
        }
        if let Some(time) = fields.get(Word::TimeUs) {
            event.time_us = self.number(Word::TimeUs, time, u64::MAX, at)?;
        }
        if let Some(frames) = fields.get(Word::Frames) {
            event.stack = self.stack_of(frames, at)?;
        }
        let (compile, user) = (fields.get(Word::CompileContext), fields.get(Word::UserMetadata));
        match (compile, user) {
            (None, None) => {}
            (Some(compile), Some(user)) => event.context = self.context(compile, user),
            (compile, user) => event.context = self.change_context(event.context, compile, user),
        }
        if let Some(pool) = fields.get(Word::PoolId) {
            event.pool = self.pool(Word::PoolId, pool);
        }
        Ok(event)
    }

    #[inline]
    fn kind_of(&mut self, action: Value) -> EventKind {
        const ALLOC: u8 = Word::Alloc as u8;
        const FREE_REQUESTED: u8 = Word::FreeRequested as u8;
        const FREE_COMPLETED: u8 = Word::FreeCompleted as u8;
        const SEGMENT_ALLOC: u8 = Word::SegmentAlloc as u8;
        const SEGMENT_FREE: u8 = Word::SegmentFree as u8;
        const SEGMENT_MAP: u8 = Word::SegmentMap as u8;
        const SEGMENT_UNMAP: u8 = Word::SegmentUnmap as u8;
        const OOM: u8 = Word::Oom as u8;
        const SNAPSHOT: u8 = Word::Snapshot as u8;
        const ANNOTATE: u8 = Word::Annotate as u8;
        const USER_DEFINED: u8 = Word::UserDefined as u8;
        match action.label() {
            ALLOC => EventKind::Alloc,
            FREE_REQUESTED => EventKind::FreeRequested,
            FREE_COMPLETED => EventKind::FreeCompleted,
            SEGMENT_ALLOC => EventKind::SegmentAlloc,
            SEGMENT_FREE => EventKind::SegmentFree,
            SEGMENT_MAP => EventKind::SegmentMap,
            SEGMENT_UNMAP => EventKind::SegmentUnmap,
            OOM => EventKind::OutOfMemory,
            SNAPSHOT => EventKind::Snapshot,
            ANNOTATE | USER_DEFINED => EventKind::Other,
            _ => {
                let action = self.describe(action);
                self.notes.quote(Oddity::Action, &action);
                EventKind::Other
            }
        }
    }
}

/// Segments and blocks.
impl Objects {
    pub(super) fn new_segment(&mut self, fields: &Fields, at: u64) -> Outcome<u32> {
        let row = self.segment(fields, SegmentRow::default(), at)?;
        Ok(append(&mut self.segments, row))
    }

    pub(super) fn grow_segment(&mut self, row: u32, fields: &Fields, at: u64) -> Outcome<()> {
        let before = self.segments.get_mut(row as usize).map(std::mem::take).unwrap_or_default();
        let after = self.segment(fields, before, at)?;
        if let Some(place) = self.segments.get_mut(row as usize) {
            *place = after;
        }
        Ok(())
    }

    fn segment(&mut self, fields: &Fields, mut row: SegmentRow, at: u64) -> Outcome<SegmentRow> {
        let segment = &mut row.segment;
        if let Some(device) = fields.some(Word::Device) {
            let device = self.number(Word::Device, device, MAX_DEVICE, at)?;
            row.device = u32::try_from(device).unwrap_or_default();
        }
        if let Some(address) = fields.some(Word::Address) {
            segment.address = self.address(Word::Address, address, at)?;
            row.has_address = true;
        }
        if let Some(size) = fields.some(Word::TotalSize) {
            segment.total_size = self.number(Word::TotalSize, size, MAX_SIZE, at)?;
        }
        Self::check_range(Word::Address, segment.address, segment.total_size, at)?;
        if let Some(stream) = fields.some(Word::Stream) {
            segment.stream = self.stream(stream, at)?;
        }
        if let Some(kind) = fields.get(Word::SegmentType) {
            let small = kind.label() == Word::Small as u8;
            segment.kind = if small { SegmentKind::Small } else { SegmentKind::Large };
        }
        if let Some(pool) = fields.get(Word::SegmentPoolId) {
            segment.pool = self.pool(Word::SegmentPoolId, pool).unwrap_or_default();
        }
        if let Some(expandable) = fields.get(Word::IsExpandable) {
            segment.expandable = expandable.as_bool().unwrap_or(self.integer(expandable).is_some_and(|n| n != 0));
        }
        if let Some(frames) = fields.get(Word::Frames) {
            segment.stack = self.stack_of(frames, at)?;
        }
        if let Some(blocks) = fields.some(Word::Blocks) {
            self.take_blocks(blocks, segment, at)?;
        }
        Ok(row)
    }

    /// Moves the blocks of a list into the segment that they belong to.
    fn take_blocks(&mut self, blocks: Value, segment: &mut Segment, at: u64) -> Outcome<()> {
        let list = self.lists.get(blocks).unwrap_or_default();
        match list.content {
            Content::Empty if blocks.kind() == Kind::List => return Ok(()),
            Content::Blocks => {}
            _ => {
                self.notes.count(Oddity::Part("blocks"));
                return Ok(());
            }
        }
        // Blocks belong to one segment, and come in the order of the segments.
        let (Some(start), Some(end)) = (
            list.start.checked_sub(self.first_block),
            list.start.checked_add(list.length).and_then(|end| end.checked_sub(self.first_block)),
        ) else {
            return Err(shared("block", at).into());
        };
        let rows = self.blocks.get_mut(start as usize..end as usize).unwrap_or_default();
        segment.blocks.reserve_exact(rows.len());
        let mut next = segment.address;
        for row in rows {
            if row.taken {
                return Err(shared("block", at).into());
            }
            row.taken = true;
            let mut block = row.block;
            if !row.has_address {
                block.address = next;
            }
            if block.state == BlockState::Free {
                // Recordings leave what the last user of the block had asked for.
                block.requested_size = 0;
                block.stack = StackTable::EMPTY;
            }
            next = block.address.saturating_add(block.size);
            segment.blocks.push(block);
        }
        self.taken += (end - start) as usize * size_of::<Block>();
        self.block_bytes += (end - start) as usize * size_of::<Block>();
        if end as usize == self.blocks.len() {
            self.first_block = self.first_block.saturating_add(end);
            self.blocks.clear();
        }
        Ok(())
    }

    pub(super) fn new_block(&mut self, fields: &Fields, at: u64) -> Outcome<u32> {
        let row = self.block(fields, BlockRow::default(), at)?;
        let id = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX).saturating_add(self.first_block);
        self.blocks.push(row);
        Ok(id)
    }

    pub(super) fn grow_block(&mut self, row: u32, fields: &Fields, at: u64) -> Outcome<()> {
        let index = row.checked_sub(self.first_block).ok_or_else(|| shared("block", at))? as usize;
        let before = self.blocks.get(index).copied().unwrap_or_default();
        let after = self.block(fields, before, at)?;
        if let Some(place) = self.blocks.get_mut(index) {
            *place = after;
        }
        Ok(())
    }

    fn block(&mut self, fields: &Fields, mut row: BlockRow, at: u64) -> Outcome<BlockRow> {
        let block = &mut row.block;
        if let Some(address) = fields.some(Word::Address) {
            block.address = self.address(Word::Address, address, at)?;
            row.has_address = true;
        }
        if let Some(size) = fields.get(Word::Size) {
            block.size = self.number(Word::Size, size, MAX_SIZE, at)?;
        }
        Self::check_range(Word::Address, block.address, block.size, at)?;
        if let Some(state) = fields.get(Word::State) {
            block.state = self.state_of(state);
        }
        if let Some(size) = fields.get(Word::RequestedSize) {
            block.requested_size = self.number(Word::RequestedSize, size, MAX_SIZE, at)?;
        }
        if let Some(history) = fields.some(Word::History) {
            let list = self.lists.get(history).unwrap_or_default();
            match (list.content, self.histories.get(list.start as usize)) {
                (Content::Histories, Some(newest)) => {
                    block.requested_size = newest.real_size;
                    block.stack = newest.stack;
                }
                (Content::Empty, _) if history.kind() == Kind::List => {}
                _ => self.notes.count(Oddity::Part("history")),
            }
        }
        if let Some(frames) = fields.get(Word::Frames) {
            block.stack = self.stack_of(frames, at)?;
        }
        Ok(row)
    }

    fn state_of(&mut self, state: Value) -> BlockState {
        const ALLOCATED: u8 = Word::ActiveAllocated as u8;
        const PENDING: u8 = Word::ActivePendingFree as u8;
        const AWAITING: u8 = Word::ActiveAwaitingFree as u8;
        const INACTIVE: u8 = Word::Inactive as u8;
        match state.label() {
            ALLOCATED => BlockState::Allocated,
            PENDING | AWAITING => BlockState::PendingFree,
            INACTIVE => BlockState::Free,
            _ => {
                let state = self.describe(state);
                self.notes.quote(Oddity::State, &state);
                if state.starts_with("active") { BlockState::Allocated } else { BlockState::Free }
            }
        }
    }

    pub(super) fn new_history(&mut self, fields: &Fields, at: u64) -> Outcome<u32> {
        let row = self.history(fields, HistoryRow::default(), at)?;
        Ok(append(&mut self.histories, row))
    }

    pub(super) fn grow_history(&mut self, row: u32, fields: &Fields, at: u64) -> Outcome<()> {
        let before = self.histories.get(row as usize).copied().unwrap_or_default();
        let after = self.history(fields, before, at)?;
        if let Some(place) = self.histories.get_mut(row as usize) {
            *place = after;
        }
        Ok(())
    }

    fn history(&mut self, fields: &Fields, mut row: HistoryRow, at: u64) -> Outcome<HistoryRow> {
        if let Some(size) = fields.get(Word::RealSize) {
            row.real_size = self.number(Word::RealSize, size, MAX_SIZE, at)?;
        }
        if let Some(frames) = fields.get(Word::Frames) {
            row.stack = self.stack_of(frames, at)?;
        }
        Ok(row)
    }
}

/// Annotations and frames.
impl Objects {
    pub(super) fn new_annotation(&mut self, fields: &Fields, at: u64) -> Outcome<u32> {
        let row = self.annotation(fields, AnnotationRow::default(), at)?;
        Ok(append(&mut self.annotations, row))
    }

    pub(super) fn grow_annotation(&mut self, row: u32, fields: &Fields, at: u64) -> Outcome<()> {
        let before = self.annotations.get(row as usize).copied().unwrap_or_default();
        let after = self.annotation(fields, before, at)?;
        if let Some(place) = self.annotations.get_mut(row as usize) {
            *place = after;
        }
        Ok(())
    }

    fn annotation(&mut self, fields: &Fields, mut row: AnnotationRow, at: u64) -> Outcome<AnnotationRow> {
        if let Some(name) = fields.get(Word::Name) {
            row.name = self.string(name);
        }
        if let Some(stage) = fields.get(Word::Stage) {
            row.stage = if stage.label() == Word::Start as u8 {
                Some(AnnotationStage::Start)
            } else if stage.label() == Word::End as u8 {
                Some(AnnotationStage::End)
            } else {
                None
            };
        }
        if let Some(device) = fields.get(Word::Device) {
            // A negative device stands for none.
            let device = self.integer(device).and_then(|device| u32::try_from(device).ok());
            row.device = device.filter(|&device| u64::from(device) <= MAX_DEVICE);
        }
        if let Some(time) = fields.get(Word::TimeUs) {
            row.time_us = self.number(Word::TimeUs, time, u64::MAX, at)?;
        }
        Ok(row)
    }

    pub(super) fn frame(&mut self, fields: &Fields, before: Option<FrameId>) -> FrameId {
        let mut frame = match before {
            Some(id) => self.recording.frame(id),
            None => Frame { function: StringId::default(), file: StringId::default(), line: 0 },
        };
        if let Some(name) = fields.get(Word::Name) {
            frame.function = self.string(name);
        }
        if let Some(file) = fields.get(Word::Filename) {
            frame.file = self.string(file);
        }
        if let Some(line) = fields.get(Word::Line) {
            frame.line = self.integer(line).and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
        }
        self.recording.frames.insert(frame)
    }
}
