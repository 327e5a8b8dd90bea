//! The recording as a program: what it asked of the allocator, free of where the blocks were placed.

use gpuheap_record::{DeviceRecording, EventId, EventKind, PoolId, Recording};

use crate::lifetimes::{AllocationId, LaneId, Tick};
use crate::replay::Replay;

/// One thing that the program asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A block for this allocation.
    Allocate(AllocationId),
    /// Its block can be used again.
    Free(AllocationId),
    /// The program drops it, another stream still uses it.
    Drop(AllocationId),
    /// No other stream uses it any more.
    Complete(AllocationId),
    /// The cache is emptied.
    EmptyCache,
    /// A request that failed when it was recorded.
    Failed,
}

/// What the program asked for, in order.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) steps: Vec<(Step, EventId)>,
    /// Whether some memory was alive before the first event.
    pub(crate) starts_late: bool,
    /// Whether frees waited for other streams: when they complete is the GPU's business and taken as recorded.
    pub(crate) defers: bool,
}

/// Takes a device's recording apart.
pub(crate) fn program(device: &DeviceRecording, replay: &Replay) -> Program {
    let events = &device.events;
    // What ends at a tick: the replay has matched each free with its allocation.
    let count = events.len();
    let mut ends: Vec<Option<AllocationId>> = vec![None; count];
    let mut born: Vec<Option<AllocationId>> = vec![None; count];
    let row_of = |tick: Tick| tick.event().map(EventId::index).filter(|&row| row < count);
    let mut starts_late = false;
    for (id, row) in replay.allocations.iter() {
        match row_of(row.born) {
            Some(event) => born[event] = Some(id),
            None => starts_late = true,
        }
        for tick in [row.freed, row.completed] {
            if let Some(event) = row_of(tick).filter(|_| tick != Tick::START) {
                ends[event] = Some(id);
            }
        }
    }
    let mut steps = Vec::with_capacity(count * 2 / 3);
    let mut defers = false;
    let mut after_release = 0;
    for event in events.ids() {
        let row = event.index();
        match events.kind(event) {
            EventKind::Alloc => steps.extend(born[row].map(|id| (Step::Allocate(id), event))),
            EventKind::FreeRequested => {
                let Some(id) = ends[row] else { continue };
                let completed = replay.allocations.get(id).completed;
                if completed.0 == Tick::after(event).0 + 1 {
                    steps.push((Step::Free(id), event));
                } else {
                    defers = true;
                    steps.push((Step::Drop(id), event));
                }
            }
            EventKind::FreeCompleted => {
                let Some(id) = ends[row] else { continue };
                let freed = replay.allocations.get(id).freed;
                if freed.0 + 1 != Tick::after(event).0 {
                    let step = if freed == Tick::after(event) { Step::Free(id) } else { Step::Complete(id) };
                    steps.push((step, event));
                }
            }
            EventKind::OutOfMemory => steps.push((Step::Failed, event)),
            EventKind::SegmentFree | EventKind::SegmentUnmap if row >= after_release => {
                after_release = end_of_release(device, row);
                if is_explicit(device, row, after_release) {
                    steps.push((Step::EmptyCache, event));
                }
            }
            _ => {}
        }
    }
    Program { steps, starts_late, defers }
}

/// The row behind a run of segments that go back.
pub(crate) fn end_of_release(device: &DeviceRecording, row: usize) -> usize {
    let kinds = &device.events.kinds()[row..];
    let run = kinds.iter().take_while(|kind| matches!(kind, EventKind::SegmentFree | EventKind::SegmentUnmap));
    row + run.count()
}

/// Whether the program emptied the cache itself: a release for want of memory has the stack of the request that it
/// makes room for, and that follows at once.
pub(crate) fn is_explicit(device: &DeviceRecording, row: usize, end: usize) -> bool {
    let events = &device.events;
    let Some(next) = events.kinds().get(end) else { return true };
    let follows = matches!(next, EventKind::SegmentAlloc | EventKind::SegmentMap | EventKind::OutOfMemory);
    !follows || events.stacks()[row] != events.stacks()[end]
}

/// The stream's raw handle and the pool of a lane of the replay.
pub(crate) fn place(replay: &Replay, lane: LaneId) -> (u64, PoolId) {
    let lane = replay.lanes.get(lane);
    (lane.stream, lane.pool)
}

/// The stream's raw handle of an event.
pub(crate) fn stream_of(recording: &Recording, device: &DeviceRecording, event: EventId) -> u64 {
    recording.streams.get(device.events.stream(event)).copied().unwrap_or(0)
}
