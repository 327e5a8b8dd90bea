//! What another setting would have done: the recorded program, run through the allocator's rules from its first request
//! to its last.

use gpuheap_alloc::torch::{Allocator, Config, Counters, Request};
use gpuheap_alloc::{BlockId, Direction, Heap, SimulatedDevice};
use gpuheap_record::{Bytes, DeviceRecording, EventId, EventKind, PoolId, Recording};

use crate::frames::{FrameTableMarks, site};
use crate::lifetimes::{Allocation, Tick};
use crate::oom::limit_bounds;
use crate::program::{Program, Step, place, program, stream_of};
use crate::replay::Replay;
use crate::report::{WhatIf, WhatIfRole};

/// A recorded program, ready to be run under any setting.
#[derive(Debug)]
pub(crate) struct Runner<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) device: &'a DeviceRecording,
    pub(crate) replay: &'a Replay,
    program: Program,
    /// Which way the driver's addresses go.
    direction: Direction,
    /// Whether the program, run freely under its own settings, comes to the recorded peak.
    reproduces: bool,
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
}

/// What a run came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    pub(crate) counters: Counters,
    pub(crate) failure: Option<Failure>,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(recording: &'a Recording, device: &'a DeviceRecording, replay: &'a Replay) -> Self {
        let program = program(device, replay);
        let mut runner = Self { recording, device, replay, program, direction: Direction::default(), reproduces: true };
        // Addresses of segments decide ties, and which way they go differs from machine to machine: the way that comes to
        // what was recorded is taken for all settings.
        let config = Config::from(&recording.settings);
        let cap = recorded_cap(device, replay, &config);
        let comes_true = |runner: &Self| {
            let counters = runner.run(&config, cap).counters;
            counters.peak_reserved == replay.peaks.reserved_bytes.get()
                && counters.peak_allocated == replay.peaks.allocated_bytes.get()
        };
        if !comes_true(&runner) {
            runner.direction = Direction::Ascending;
            if !comes_true(&runner) {
                (runner.direction, runner.reproduces) = (Direction::default(), false);
            }
        }
        runner
    }

    /// The recorded run itself, as its events tell it.
    pub(crate) fn recorded(&self) -> Outcome {
        let count = |kind: EventKind| self.device.events.kinds().iter().filter(|&&of| of == kind).count() as u64;
        let oom = self.device.events.ids().rfind(|&id| self.device.events.kind(id) == EventKind::OutOfMemory);
        let peaks = &self.replay.peaks;
        Outcome {
            counters: Counters {
                peak_reserved: peaks.reserved_bytes.get(),
                peak_allocated: peaks.allocated_bytes.get(),
                peak_active: peaks.active_bytes.get(),
                segments: count(EventKind::SegmentAlloc),
                driver_calls: self.replay.check.segment_events,
                retries: self.replay.forced_releases as u64,
            },
            failure: oom.map(|event| Failure { event: Some(event) }),
        }
    }

    /// Runs the program under `config`, with at most `cap` bytes reserved. The run ends at the first request that fails:
    /// what the program would have done then is not known.
    pub(crate) fn run(&self, config: &Config, cap: Option<u64>) -> Outcome {
        self.run_changed(config, cap, Change::default())
    }

    /// The same with a change to the program.
    pub(crate) fn run_changed(&self, config: &Config, cap: Option<u64>, change: Change) -> Outcome {
        self.run_watched(config, cap, change, &mut |_, _| {})
    }

    /// The same, telling `watch` the bytes that are reserved after each event of the program: the event is `None` for
    /// what was there before the first.
    pub(crate) fn run_watched(
        &self,
        config: &Config,
        cap: Option<u64>,
        change: Change,
        watch: &mut impl FnMut(Option<EventId>, u64),
    ) -> Outcome {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a cap is no larger")]
        let cap = cap
            .map(|cap| if config.memory_fraction < 1.0 { (cap as f64 * config.memory_fraction) as u64 } else { cap });
        let device = SimulatedDevice::new(None).going(self.direction);
        let mut allocator = Allocator::over(Heap::without_addresses(), config.clone(), cap, device);
        let failure = self.drive(&mut allocator, change, watch).err();
        Outcome { counters: allocator.counters(), failure }
    }

    /// Asks `allocator` for all that the program asked for, up to the first request that fails.
    fn drive(
        &self,
        allocator: &mut Allocator<SimulatedDevice>,
        change: Change,
        watch: &mut impl FnMut(Option<EventId>, u64),
    ) -> Result<(), Failure> {
        let failed_at = |event| move |_| Failure { event };
        let rows = self.replay.allocations.rows();
        let mut blocks: Vec<Option<BlockId>> = vec![None; rows.len()];
        let request = |row: &Allocation| {
            let (stream, pool) = place(self.replay, row.lane);
            Request { size: row.requested, stream: if change.one_stream { 0 } else { stream }, pool }
        };
        // What was there before the first event is asked for in the order of its addresses.
        let mut before: Vec<usize> = (0..rows.len()).filter(|&index| rows[index].born == Tick::START).collect();
        before.sort_by_key(|&index| rows[index].address);
        for index in before {
            let owner = u32::try_from(index).unwrap_or(u32::MAX);
            blocks[index] = Some(allocator.allocate(request(&rows[index]), owner).map_err(failed_at(None))?);
        }
        watch(None, allocator.heap().totals().reserved);
        let mut empty_cache_after = change.empty_cache_after;
        for &(step, event) in &self.program.steps {
            if empty_cache_after.is_some_and(|after| event > after) {
                allocator.release_unused();
                empty_cache_after = None;
            }
            match step {
                Step::Allocate(id) => {
                    let block = allocator.allocate(request(&rows[id.index()]), id.get());
                    blocks[id.index()] = Some(block.map_err(failed_at(Some(event)))?);
                }
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
                Step::Failed => {
                    let size = self.device.events.size(event);
                    let stream = stream_of(self.recording, self.device, event);
                    let request = Request { size, stream, pool: PoolId::default() };
                    let block = allocator.allocate(request, u32::MAX).map_err(failed_at(Some(event)))?;
                    // It would have gone through; what came after it is the failed program's.
                    let _ = allocator.free(block);
                }
            }
            watch(Some(event), allocator.heap().totals().reserved);
        }
        Ok(())
    }

    /// The smallest cap, to 2 MiB, under which the program runs to its end; `None` if it does not do so without one.
    pub(crate) fn smallest_limit(&self, config: &Config, unlimited: &Outcome) -> Option<u64> {
        const GRAIN: u64 = 2 << 20;
        if unlimited.failure.is_some() {
            return None;
        }
        let runs = |grains: u64| self.run(config, Some(grains * GRAIN)).failure.is_none();
        let mut enough = unlimited.counters.peak_reserved.div_ceil(GRAIN);
        // The cap is compared with what a request needs, not with what is mapped for it: up to a handle more or less.
        let handle = config.large_segment.div_ceil(GRAIN) + 1;
        let most = enough + handle;
        while !runs(enough) {
            enough += 1;
            if enough > most {
                return None;
            }
        }
        let mut too_little = unlimited.counters.peak_allocated.div_ceil(GRAIN).saturating_sub(handle);
        while enough.saturating_sub(too_little) > 1 {
            let middle = u64::midpoint(too_little, enough);
            if runs(middle) {
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
            peak_active_bytes: Bytes::new(outcome.counters.peak_active),
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
                && self.reproduces
                && !self.program.starts_late
                && !self.program.defers,
        }
    }
}

/// The cap on reserved memory that a recording shows, if it shows any: requests were refused under it. Any cap between
/// the most that was reserved and the least that was refused makes the same run; the lower one is taken.
pub(crate) fn recorded_cap(device: &DeviceRecording, replay: &Replay, config: &Config) -> Option<u64> {
    let failed = device.events.kinds().contains(&EventKind::OutOfMemory);
    (failed || replay.forced_releases > 0).then(|| limit_bounds(device, replay, config).0.get())
}
