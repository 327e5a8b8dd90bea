//! Segments that come and go.

use gpuheap_alloc::Lane;
use gpuheap_alloc::torch::{SMALL_SEGMENT, release_order};
use gpuheap_record::{Event, EventId, EventKind, PoolId, SegmentKind};

use super::Player;
use crate::lifetimes::{LaneId, SegmentLife, Tick};

impl Player<'_> {
    pub(super) fn lane_of_new_segment(&self, event: &Event, id: EventId) -> Lane {
        // Older events name no pool: the final state does, for segments that live to the end.
        let from_final =
            self.final_pools.get(&event.address).filter(|(_, made)| *made == Some(id)).map(|(pool, _)| *pool);
        let pool = event.pool.or(from_final).unwrap_or_default();
        let kind = if event.size <= SMALL_SEGMENT { SegmentKind::Small } else { SegmentKind::Large };
        Lane { pool, kind, stream: self.stream_handle(event) }
    }

    pub(super) fn begin_segment(&mut self, address: u64, size: u64, lane: LaneId, expandable: bool, born: Tick) {
        self.segment_at.insert(address, self.segments.len());
        self.segments.push(SegmentLife { address, size, lane, born, died: Tick::NEVER, expandable });
    }

    pub(super) fn free_segment(&mut self, event: &Event, tick: Tick) {
        self.settle_fresh(None);
        self.segment_events += 1;
        let heap = &self.heap;
        let lanes = &self.lanes;
        let release = self.release.get_or_insert_with(|| {
            let mut private: Vec<PoolId> =
                lanes.iter().map(|(_, lane)| lane.pool).filter(|&pool| pool != PoolId::default()).collect();
            private.sort_unstable();
            private.dedup();
            release_order(heap, &private).into_iter()
        });
        // Which private pools nobody uses any more is not recorded: those that stay are passed over.
        let is_private =
            |address: u64| heap.at(address).is_some_and(|id| heap.block(id).lane.pool != PoolId::default());
        let expected = release.find(|&address| address == event.address || !is_private(address));
        if expected == Some(event.address) {
            self.matched += 1;
        } else {
            self.mismatch(|| {
                format!("the segment at {:#x} was given back, the policy releases another", event.address)
            });
        }
        match self.heap.remove_segment(event.address) {
            Ok(_) => {}
            Err(_) => self.unexplained += 1,
        }
        if let Some(index) = self.segment_at.remove(&event.address) {
            self.segments[index].died = tick;
        }
    }

    /// A full release gives everything back that it can: what is left of the default pool was not expected to stay.
    pub(super) fn end_release(&mut self) {
        let Some(rest) = self.release.take() else { return };
        let heap = &self.heap;
        let kept = rest
            .into_iter()
            .find(|&address| heap.at(address).is_some_and(|id| heap.block(id).lane.pool == PoolId::default()));
        if let Some(kept) = kept {
            self.mismatch(|| format!("the unused segment at {kept:#x} was kept, the policy releases it"));
        }
    }

    pub(super) fn map(&mut self, event: &Event, id: EventId, tick: Tick) {
        self.segment_events += 1;
        self.mismatch(|| "growth of expandable segments is followed, not predicted".to_owned());
        // The range serves the next allocation: its size tells the pool.
        let events = &self.device.events;
        self.next_allocation = self.next_allocation.max(id.index() + 1);
        while events.kinds().get(self.next_allocation).is_some_and(|&kind| kind != EventKind::Alloc) {
            self.next_allocation += 1;
        }
        let next = (self.next_allocation < events.len()).then(|| EventId::from_index(self.next_allocation));
        let rounded = next.map_or(event.size, |next| self.config.round(events.size(next)));
        let below = self.device.segments.partition_point(|segment| segment.address <= event.address);
        let pool = below.checked_sub(1).map(|index| &self.device.segments[index]);
        let pool = pool.filter(|segment| segment.expandable && event.address - segment.address < segment.total_size);
        let (pool, kind) = match pool {
            Some(segment) => (segment.pool, segment.kind),
            None => (PoolId::default(), self.config.kind(rounded)),
        };
        let lane = Lane { pool: event.pool.unwrap_or(pool), kind, stream: self.stream_handle(event) };
        if self.heap.map(event.address, event.size, lane).is_err() {
            self.unexplained += 1;
            return;
        }
        let lane = self.lanes.id(lane);
        self.begin_segment(event.address, event.size, lane, true, tick);
    }

    pub(super) fn unmap(&mut self, event: &Event, tick: Tick) {
        self.segment_events += 1;
        self.mismatch(|| "unmapping of expandable segments is followed, not predicted".to_owned());
        if self.heap.unmap(event.address, event.size).is_err() {
            self.unexplained += 1;
            return;
        }
        // The range may cut through earlier ones: what is left of each lives on as an entry of its own.
        let end = event.address + event.size;
        let first = self.segment_at.range(..=event.address).next_back().map_or(event.address, |(&address, _)| address);
        let cut: Vec<usize> = self.segment_at.range(first..end).map(|(_, &index)| index).collect();
        for index in cut {
            let life = self.segments[index];
            let life_end = life.address + life.size;
            if !life.expandable || life_end <= event.address {
                continue;
            }
            self.segments[index].died = tick;
            self.segment_at.remove(&life.address);
            for (from, to) in [(life.address, event.address), (end, life_end)] {
                if from < to {
                    self.begin_segment(from, to - from, life.lane, true, tick);
                }
            }
        }
    }
}
