//! Who lived when: every allocation and every segment with its birth and its death.

use gpuheap_alloc::Lane;
use gpuheap_record::{EventId, StackId};

/// A moment between two events: tick 0 is before the first event, tick `n` directly after event `n - 1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Tick(pub(crate) u32);

impl Tick {
    /// Before the first event.
    pub(crate) const START: Self = Self(0);
    /// After everything that was recorded.
    pub(crate) const NEVER: Self = Self(u32::MAX);

    /// Directly after `event`.
    pub(crate) fn after(event: EventId) -> Self {
        Self(event.get().saturating_add(1))
    }

    /// The event that this tick comes directly after.
    pub(crate) fn event(self) -> Option<EventId> {
        (self != Self::NEVER).then_some(())?;
        self.0.checked_sub(1).map(EventId::new)
    }

    /// The row for this tick in a column with one entry a tick.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A row of [`Allocations`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct AllocationId(u32);

impl AllocationId {
    pub(crate) fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn get(self) -> u32 {
        self.0
    }
}

/// A row of the table of lanes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LaneId(u32);

impl LaneId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The distinct lanes of a heap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    ids: foldhash::HashMap<Lane, LaneId>,
}

impl Lanes {
    pub(crate) fn id(&mut self, lane: Lane) -> LaneId {
        if let Some(&id) = self.ids.get(&lane) {
            return id;
        }
        let id = LaneId(u32::try_from(self.lanes.len()).unwrap_or(u32::MAX));
        self.lanes.push(lane);
        self.ids.insert(lane, id);
        id
    }

    pub(crate) fn get(&self, id: LaneId) -> Lane {
        self.lanes[id.index()]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LaneId, Lane)> + '_ {
        self.lanes.iter().enumerate().map(|(index, &lane)| (LaneId(u32::try_from(index).unwrap_or(u32::MAX)), lane))
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.len()
    }
}

/// One allocation, from the request to the moment when its memory can be used again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    /// First address.
    pub(crate) address: u64,
    /// Bytes that it takes.
    pub(crate) size: u64,
    /// Bytes that the program asked for.
    pub(crate) requested: u64,
    /// Where it was made; empty where no frame was recorded.
    pub(crate) stack: StackId,
    /// Where its memory belongs.
    pub(crate) lane: LaneId,
    /// Whether it lies in a segment, as it should. It does not where the recording contradicts itself.
    pub(crate) placed: bool,
    /// When it was made; [`Tick::START`] if it was there before.
    pub(crate) born: Tick,
    /// When the program dropped it; [`Tick::NEVER`] if it did not.
    pub(crate) freed: Tick,
    /// When its memory could be used again; [`Tick::NEVER`] if it never could.
    pub(crate) completed: Tick,
}

impl Allocation {
    /// Whether the program holds it at `tick`.
    pub(crate) fn is_live_at(&self, tick: Tick) -> bool {
        self.born <= tick && tick < self.freed
    }

    /// Whether it takes memory at `tick`.
    pub(crate) fn is_active_at(&self, tick: Tick) -> bool {
        self.born <= tick && tick < self.completed
    }
}

/// Every allocation in the order of birth.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allocations {
    rows: Vec<Allocation>,
}

impl Allocations {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { rows: Vec::with_capacity(capacity) }
    }

    pub(crate) fn push(&mut self, allocation: Allocation) -> AllocationId {
        let id = AllocationId::from_index(self.rows.len());
        self.rows.push(allocation);
        id
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn rows(&self) -> &[Allocation] {
        &self.rows
    }

    pub(crate) fn get(&self, id: AllocationId) -> &Allocation {
        &self.rows[id.index()]
    }

    pub(crate) fn get_mut(&mut self, id: AllocationId) -> Option<&mut Allocation> {
        self.rows.get_mut(id.index())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (AllocationId, &Allocation)> {
        self.rows.iter().enumerate().map(|(index, row)| (AllocationId::from_index(index), row))
    }
}

/// A range of memory from the driver. A range that grew is one entry for each time that it grew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentLife {
    /// First address.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Where its blocks belong.
    pub(crate) lane: LaneId,
    /// When it came; [`Tick::START`] if it was there before.
    pub(crate) born: Tick,
    /// When it went back; [`Tick::NEVER`] if it did not.
    pub(crate) died: Tick,
    /// Whether it is part of an expandable range.
    pub(crate) expandable: bool,
}

impl SegmentLife {
    pub(crate) fn is_live_at(&self, tick: Tick) -> bool {
        self.born <= tick && tick < self.died
    }
}
