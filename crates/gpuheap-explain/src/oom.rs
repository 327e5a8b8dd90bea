//! A failed allocation: what was asked for, what was there, and why it did not serve.

use gpuheap_alloc::torch::Config;
use gpuheap_record::{Bytes, DeviceRecording, EventKind, Recording, StackId};

use crate::classes::Classes;
use crate::fragmentation::cached;
use crate::frames::{FrameTableMarks, site};
use crate::holders::holders;
use crate::layout::free_ranges;
use crate::ledger::{lane_sums, moment};
use crate::lifetimes::Tick;
use crate::phases::Phases;
use crate::replay::Replay;
use crate::report::OutOfMemory;

/// Describes the last failed allocation of the recording.
pub(crate) fn find(
    recording: &Recording,
    device: &DeviceRecording,
    replay: &Replay,
    classes: &Classes,
    phases: &Phases,
    marks: &FrameTableMarks,
) -> Option<(Tick, OutOfMemory)> {
    let tick = *phases.ooms.last()?;
    let event = device.events.get(tick.event()?);
    let config = Config::from(&recording.settings);
    let asked = event.size;
    let sums = lane_sums(replay, tick);
    let (allocated, pending) = sums.iter().fold((0_u64, 0_u64), |(allocated, pending), sum| {
        (allocated.saturating_add(sum.allocated), pending.saturating_add(sum.pending))
    });
    let largest_free = free_ranges(replay, tick).iter().map(|range| range.size).max().unwrap_or(0);
    let (at_least, below) = limit_bounds(device, replay, &config);
    // The autograd engine's threads have no frames: there, the place is where the backward pass was started.
    let pass = phases.backward_of(tick).map(|pass| pass.root).unwrap_or_default();
    let stack = if event.stack == StackId::default() { pass } else { event.stack };
    let oom = OutOfMemory {
        moment: moment(replay, classes, device.events.times_us(), tick),
        count: phases.ooms.len() as u64,
        asked_bytes: Bytes::new(asked),
        cached_bytes: cached(replay, tick),
        largest_free_bytes: Bytes::new(largest_free),
        pending_bytes: Bytes::new(pending),
        device_free_bytes: Bytes::new(event.address),
        ideal_bytes: Bytes::new(allocated) + Bytes::new(pending) + Bytes::new(asked),
        limit_at_least_bytes: at_least,
        limit_below_bytes: below,
        site: marks.site_frame(recording, stack).map(|frame| site(recording, frame)),
        holders: holders(recording, replay, classes, phases, marks, tick),
    };
    Some((tick, oom))
}

/// What the failures and releases say about the cap on reserved memory: it was at least the most that was reserved,
/// and less than what a refused segment would have made of it.
pub(crate) fn limit_bounds(device: &DeviceRecording, replay: &Replay, config: &Config) -> (Bytes, Option<Bytes>) {
    let events = &device.events;
    let at_least = replay.peaks.reserved_bytes;
    let mut below: Option<Bytes> = None;
    let mut refused = |reserved: u64, size: u64| {
        // `empty_cache` releases without a refusal: a total that was reached later says nothing.
        let total = Bytes::new(reserved) + Bytes::new(size);
        if total > at_least {
            below = Some(below.map_or(total, |known| known.min(total)));
        }
    };
    let mut released_from: Option<u64> = None;
    for id in events.ids() {
        match events.kind(id) {
            EventKind::SegmentFree | EventKind::SegmentUnmap => {
                released_from.get_or_insert(replay.reserved[id.index()]);
            }
            EventKind::OutOfMemory => {
                let size = config.segment_size(events.size(id));
                refused(replay.reserved[id.index()], size);
                if let Some(before) = released_from.take() {
                    refused(before, size);
                }
            }
            // A segment right after a release: the release made room for it.
            EventKind::SegmentAlloc => {
                if let Some(before) = released_from.take() {
                    refused(before, events.size(id));
                }
            }
            _ => released_from = None,
        }
    }
    (at_least, below)
}
