//! The state before the first event, where the recording starts late.
//!
//! A recording names the segments and blocks at its end. Undoing one event after the other, newest first, gives the
//! state before the first of them: an `alloc` undone joins its block with the free range to the right, a free undone
//! carves the block out of the free range that it had merged with, and so on. What is lost is only how large an
//! unsplit rest of at most 1 MiB was behind a block that was freed; a free range that small cannot exist in the large
//! pool, so it is given to the block in front of it.

use std::collections::BTreeMap;

use foldhash::HashSet;
use gpuheap_alloc::Lane;
use gpuheap_alloc::torch::{Config, SMALL_LIMIT, SMALL_SEGMENT};
use gpuheap_record::{BlockState, DeviceRecording, Event, EventKind, Recording, SegmentKind, StackId};

/// A block before the first event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitialBlock {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) state: BlockState,
    /// Where it was allocated, where the final state still knows.
    pub(crate) stack: StackId,
}

/// A segment before the first event, with the blocks that tile it.
#[derive(Clone, Debug)]
pub(crate) struct InitialSegment {
    pub(crate) address: u64,
    pub(crate) lane: Lane,
    pub(crate) expandable: bool,
    pub(crate) blocks: Vec<InitialBlock>,
}

/// The rebuilt state and how well the events fitted it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Initial {
    pub(crate) segments: Vec<InitialSegment>,
    /// Events that could not be undone.
    pub(crate) unexplained: usize,
}

/// Whether nothing was reserved before the first event: every final segment was made in the recording, and nothing
/// was given back that had not been made in it.
pub(crate) fn is_complete(device: &DeviceRecording) -> bool {
    let events = &device.events;
    let mut live: HashSet<u64> = HashSet::default();
    let mut mapped: i128 = 0;
    for id in events.ids() {
        match events.kind(id) {
            EventKind::SegmentAlloc => {
                live.insert(events.address(id));
            }
            EventKind::SegmentFree if !live.remove(&events.address(id)) => {
                return false;
            }
            EventKind::SegmentMap => mapped += i128::from(events.size(id)),
            EventKind::SegmentUnmap => mapped -= i128::from(events.size(id)),
            _ => {}
        }
        if mapped < 0 {
            return false;
        }
    }
    let mut mapped_at_end = 0;
    for segment in &device.segments {
        if segment.expandable {
            mapped_at_end += i128::from(segment.total_size);
        } else if !live.contains(&segment.address) {
            return false;
        }
    }
    mapped_at_end <= mapped
}

#[derive(Clone, Copy, Debug)]
struct Region {
    size: u64,
    requested: u64,
    state: BlockState,
    stack: StackId,
    lane: Lane,
    expandable: bool,
    /// First address of the native segment that it lies in, or of the expandable range as far as known.
    segment: u64,
}

struct Rewind<'a> {
    recording: &'a Recording,
    config: &'a Config,
    regions: BTreeMap<u64, Region>,
    unexplained: usize,
}

/// Rolls the final state of `device` back to before its first event.
pub(crate) fn rewind(recording: &Recording, device: &DeviceRecording, config: &Config) -> Initial {
    let mut rewind = Rewind { recording, config, regions: BTreeMap::new(), unexplained: 0 };
    rewind.load_final_state(device);
    for id in device.events.ids().rev() {
        if rewind.undo(&device.events.get(id)).is_none() {
            rewind.unexplained += 1;
        }
    }
    let unexplained = rewind.unexplained;
    Initial { segments: rewind.into_segments(), unexplained }
}

impl Rewind<'_> {
    fn load_final_state(&mut self, device: &DeviceRecording) {
        for segment in &device.segments {
            let stream = self.recording.streams.get(segment.stream).copied().unwrap_or(0);
            let lane = Lane { pool: segment.pool, kind: segment.kind, stream };
            for block in &segment.blocks {
                if block.size > 0 {
                    self.regions.insert(
                        block.address,
                        Region {
                            size: block.size,
                            requested: block.requested_size,
                            state: block.state,
                            stack: block.stack,
                            lane,
                            expandable: segment.expandable,
                            segment: segment.address,
                        },
                    );
                }
            }
        }
    }

    fn undo(&mut self, event: &Event) -> Option<()> {
        match event.kind {
            EventKind::Alloc => self.undo_alloc(event.address),
            EventKind::FreeRequested => {
                let region = self.regions.get_mut(&event.address)?;
                (region.state == BlockState::PendingFree).then_some(())?;
                region.state = BlockState::Allocated;
                Some(())
            }
            EventKind::FreeCompleted => self.undo_free(event),
            EventKind::SegmentAlloc | EventKind::SegmentMap => self.remove_range(event.address, event.size),
            EventKind::SegmentFree => self.add_range(event, false),
            EventKind::SegmentUnmap => self.add_range(event, true),
            EventKind::OutOfMemory | EventKind::Snapshot | EventKind::Other => Some(()),
        }
    }

    fn undo_alloc(&mut self, address: u64) -> Option<()> {
        let region = self.regions.get_mut(&address)?;
        (region.state == BlockState::Allocated).then_some(())?;
        region.state = BlockState::Free;
        region.requested = 0;
        region.stack = StackId::default();
        self.join_right(address);
        Some(())
    }

    fn undo_free(&mut self, event: &Event) -> Option<()> {
        let (&start, &region) = self.regions.range(..=event.address).next_back()?;
        let end = start.checked_add(region.size)?;
        let size = self.config.round(event.size);
        let block_end = event.address.checked_add(size)?;
        (region.state == BlockState::Free && block_end <= end).then_some(())?;
        let keeps_rests = region.lane.kind == SegmentKind::Large && !region.expandable && !self.config.expandable;
        let smallest_free = if keeps_rests { SMALL_LIMIT + 1 } else { 1 };
        let left = event.address - start;
        self.regions.remove(&start);
        if left >= smallest_free {
            self.regions.insert(start, Region { size: left, ..region });
        } else if left > 0 {
            // Too small to have been a free block: the unsplit rest of the block in front.
            match self.regions.range_mut(..start).next_back() {
                Some((&before, front)) if before + front.size == start && front.segment == region.segment => {
                    front.size += left;
                }
                _ => {
                    self.regions.insert(start, Region { size: left, ..region });
                }
            }
        }
        let rest = end - block_end;
        let size = if rest < smallest_free { end - event.address } else { size };
        let block = Region { size, requested: event.size, state: BlockState::PendingFree, ..region };
        self.regions.insert(event.address, block);
        if rest >= smallest_free {
            self.regions.insert(block_end, Region { size: rest, ..region });
        }
        Some(())
    }

    /// Takes a free range out: it did not exist before.
    fn remove_range(&mut self, address: u64, size: u64) -> Option<()> {
        let end = address.checked_add(size).filter(|_| size > 0)?;
        let (&start, &region) = self.regions.range(..=address).next_back()?;
        let region_end = start.checked_add(region.size)?;
        (region.state == BlockState::Free && end <= region_end).then_some(())?;
        self.regions.remove(&start);
        if start < address {
            self.regions.insert(start, Region { size: address - start, ..region });
        }
        if end < region_end {
            self.regions.insert(end, Region { size: region_end - end, ..region });
        }
        Some(())
    }

    /// Puts a free range back: it still existed before.
    fn add_range(&mut self, event: &Event, expandable: bool) -> Option<()> {
        let end = event.address.checked_add(event.size).filter(|_| event.size > 0)?;
        let below = self.regions.range(..end).next_back();
        below.is_none_or(|(&start, region)| start + region.size <= event.address).then_some(())?;
        let stream = self.recording.streams.get(event.stream).copied().unwrap_or(0);
        // Segments of the large pool have at least 20 MiB; expandable ranges of the small pool grow by 2 MiB too.
        let kind = if event.size == SMALL_SEGMENT { SegmentKind::Small } else { SegmentKind::Large };
        let neighbour = self.regions.get(&end).filter(|region| expandable && region.expandable);
        let lane = neighbour.map_or(Lane { pool: event.pool.unwrap_or_default(), kind, stream }, |region| region.lane);
        let region = Region {
            size: event.size,
            requested: 0,
            state: BlockState::Free,
            stack: StackId::default(),
            lane,
            expandable,
            segment: event.address,
        };
        self.regions.insert(event.address, region);
        if expandable {
            self.join_right(event.address);
            if let Some((&before, _)) = self.regions.range(..event.address).next_back() {
                self.join_right(before);
            }
        }
        Some(())
    }

    /// Merges the free region at `address` with the one right behind it, if that is free and of the same segment.
    fn join_right(&mut self, address: u64) {
        let Some(&region) = self.regions.get(&address) else { return };
        let end = address + region.size;
        let Some(&next) = self.regions.get(&end) else { return };
        let same_segment = next.segment == region.segment || (next.expandable && region.expandable);
        let free = region.state == BlockState::Free && next.state == BlockState::Free;
        if free && same_segment && next.lane == region.lane {
            self.regions.remove(&end);
            if let Some(region) = self.regions.get_mut(&address) {
                region.size += next.size;
            }
        }
    }

    fn into_segments(self) -> Vec<InitialSegment> {
        let mut segments: Vec<InitialSegment> = Vec::new();
        let mut open: Option<(u64, u64)> = None; // native segment it belongs to, and where the last region ended
        for (address, region) in self.regions {
            let block = InitialBlock {
                address,
                size: region.size,
                requested: region.requested,
                state: region.state,
                stack: region.stack,
            };
            let continues = open
                .is_some_and(|(segment, end)| end == address && (segment == region.segment || region.expandable))
                && segments.last().is_some_and(|last| last.lane == region.lane && last.expandable == region.expandable);
            match segments.last_mut() {
                Some(last) if continues => last.blocks.push(block),
                _ => segments.push(InitialSegment {
                    address,
                    lane: region.lane,
                    expandable: region.expandable,
                    blocks: vec![block],
                }),
            }
            open = Some((region.segment, address + region.size));
        }
        segments
    }
}
