//! The recording played again: block sizes, segments and counters through time, and a check of the policy.
//!
//! The heap follows the recording: every block goes where it was recorded. Before each allocation the policy is asked
//! what it would have done; as long as every answer is what happened, a free run of the policy would have gone the same
//! way. Where an answer differs, the heap still follows the recording, so one difference does not spoil the rest.

mod check;
mod release;
mod segments;

use std::collections::{BTreeMap, VecDeque};

use foldhash::HashMap;
use gpuheap_alloc::torch::{Config, find};
use gpuheap_alloc::{Heap, InitialBlock, Lane, Totals};
use gpuheap_record::{BlockState, Bytes, DeviceRecording, Event, EventId, EventKind, PoolId, Recording, SegmentKind};

use segments::ASSUMED_RANGE;

use crate::frames::is_of_driver;
use crate::initial::{self, Initial, InitialSegment};
use crate::lifetimes::{Allocation, AllocationId, Allocations, Lanes, SegmentLife, Tick};
use crate::report::{Peaks, ReplayCheck};

/// What the replay of one device brings to light.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) allocations: Allocations,
    pub(crate) segments: Vec<SegmentLife>,
    pub(crate) lanes: Lanes,
    /// Blocks that the program holds, in bytes, one entry a tick.
    pub(crate) allocated: Vec<u64>,
    /// Memory from the driver, in bytes, one entry a tick.
    pub(crate) reserved: Vec<u64>,
    pub(crate) peaks: Peaks,
    /// When most was allocated.
    pub(crate) peak: Tick,
    /// When most was reserved.
    pub(crate) peak_reserved: Tick,
    /// Whether nothing was alive before the first event.
    pub(crate) complete: bool,
    /// Reserved before the first event, in bytes.
    pub(crate) reserved_before: u64,
    /// Events that did not fit the state: forwards, and backwards where the start was rebuilt.
    pub(crate) unexplained: usize,
    pub(crate) unexplained_start: usize,
    /// How often memory went back to make room for a request.
    pub(crate) forced_releases: usize,
    pub(crate) check: ReplayCheck,
}

impl Replay {
    /// The tick after the last event.
    pub(crate) fn last_tick(&self) -> Tick {
        Tick(u32::try_from(self.allocated.len().saturating_sub(1)).unwrap_or(u32::MAX - 1))
    }
}

/// A segment that the driver gave, until the allocation that it was made for.
#[derive(Clone, Copy)]
struct Fresh {
    address: u64,
    size: u64,
    lane: Lane,
    tick: Tick,
}

struct Player<'a> {
    recording: &'a Recording,
    device: &'a DeviceRecording,
    config: Config,
    heap: Heap,
    allocations: Allocations,
    segments: Vec<SegmentLife>,
    /// The live entries of `segments` by address.
    segment_at: BTreeMap<u64, usize>,
    lanes: Lanes,
    /// Allocations that found no place in the heap, by address.
    homeless: HashMap<u64, AllocationId>,
    /// Bytes of them that the program holds, and that it holds or that wait for another stream.
    homeless_live: u64,
    homeless_active: u64,
    /// The pool of each final segment, by address, with the event that made the segment last.
    final_pools: HashMap<u64, (PoolId, Option<EventId>)>,
    fresh: Option<Fresh>,
    /// Where the next allocation after the last mapped range is.
    next_allocation: usize,
    /// The row behind the run of releases that is under way.
    release_until: usize,
    /// How often memory went back to make room for a request.
    forced_releases: usize,
    /// Free blocks that were looked at to predict releases.
    looks: usize,
    /// What the policy still maps for the request that is under way.
    growth: VecDeque<(u64, u64)>,
    /// Where the block begins that this memory becomes.
    grown: Option<u64>,
    unexplained: usize,
    segment_events: u64,
    matched: u64,
    first_mismatch: Option<String>,
    /// Whether this is the driver's own memory, where no allocator decides anything.
    is_of_driver: bool,
}

/// Plays the recording of one device.
pub(crate) fn replay(recording: &Recording, device: &DeviceRecording) -> Replay {
    let config = Config::from(&recording.settings);
    let complete = initial::is_complete(device);
    let initial = if complete { Initial::default() } else { initial::rewind(recording, device, &config) };
    let mut player = Player::new(recording, device, config);
    player.load(&initial.segments);
    // Segments that were cached but empty hide nothing.
    let complete = complete || player.allocations.rows().is_empty();
    let reserved_before = player.heap.totals().reserved;

    let count = device.events.len();
    let mut allocated = Vec::with_capacity(count + 1);
    let mut reserved = Vec::with_capacity(count + 1);
    let mut peaks = Peaks::default();
    let (mut peak, mut peak_reserved) = (Tick::START, Tick::START);
    let mut note = |totals: Totals, (live, active): (u64, u64), tick: Tick| {
        let now = totals.allocated.saturating_add(live);
        allocated.push(now);
        reserved.push(totals.reserved);
        if now > peaks.allocated_bytes.get() {
            peaks.allocated_bytes = Bytes::new(now);
            peak = tick;
        }
        if totals.reserved > peaks.reserved_bytes.get() {
            peaks.reserved_bytes = Bytes::new(totals.reserved);
            peak_reserved = tick;
        }
        peaks.active_bytes = peaks.active_bytes.max(Bytes::new(totals.active.saturating_add(active)));
        peaks.requested_bytes = peaks.requested_bytes.max(Bytes::new(totals.requested.saturating_add(active)));
    };
    note(player.heap.totals(), (0, 0), Tick::START);
    for id in device.events.ids() {
        player.play(id);
        note(player.totals(), (player.homeless_live, player.homeless_active), Tick::after(id));
    }
    player.settle_fresh(None);
    let check = player.check();
    Replay {
        allocations: player.allocations,
        segments: player.segments,
        lanes: player.lanes,
        allocated,
        reserved,
        peaks,
        peak,
        peak_reserved,
        complete,
        reserved_before,
        unexplained: player.unexplained,
        unexplained_start: initial.unexplained,
        forced_releases: player.forced_releases,
        check,
    }
}

impl<'a> Player<'a> {
    fn new(recording: &'a Recording, device: &'a DeviceRecording, config: Config) -> Self {
        let mut final_pools: HashMap<u64, (PoolId, Option<EventId>)> = HashMap::default();
        for segment in device.segments.iter().filter(|segment| segment.pool != PoolId::default()) {
            final_pools.insert(segment.address, (segment.pool, None));
        }
        if !final_pools.is_empty() {
            for id in device.events.ids().filter(|&id| device.events.kind(id) == EventKind::SegmentAlloc) {
                if let Some((_, made)) = final_pools.get_mut(&device.events.address(id)) {
                    *made = Some(id);
                }
            }
        }
        Self {
            recording,
            device,
            config,
            heap: Heap::new(),
            allocations: Allocations::with_capacity(device.events.len() / 3 + 16),
            segments: Vec::new(),
            segment_at: BTreeMap::new(),
            lanes: Lanes::default(),
            homeless: HashMap::default(),
            homeless_live: 0,
            homeless_active: 0,
            final_pools,
            fresh: None,
            next_allocation: 0,
            release_until: 0,
            forced_releases: 0,
            looks: 0,
            growth: VecDeque::new(),
            grown: None,
            unexplained: 0,
            segment_events: 0,
            matched: 0,
            first_mismatch: None,
            is_of_driver: is_of_driver(recording),
        }
    }

    fn load(&mut self, segments: &[InitialSegment]) {
        for segment in segments {
            let size = segment.blocks.iter().fold(0_u64, |sum, block| sum.saturating_add(block.size));
            if !self.heap.is_vacant(segment.address, size) {
                self.unexplained += 1;
                continue;
            }
            let lane = self.lanes.id(segment.lane);
            let mut blocks = Vec::with_capacity(segment.blocks.len());
            for block in &segment.blocks {
                let mut owner = 0;
                if block.state != BlockState::Free {
                    let freed = if block.state == BlockState::PendingFree { Tick::START } else { Tick::NEVER };
                    let allocation = Allocation {
                        address: block.address,
                        size: block.size,
                        requested: block.requested,
                        stack: block.stack,
                        lane,
                        placed: true,
                        born: Tick::START,
                        freed,
                        completed: Tick::NEVER,
                    };
                    owner = self.allocations.push(allocation).get();
                }
                blocks.push(InitialBlock { size: block.size, requested: block.requested, state: block.state, owner });
            }
            if self.heap.add_segment_with(segment.address, segment.lane, segment.expandable, &blocks).is_err() {
                self.unexplained += 1;
                continue;
            }
            let known = self.heap.range_at(segment.address).is_some_and(|(_, _, known)| known == segment.lane);
            if segment.expandable && !known {
                self.heap.reserve_range(segment.address, ASSUMED_RANGE, segment.lane);
            }
            self.begin_segment(segment.address, size, lane, segment.expandable, Tick::START);
        }
    }

    fn totals(&self) -> Totals {
        let mut totals = self.heap.totals();
        // A fresh segment is reserved from its own event on.
        totals.reserved = totals.reserved.saturating_add(self.fresh.map_or(0, |fresh| fresh.size));
        totals
    }

    fn play(&mut self, id: EventId) {
        let event = self.device.events.get(id);
        let tick = Tick::after(id);
        match event.kind {
            EventKind::Alloc => self.allocate(&event, tick),
            EventKind::FreeRequested => self.request_free(&event, tick),
            EventKind::FreeCompleted => self.complete_free(&event, tick),
            EventKind::SegmentAlloc => {
                self.settle_fresh(None);
                self.segment_events += 1;
                if self.heap.is_vacant(event.address, event.size) {
                    let lane = self.lane_of_new_segment(&event, id);
                    self.fresh = Some(Fresh { address: event.address, size: event.size, lane, tick });
                } else {
                    self.unexplained += 1;
                    self.mismatch(|| format!("a segment was made at {:#x}, where one is already", event.address));
                }
            }
            EventKind::SegmentFree => {
                self.begin_release(id);
                self.free_segment(&event, tick);
            }
            EventKind::SegmentMap => self.map(&event, id, tick),
            EventKind::SegmentUnmap => {
                self.begin_release(id);
                self.unmap(&event, tick);
            }
            EventKind::OutOfMemory | EventKind::Snapshot | EventKind::Other => self.settle_fresh(None),
        }
    }

    fn begin_release(&mut self, id: EventId) {
        self.settle_fresh(None);
        if id.index() >= self.release_until && !self.is_of_driver {
            self.predict_release(id.index());
        }
    }

    fn stream_handle(&self, event: &Event) -> u64 {
        self.recording.streams.get(event.stream).copied().unwrap_or(0)
    }

    /// Compares what the policy would do with what happened, and follows what happened.
    fn allocate(&mut self, event: &Event, tick: Tick) {
        let rounded = self.config.round(event.size);
        let fresh = self.fresh.filter(|fresh| fresh.address == event.address);
        let found = self.heap.at(event.address).map(|id| self.heap.block(id).lane);
        if let Some(lane) = fresh.map(|fresh| fresh.lane).or(found) {
            let lane = Lane { kind: self.config.kind(rounded), stream: self.stream_handle(event), ..lane };
            let is_large = lane.kind == SegmentKind::Large && lane.pool == PoolId::default();
            if is_large && self.config.garbage_collection_threshold > 0.0 {
                self.heap.count_search();
            }
            self.compare(event, find(&self.heap, &self.config, lane, rounded), (lane, rounded), fresh);
        }
        self.settle_fresh(Some(event.address));
        let placed = self.heap.at(event.address).and_then(|id| {
            let block = *self.heap.block(id);
            let splits = self.config.splits(block.lane.kind, block.size, rounded) || block.expandable;
            let owner = AllocationId::from_index(self.allocations.len());
            let id = self.heap.carve(id, rounded, event.size, splits, owner.get()).ok()?;
            Some(*self.heap.block(id))
        });
        let (size, lane) = match placed {
            Some(block) => (block.size, block.lane),
            None => {
                self.unexplained += 1;
                self.mismatch(|| {
                    format!("no free block starts at {:#x}, where {} bytes were placed", event.address, event.size)
                });
                let kind = self.config.kind(rounded);
                (rounded, Lane { pool: event.pool.unwrap_or_default(), kind, stream: self.stream_handle(event) })
            }
        };
        let lane = self.lanes.id(lane);
        let id = self.allocations.push(Allocation {
            address: event.address,
            size,
            requested: event.size,
            stack: event.stack,
            lane,
            placed: placed.is_some(),
            born: tick,
            freed: Tick::NEVER,
            completed: Tick::NEVER,
        });
        if placed.is_none() {
            if let Some(before) = self.homeless.insert(event.address, id) {
                self.end_homeless(before, tick);
            }
            self.homeless_live = self.homeless_live.saturating_add(size);
            self.homeless_active = self.homeless_active.saturating_add(size);
        }
    }

    /// Adds the segment that came from the driver last to the heap; it is expected where an allocation uses it.
    fn settle_fresh(&mut self, expected: Option<u64>) {
        let Some(fresh) = self.fresh.take() else { return };
        if Some(fresh.address) != expected {
            self.mismatch(|| format!("no allocation follows the new segment at {:#x}", fresh.address));
        }
        if self.heap.add_segment(fresh.address, fresh.size, fresh.lane).is_ok() {
            let lane = self.lanes.id(fresh.lane);
            self.begin_segment(fresh.address, fresh.size, lane, false, fresh.tick);
        }
    }

    fn request_free(&mut self, event: &Event, tick: Tick) {
        self.settle_fresh(None);
        if let Ok(id) = self.heap.request_free(event.address) {
            let owner = AllocationId::from_index(self.heap.block(id).owner as usize);
            if let Some(allocation) = self.allocations.get_mut(owner) {
                allocation.freed = tick;
            }
            return;
        }
        match self.homeless.get(&event.address) {
            Some(&id) => self.drop_homeless(id, tick),
            None => self.unexplained += 1,
        }
    }

    fn complete_free(&mut self, event: &Event, tick: Tick) {
        self.settle_fresh(None);
        let block = self.heap.at(event.address).map(|id| *self.heap.block(id));
        let state = block.map_or(BlockState::Free, |block| block.state);
        let homeless = self.homeless.get(&event.address).copied();
        match (state, homeless, block) {
            (BlockState::PendingFree, _, Some(block)) | (BlockState::Allocated, None, Some(block)) => {
                self.end(AllocationId::from_index(block.owner as usize), tick);
                if state == BlockState::Allocated {
                    // Its request was lost.
                    let _ = self.heap.request_free(event.address);
                }
                let _ = self.heap.complete_free(event.address);
            }
            (_, Some(id), _) => {
                self.homeless.remove(&event.address);
                self.end_homeless(id, tick);
            }
            _ => self.unexplained += 1,
        }
    }

    fn end(&mut self, id: AllocationId, tick: Tick) {
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.freed = allocation.freed.min(tick);
            allocation.completed = tick;
        }
    }

    fn drop_homeless(&mut self, id: AllocationId, tick: Tick) {
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        if allocation.freed == Tick::NEVER {
            allocation.freed = tick;
            self.homeless_live = self.homeless_live.saturating_sub(allocation.size);
        }
    }

    fn end_homeless(&mut self, id: AllocationId, tick: Tick) {
        self.drop_homeless(id, tick);
        self.homeless_active = self.homeless_active.saturating_sub(self.allocations.get(id).size);
        self.end(id, tick);
    }

    fn mismatch(&mut self, what: impl FnOnce() -> String) {
        // There is no policy in what the driver does.
        if self.first_mismatch.is_none() && !self.is_of_driver {
            self.first_mismatch = Some(what());
        }
    }
}
