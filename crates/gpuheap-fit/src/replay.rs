//! A program through PyTorch's exact allocator.

use gpuheap_alloc::torch::{Allocator, Config, Request, parse_conf};
use gpuheap_alloc::{BlockId, Heap, SimulatedDevice};

use crate::error::Error;
use crate::program::Program;
use crate::trace::{Event, Phase};

/// The most of one phase of one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PhasePeak {
    /// The step; 0 before the first.
    pub step: u32,
    /// The phase.
    pub phase: Phase,
    /// The most allocated bytes within it.
    pub allocated: u64,
    /// The most reserved bytes within it.
    pub reserved: u64,
}

/// What a replay came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replayed {
    /// The most allocated bytes, as `torch.cuda.max_memory_allocated()` counts.
    pub allocated: u64,
    /// The most reserved bytes, as `torch.cuda.max_memory_reserved()` counts.
    pub reserved: u64,
    /// The same where libraries need as much scratch memory as they may, if that was tried; not less than `reserved`.
    pub reserved_most: u64,
    /// The event at which most was allocated, or at which the memory ran out.
    pub event: usize,
    /// Whether a request was refused; nothing after it was replayed.
    pub out_of_memory: bool,
    /// Times that the cache was released for a request.
    pub retries: u64,
    /// Peaks by phase, in the order in which they occur.
    pub phases: Vec<PhasePeak>,
}

/// Reads settings of the allocator, as in `PYTORCH_CUDA_ALLOC_CONF`.
pub fn config(conf: &str) -> Result<Config, Error> {
    parse_conf(conf).map_err(|source| Error::BadConf { conf: conf.to_owned(), source })
}

/// What the allocator has after an event that changed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    /// The event.
    pub(crate) at: usize,
    /// The slot that was made or dropped.
    pub(crate) slot: u32,
    /// Allocated bytes.
    pub(crate) allocated: u64,
    /// Reserved bytes.
    pub(crate) reserved: u64,
}

/// Runs the program from its first event to its last, with at most `cap` bytes reserved.
#[must_use]
pub fn replay(program: &Program<'_>, config: &Config, cap: Option<u64>) -> Replayed {
    watched(program, config, cap, |_| {})
}

/// The same where slots are as large as `sizes` says.
#[must_use]
pub(crate) fn replay_sized(program: &Program<'_>, sizes: &[u64], config: &Config, cap: Option<u64>) -> Replayed {
    run(program, |slot| sizes[slot as usize], config, cap, |_| {})
}

/// The same, and `seen` hears of every change.
pub(crate) fn watched(program: &Program<'_>, config: &Config, cap: Option<u64>, seen: impl FnMut(Moment)) -> Replayed {
    run(program, |slot| program.slots[slot as usize].bytes, config, cap, seen)
}

fn run(
    program: &Program<'_>,
    size_of: impl Fn(u32) -> u64,
    config: &Config,
    cap: Option<u64>,
    mut seen: impl FnMut(Moment),
) -> Replayed {
    let device = SimulatedDevice::new(None);
    let mut allocator = Allocator::over(Heap::without_addresses(), config.clone(), cap, device);
    let mut blocks: Vec<Option<BlockId>> = vec![None; program.slots.len()];
    let mut result = Replayed {
        allocated: 0,
        reserved: 0,
        reserved_most: 0,
        event: 0,
        out_of_memory: false,
        retries: 0,
        phases: Vec::new(),
    };
    let mut now = PhasePeak { step: 0, phase: Phase::Setup, allocated: 0, reserved: 0 };
    for (at, event) in program.events.iter().enumerate() {
        match *event {
            Event::Alloc(slot) => {
                let size = size_of(slot);
                // Nothing is asked for where there is nothing to hold.
                if size == 0 {
                    continue;
                }
                let request = Request { size, stream: program.stream(slot), ..Request::default() };
                let Ok(block) = allocator.allocate(request, slot) else {
                    result.out_of_memory = true;
                    result.event = at;
                    break;
                };
                blocks[slot as usize] = Some(block);
                let totals = allocator.heap().totals();
                now.allocated = now.allocated.max(totals.allocated);
                now.reserved = now.reserved.max(totals.reserved);
                if totals.allocated > result.allocated {
                    result.allocated = totals.allocated;
                    result.event = at;
                }
                seen(Moment { at, slot, allocated: totals.allocated, reserved: totals.reserved });
            }
            Event::Free(slot) => {
                if let Some(block) = blocks[slot as usize].take() {
                    // The block is alive: it was just taken from the list of those that are.
                    let _ = allocator.free(block);
                    let totals = allocator.heap().totals();
                    seen(Moment { at, slot, allocated: totals.allocated, reserved: totals.reserved });
                }
            }
            Event::Phase(phase) => next_phase(&mut result, &mut now, &allocator, |now| now.phase = phase),
            Event::Step(step) => next_phase(&mut result, &mut now, &allocator, |now| {
                (now.step, now.phase) = (step, Phase::Other);
            }),
            _ => {}
        }
    }
    result.phases.push(now);
    result.phases.retain(|phase| phase.allocated > 0);
    let counters = allocator.counters();
    result.reserved = counters.peak_reserved;
    result.reserved_most = result.reserved;
    result.retries = counters.retries;
    result
}

fn next_phase(
    result: &mut Replayed,
    now: &mut PhasePeak,
    allocator: &Allocator<SimulatedDevice>,
    change: impl FnOnce(&mut PhasePeak),
) {
    result.phases.push(*now);
    change(now);
    let totals = allocator.heap().totals();
    (now.allocated, now.reserved) = (totals.allocated, totals.reserved);
}
