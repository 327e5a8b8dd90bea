//! Events: one change each, stored by column.

use crate::id::{ContextId, EventId, PoolId, StackId, StreamId};

/// What an event changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum EventKind {
    /// The allocator gave a block to the program.
    #[default]
    Alloc,
    /// The program dropped the block; other streams may still use it.
    FreeRequested,
    /// The block can be used again.
    FreeCompleted,
    /// A segment came from the driver.
    SegmentAlloc,
    /// A segment went back to the driver.
    SegmentFree,
    /// A range of an expandable segment got physical memory.
    SegmentMap,
    /// A range of an expandable segment lost its physical memory.
    SegmentUnmap,
    /// An allocation failed for want of memory.
    OutOfMemory,
    /// The program took a snapshot here.
    Snapshot,
    /// Anything else: a text attached to a block, or an action that this version does not know.
    Other,
}

impl EventKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::OutOfMemory,
        Self::Snapshot,
        Self::Other,
    ];
}

/// One row of [`Events`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Event {
    /// What changed.
    pub kind: EventKind,
    /// First address of the block, segment or range. For [`EventKind::OutOfMemory`], which has no address, the bytes
    /// that the driver still had free.
    pub address: u64,
    /// Bytes: for blocks what the program asked for (not rounded), for segments and ranges their size, for
    /// [`EventKind::OutOfMemory`] the rounded request.
    pub size: u64,
    /// The stream that the memory belongs to.
    pub stream: StreamId,
    /// When, in microseconds of Unix time; 0 where it is not known. Neighbours may carry the same value: the order of
    /// the rows is the order of the events.
    pub time_us: u64,
    /// Where in the program. Empty where no frame was recorded.
    pub stack: StackId,
    /// What the framework attached to it.
    pub context: ContextId,
    /// The pool, where the recording says so; `None` where it has to be inferred from the segments.
    pub pool: Option<PoolId>,
}

/// The events of one device, oldest first: a struct of arrays, one row an event.
#[derive(Clone, Debug, Default)]
pub struct Events {
    kinds: Vec<EventKind>,
    addresses: Vec<u64>,
    sizes: Vec<u64>,
    streams: Vec<StreamId>,
    times_us: Vec<u64>,
    stacks: Vec<StackId>,
    contexts: Vec<ContextId>,
    /// Empty unless an event names its pool; then a row for each event up to the last that does.
    pools: Vec<Option<PoolId>>,
}

impl Events {
    /// Adds an event after all others and returns its id.
    pub fn push(&mut self, event: Event) -> EventId {
        let id = EventId::from_index(self.len());
        self.kinds.push(event.kind);
        self.addresses.push(event.address);
        self.sizes.push(event.size);
        self.streams.push(event.stream);
        self.times_us.push(event.time_us);
        self.stacks.push(event.stack);
        self.contexts.push(event.context);
        if event.pool.is_some() {
            self.pools.resize(id.index(), None);
            self.pools.push(event.pool);
        }
        id
    }

    /// How many events there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The whole row of `id`.
    ///
    /// # Panics
    /// When there is no such event. The same holds for the other accessors.
    #[must_use]
    pub fn get(&self, id: EventId) -> Event {
        let row = id.index();
        Event {
            kind: self.kinds[row],
            address: self.addresses[row],
            size: self.sizes[row],
            stream: self.streams[row],
            time_us: self.times_us[row],
            stack: self.stacks[row],
            context: self.contexts[row],
            pool: self.pools.get(row).copied().flatten(),
        }
    }

    /// Replaces the row of `id`.
    pub fn set(&mut self, id: EventId, event: Event) {
        let row = id.index();
        self.kinds[row] = event.kind;
        self.addresses[row] = event.address;
        self.sizes[row] = event.size;
        self.streams[row] = event.stream;
        self.times_us[row] = event.time_us;
        self.stacks[row] = event.stack;
        self.contexts[row] = event.context;
        if event.pool.is_some() && self.pools.len() <= row {
            self.pools.resize(row + 1, None);
        }
        if let Some(pool) = self.pools.get_mut(row) {
            *pool = event.pool;
        }
    }

    /// Keeps the rows `range` (clamped to what is there) and drops the others.
    pub fn keep(&mut self, range: std::ops::Range<usize>) {
        let range = range.start.min(self.len())..range.end.min(self.len());
        keep(&mut self.kinds, &range);
        keep(&mut self.addresses, &range);
        keep(&mut self.sizes, &range);
        keep(&mut self.streams, &range);
        keep(&mut self.times_us, &range);
        keep(&mut self.stacks, &range);
        keep(&mut self.contexts, &range);
        let pools = range.start.min(self.pools.len())..range.end.min(self.pools.len());
        keep(&mut self.pools, &pools);
    }

    /// Keeps the first `count` rows and drops the others. The columns keep their capacity.
    pub fn keep_first(&mut self, count: usize) {
        self.kinds.truncate(count);
        self.addresses.truncate(count);
        self.sizes.truncate(count);
        self.streams.truncate(count);
        self.times_us.truncate(count);
        self.stacks.truncate(count);
        self.contexts.truncate(count);
        self.pools.truncate(count);
    }

    /// Takes the rows from `at` on (clamped to what is there) away and returns them. With `at` 0 nothing is copied.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        if at == 0 {
            return std::mem::take(self);
        }
        let at = at.min(self.len());
        let pools = at.min(self.pools.len());
        Self {
            kinds: self.kinds.split_off(at),
            addresses: self.addresses.split_off(at),
            sizes: self.sizes.split_off(at),
            streams: self.streams.split_off(at),
            times_us: self.times_us.split_off(at),
            stacks: self.stacks.split_off(at),
            contexts: self.contexts.split_off(at),
            pools: self.pools.split_off(pools),
        }
    }

    /// Gives the memory back that the columns have beyond their rows.
    pub fn shrink_to_fit(&mut self) {
        self.keep(0..self.len());
    }

    /// Every id, oldest event first.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = EventId> + ExactSizeIterator + use<> {
        (0..self.len()).map(EventId::from_index)
    }

    /// What `id` changed.
    #[must_use]
    pub fn kind(&self, id: EventId) -> EventKind {
        self.kinds[id.index()]
    }

    /// See [`Event::address`].
    #[must_use]
    pub fn address(&self, id: EventId) -> u64 {
        self.addresses[id.index()]
    }

    /// See [`Event::size`], in bytes.
    #[must_use]
    pub fn size(&self, id: EventId) -> u64 {
        self.sizes[id.index()]
    }

    /// See [`Event::stream`].
    #[must_use]
    pub fn stream(&self, id: EventId) -> StreamId {
        self.streams[id.index()]
    }

    /// See [`Event::time_us`], in microseconds.
    #[must_use]
    pub fn time_us(&self, id: EventId) -> u64 {
        self.times_us[id.index()]
    }

    /// See [`Event::stack`].
    #[must_use]
    pub fn stack(&self, id: EventId) -> StackId {
        self.stacks[id.index()]
    }

    /// See [`Event::context`].
    #[must_use]
    pub fn context(&self, id: EventId) -> ContextId {
        self.contexts[id.index()]
    }

    /// The column of kinds, one an event.
    #[must_use]
    pub fn kinds(&self) -> &[EventKind] {
        &self.kinds
    }

    /// The column of stacks, one an event.
    #[must_use]
    pub fn stacks(&self) -> &[StackId] {
        &self.stacks
    }

    /// The column of times in microseconds, one an event.
    #[must_use]
    pub fn times_us(&self) -> &[u64] {
        &self.times_us
    }

    /// Roughly how many bytes of host memory the columns take.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.kinds.capacity()
            + (self.addresses.capacity() + self.sizes.capacity() + self.times_us.capacity()) * size_of::<u64>()
            + (self.streams.capacity() + self.stacks.capacity() + self.contexts.capacity()) * size_of::<u32>()
            + self.pools.capacity() * size_of::<Option<PoolId>>()
    }
}

fn keep<T>(column: &mut Vec<T>, range: &std::ops::Range<usize>) {
    column.truncate(range.end);
    column.drain(..range.start);
    column.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_whole() {
        let mut events = Events::default();
        let plain = Event { kind: EventKind::Alloc, address: 1 << 63, size: 7, time_us: 5, ..Event::default() };
        let pooled = Event { kind: EventKind::FreeCompleted, pool: Some(PoolId::new(2)), ..plain };
        let ids = [events.push(plain), events.push(plain), events.push(pooled), events.push(plain)];
        assert_eq!(ids.map(|id| events.get(id)), [plain, plain, pooled, plain]);
        events.set(ids[3], pooled);
        events.set(ids[2], plain);
        assert_eq!(ids.map(|id| events.get(id)), [plain, plain, plain, pooled]);
        events.keep(1..9);
        assert_eq!(events.len(), 3);
        assert_eq!(events.get(EventId::new(2)), pooled);
        let tail = events.split_off(1);
        assert_eq!((events.len(), tail.len(), tail.get(EventId::new(1))), (1, 2, pooled));
        let mut all = events.split_off(0);
        assert!(events.is_empty());
        all.keep_first(0);
        assert!(all.is_empty());
    }

    #[test]
    fn a_million_events_take_less_than_a_hundred_megabytes() {
        let mut events = Events::default();
        for address in 0..1_000_000 {
            events.push(Event { address, ..Event::default() });
        }
        assert!(events.heap_bytes() < 100_000_000, "{}", events.heap_bytes());
    }
}
