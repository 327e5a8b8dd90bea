//! Segments that come and go.

use gpuheap_alloc::Lane;
use gpuheap_alloc::torch::{Decision, SMALL_SEGMENT, new_memory};
use gpuheap_record::{Event, EventId, EventKind, SegmentKind};

use super::Player;
use crate::lifetimes::{LaneId, SegmentLife, Tick};

/// Bytes of addresses that one expandable segment is assumed to have: more than any card has memory.
pub(super) const ASSUMED_RANGE: u64 = 1 << 46;

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
        self.segment_events += 1;
        if self.heap.remove_segment(event.address).is_err() {
            self.unexplained += 1;
            return;
        }
        if let Some(index) = self.segment_at.remove(&event.address) {
            self.segments[index].died = tick;
        }
    }

    pub(super) fn map(&mut self, event: &Event, id: EventId, tick: Tick) {
        self.segment_events += 1;
        // The range serves the next allocation: its size tells the pool.
        let events = &self.device.events;
        self.next_allocation = self.next_allocation.max(id.index() + 1);
        while events.kinds().get(self.next_allocation).is_some_and(|&kind| kind != EventKind::Alloc) {
            self.next_allocation += 1;
        }
        let next = (self.next_allocation < events.len()).then(|| EventId::from_index(self.next_allocation));
        let rounded = next.map_or(event.size, |next| self.config.round(events.size(next)));
        let kind = self.config.kind(rounded);
        let below = self.device.segments.partition_point(|segment| segment.address <= event.address);
        let last = below.checked_sub(1).map(|index| &self.device.segments[index]);
        let last = last.filter(|segment| segment.expandable && segment.kind == kind);
        let last = last.filter(|segment| event.address - segment.address < segment.total_size);
        let pool = last.map(|segment| segment.pool).unwrap_or_default();
        let lane = Lane { pool: event.pool.unwrap_or(pool), kind, stream: self.stream_handle(event) };
        self.predict_growth(event, lane, rounded);
        if self.heap.map(event.address, event.size, lane).is_err() {
            self.unexplained += 1;
            return;
        }
        let lane = self.lanes.id(lane);
        self.begin_segment(event.address, event.size, lane, true, tick);
    }

    /// Compares a mapped range with the one that the policy maps next for the request that is under way.
    fn predict_growth(&mut self, event: &Event, lane: Lane, rounded: u64) {
        let in_range = self.heap.range_at(event.address).is_some_and(|(_, _, known)| known == lane);
        if self.growth.is_empty() {
            match new_memory(&self.heap, &self.config, lane, rounded) {
                Decision::Grow(growth) => {
                    self.grown = Some(growth.start);
                    self.growth.extend(growth.pieces);
                }
                Decision::NewRange(size) if !in_range => {
                    self.grown = Some(event.address);
                    self.growth.push_back((event.address, size));
                }
                _ => {}
            }
        }
        let expected = self.growth.pop_front();
        if expected == Some((event.address, event.size)) {
            self.matched += 1;
        } else {
            self.growth.clear();
            self.mismatch(|| match expected {
                Some((address, size)) => format!(
                    "{} bytes were mapped at {:#x}, the policy maps {size} at {address:#x}",
                    event.size, event.address
                ),
                None => {
                    format!("{} bytes were mapped at {:#x}, the policy maps nothing there", event.size, event.address)
                }
            });
        }
        if !in_range {
            // How many addresses were reserved is not recorded: as many as there are up to the next range.
            self.heap.reserve_range(event.address, ASSUMED_RANGE, lane);
        }
    }

    pub(super) fn unmap(&mut self, event: &Event, tick: Tick) {
        self.segment_events += 1;
        if self.heap.unmap(event.address, event.size).is_err() {
            self.unexplained += 1;
            return;
        }
        // Addresses without any memory are given back: the next growth reserves others.
        self.heap.drop_empty_range(event.address);
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
