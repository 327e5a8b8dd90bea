//! Every allocation as a row, for exports.

use gpuheap_record::{Bytes, EventId, FrameId, SegmentKind, StackId};

use crate::analysis::Analysis;
use crate::frames::site;
use crate::holders::backward_label;
use crate::ledger::{pool_name, stream_name};
use crate::lifetimes::{Allocation, AllocationId, Tick};
use crate::report::{Class, Site};

/// One allocation, from the request to the moment when its memory can be used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationView {
    /// Its number, in the order of birth.
    pub id: u32,
    /// Its first address.
    pub address: u64,
    /// Bytes that it takes.
    pub size: Bytes,
    /// Bytes that the program asked for.
    pub requested: Bytes,
    /// What it is for.
    pub class: Class,
    /// Why it has that class.
    pub rule: &'static str,
    /// Where it was made; empty where no frame was recorded.
    pub stack: StackId,
    /// For a block without frames that a backward pass made: the stack that started the pass; else empty.
    pub backward_root: StackId,
    /// The raw handle of its stream; 0 is the default stream.
    pub stream: u64,
    /// The pair that names its pool; `(0, 0)` is the default pool.
    pub pool: (u64, u64),
    /// The kind of its segment.
    pub kind: SegmentKind,
    /// The event that made it; `None` if it was there before the first event.
    pub born: Option<u32>,
    /// The event by which the program freed it, 0 if it had before the first; `None` if it never did.
    pub freed: Option<u32>,
    /// Whether the program had freed it before the first event, and only another stream still used it.
    pub freed_before: bool,
    /// The event from which on its memory could be used again; `None` if it never could.
    pub completed: Option<u32>,
}

impl AllocationView {
    /// Whether the program holds it at a tick.
    #[must_use]
    pub fn is_held_at(&self, tick: u32) -> bool {
        !self.freed_before && self.born.is_none_or(|event| event < tick) && self.freed.is_none_or(|event| event >= tick)
    }
}

impl Analysis {
    /// Every allocation of the device, in the order of birth.
    pub fn allocations(&self) -> impl Iterator<Item = AllocationView> + '_ {
        self.basis.replay.allocations.iter().map(|(id, row)| self.view(id, row))
    }

    pub(crate) fn view(&self, id: AllocationId, row: &Allocation) -> AllocationView {
        let lane = self.basis.replay.lanes.get(row.lane);
        let rule = self.basis.classes.rule(id);
        let event = |tick: Tick| tick.event().map(EventId::get);
        let frameless = row.stack == StackId::default() && row.born > Tick::START;
        let pass = frameless.then(|| self.basis.phases.backward_of(row.born)).flatten();
        AllocationView {
            id: id.get(),
            address: row.address,
            size: Bytes::new(row.size),
            requested: Bytes::new(row.requested),
            class: rule.class(),
            rule: rule.text(),
            stack: row.stack,
            backward_root: pass.map(|pass| pass.root).unwrap_or_default(),
            stream: lane.stream,
            pool: self.recording.pools.get(lane.pool).copied().unwrap_or_default(),
            kind: lane.kind,
            born: event(row.born),
            freed: if row.freed == Tick::START { Some(0) } else { event(row.freed) },
            freed_before: row.freed == Tick::START,
            completed: event(row.completed),
        }
    }

    /// The frame that a person should look at for what was allocated with this stack; `None` for the empty stack.
    #[must_use]
    pub fn site_frame(&self, stack: StackId) -> Option<FrameId> {
        self.basis.marks.site_frame(&self.recording, stack)
    }

    /// Whether a frame is the user's own code and not a library's.
    #[must_use]
    pub fn is_user_frame(&self, frame: FrameId) -> bool {
        self.basis.marks.is_user_frame(frame)
    }

    /// The line that a person should look at for what was allocated with this stack; `None` for the empty stack.
    #[must_use]
    pub fn site(&self, stack: StackId) -> Option<Site> {
        self.site_frame(stack).map(|frame| site(&self.recording, frame))
    }

    /// What to show for an allocation without frames: `backward pass started at train.py:16`, or that there are none.
    #[must_use]
    pub fn label(&self, allocation: &AllocationView) -> String {
        if allocation.backward_root == StackId::default() {
            "no frames recorded".to_owned()
        } else {
            backward_label(&self.recording, &self.basis.marks, allocation.backward_root)
        }
    }

    /// What the program calls an allocation, such as `model.layers.3.weight`; `None` if it has no name.
    #[must_use]
    pub fn name(&self, id: u32) -> Option<&str> {
        let (_, name) = self.basis.names.get(AllocationId::from_index(id as usize))?;
        Some(self.recording.strings.text(name))
    }

    /// The name of a stream by its raw handle, in text.
    #[must_use]
    pub fn stream_name(&self, handle: u64) -> String {
        stream_name(handle)
    }

    /// The name of a pool, in text: `default pool` or `private pool (1, 0)`.
    #[must_use]
    pub fn pool_name(&self, pool: (u64, u64)) -> String {
        match self.recording.pools.find(&pool) {
            Some(id) if id != gpuheap_record::PoolId::default() => pool_name(&self.recording, id).0,
            _ => "default pool".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpuheap_record::{Event, EventKind, Recording};

    use crate::{Analysis, Options};

    #[test]
    fn what_was_freed_before_the_first_event_is_never_held() {
        let mut recording = Recording::default();
        let event = |kind, address, size| Event { kind, address, size, ..Event::default() };
        let events = &mut recording.device_mut(0).events;
        events.push(event(EventKind::FreeCompleted, 1 << 30, 4 << 20));
        events.push(event(EventKind::Alloc, 1 << 31, 2 << 20));
        let analysis = Analysis::new(Arc::new(recording), &Options::default()).unwrap();
        for tick in 0..=2 {
            let held = analysis.allocations().filter(|row| row.is_held_at(tick));
            let bytes: u64 = held.map(|row| row.size.get()).sum();
            assert_eq!(bytes, analysis.counters(tick).0, "at {tick}");
        }
    }
}
