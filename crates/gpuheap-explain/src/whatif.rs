//! What another setting would have done: the recorded program, run through the allocator's rules from its first request
//! to its last.

use gpuheap_alloc::torch::{Allocator, Config, Request};
use gpuheap_alloc::{BlockId, Heap, SimulatedDevice};
use gpuheap_record::{Bytes, DeviceRecording, EventId, PoolId, Recording};

use crate::frames::{FrameTableMarks, site};
use crate::lifetimes::Tick;
use crate::program::{Program, Step, place, program, stream_of};
use crate::replay::Replay;
use crate::report::{WhatIf, WhatIfRole};

/// A recorded program, ready to be run under any setting.
#[derive(Debug)]
pub(crate) struct Runner<'a> {
    recording: &'a Recording,
    device: &'a DeviceRecording,
    replay: &'a Replay,
    program: Program,
}

/// A change to the program itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Change {
    /// All work is done on one stream.
    pub(crate) one_stream: bool,
    /// The cache is emptied once, after this event.
    pub(crate) empty_cache_after: Option<EventId>,
}

/// Where a run ran out of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    /// `None` where what was there before the first event did not fit.
    pub(crate) event: Option<EventId>,
    /// Rounded request in bytes.
    pub(crate) asked: u64,
}

/// What a run came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    pub(crate) counters: gpuheap_alloc::torch::Counters,
    pub(crate) failure: Option<Failure>,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(recording: &'a Recording, device: &'a DeviceRecording, replay: &'a Replay) -> Self {
        Self { recording, device, replay, program: program(device, replay) }
    }

    /// Runs the program under `config`, with at most `cap` bytes reserved. The run ends at the first request that fails:
    /// what the program would have done then is not known.
    pub(crate) fn run(&self, config: &Config, cap: Option<u64>) -> Outcome {
        self.run_changed(config, cap, Change::default())
    }

    /// The same with a change to the program.
    pub(crate) fn run_changed(&self, config: &Config, cap: Option<u64>, change: Change) -> Outcome {
        let rows = self.replay.allocations.rows();
        let mut allocator = Allocator::over(Heap::without_addresses(), config.clone(), cap, SimulatedDevice::new(None));
        let mut blocks: Vec<Option<BlockId>> = vec![None; rows.len()];
        let request = |row: &crate::lifetimes::Allocation| {
            let (stream, pool) = place(self.replay, row.lane);
            Request { size: row.requested, stream: if change.one_stream { 0 } else { stream }, pool }
        };
        // What was there before the first event is asked for in the order of its addresses.
        let mut before: Vec<usize> = (0..rows.len()).filter(|&index| rows[index].born == Tick::START).collect();
        before.sort_by_key(|&index| rows[index].address);
        for index in before {
            let owner = u32::try_from(index).unwrap_or(u32::MAX);
            match allocator.allocate(request(&rows[index]), owner) {
                Ok(block) => blocks[index] = Some(block),
                Err(error) => {
                    let failure = Failure { event: None, asked: error.rounded };
                    return Outcome { counters: allocator.counters(), failure: Some(failure) };
                }
            }
        }
        let mut empty_cache_after = change.empty_cache_after;
        for &(step, event) in &self.program.steps {
            if empty_cache_after.is_some_and(|after| event > after) {
                allocator.release_unused();
                empty_cache_after = None;
            }
            match step {
                Step::Allocate(id) => match allocator.allocate(request(&rows[id.index()]), id.get()) {
                    Ok(block) => blocks[id.index()] = Some(block),
                    Err(error) => {
                        let failure = Failure { event: Some(event), asked: error.rounded };
                        return Outcome { counters: allocator.counters(), failure: Some(failure) };
                    }
                },
                Step::Free(id) => {
                    if let Some(block) = blocks[id.index()].take() {
                        let _ = allocator.free(block);
                    }
                }
                Step::Drop(id) => {
                    if let Some(block) = blocks[id.index()].take() {
                        let _ = allocator.defer(block);
                    }
                }
                Step::Complete(id) => {
                    let _ = allocator.complete(id.get());
                }
                Step::EmptyCache => allocator.release_unused(),
                Step::Failed(_) => {
                    let size = self.device.events.size(event);
                    let stream = stream_of(self.recording, self.device, event);
                    let request = Request { size, stream, pool: PoolId::default() };
                    match allocator.allocate(request, u32::MAX) {
                        // It would have gone through; what came after it is the failed program's.
                        Ok(block) => {
                            let _ = allocator.free(block);
                        }
                        Err(error) => {
                            let failure = Failure { event: Some(event), asked: error.rounded };
                            return Outcome { counters: allocator.counters(), failure: Some(failure) };
                        }
                    }
                }
            }
        }
        Outcome { counters: allocator.counters(), failure: None }
    }

    /// The smallest cap, to 2 MiB, under which the program runs to its end; `None` if it does not do so without one.
    pub(crate) fn smallest_limit(&self, config: &Config, unlimited: &Outcome) -> Option<u64> {
        const GRAIN: u64 = 2 << 20;
        if unlimited.failure.is_some() {
            return None;
        }
        let mut enough = unlimited.counters.peak_reserved.div_ceil(GRAIN);
        let mut too_little = unlimited.counters.peak_allocated / GRAIN;
        while enough.saturating_sub(too_little) > 1 {
            let middle = u64::midpoint(too_little, enough);
            if self.run(config, Some(middle * GRAIN)).failure.is_none() {
                enough = middle;
            } else {
                too_little = middle;
            }
        }
        Some(enough * GRAIN)
    }

    /// One row of the report.
    pub(crate) fn row(
        &self,
        conf: &str,
        role: WhatIfRole,
        cap: Option<u64>,
        outcome: &Outcome,
        marks: &FrameTableMarks,
    ) -> WhatIf {
        let event = outcome.failure.and_then(|failure| failure.event);
        let stack = event.map(|event| self.device.events.stack(event)).unwrap_or_default();
        WhatIf {
            conf: conf.to_owned(),
            role,
            limit_bytes: cap.map(Bytes::new),
            peak_allocated_bytes: Bytes::new(outcome.counters.peak_allocated),
            peak_reserved_bytes: Bytes::new(outcome.counters.peak_reserved),
            segments: outcome.counters.segments,
            driver_calls: outcome.counters.driver_calls,
            retries: outcome.counters.retries,
            oom: outcome.failure.is_some(),
            oom_event: event.map(|event| u64::from(event.get())),
            oom_site: marks.site_frame(self.recording, stack).map(|frame| site(self.recording, frame)),
            smallest_limit_bytes: None,
            exact: self.replay.complete
                && self.replay.unexplained == 0
                && self.replay.check.exact
                && !self.program.starts_late
                && !self.program.defers,
        }
    }
}
