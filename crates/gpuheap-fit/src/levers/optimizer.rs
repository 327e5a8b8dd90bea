//! Other forms of the optimizer's step.

use foldhash::{HashMap, HashSet};

use super::{Edits, OptimizerForm};
use crate::cost::{HOOK_CALLS, PARAMETER_CALLS, SMALL_CALLS};
use crate::device::Device;
use crate::program::{Program, Slot, Work};
use crate::trace::{Class, Event, NO_MODULE, Phase};

/// State of fewer bytes than this, in 32-bit numbers, stays as it is in low-bit optimizers: 4096 numbers.
const LOW_BIT_LEAST: u64 = 4096 * 4;
/// Bytes of parameters whose state is whole, or on the device, at once where it is not all the time.
const PIECE: u64 = 256 << 20;
/// Kernels that a step of Adam takes for one parameter where they are not joined.
const KERNELS_PER_PARAMETER: f64 = 12.0;
/// How often kernels go over state that is rounded at random: they draw, add, mask, compare, choose and copy.
const ROUNDING_PASSES: f64 = 9.0;
/// Operators that a state tensor takes which is brought in and put away again.
const OPERATORS_TO_MOVE: f64 = 6.0;

/// The program with another form of the step. `None` where it has no optimizer, or gradients that never go.
#[must_use]
pub fn optimizer<'t>(program: &Program<'t>, form: OptimizerForm, device: &Device) -> Option<Program<'t>> {
    let phases = optimizer_phases(program);
    if phases.is_empty() {
        return None;
    }
    let sizes = Sizes::of(program);
    match form {
        OptimizerForm::Foreach => Some(program.clone()),
        OptimizerForm::Fused => {
            let work =
                Work { device_us: moved_us(sizes.traffic(), device), link_us: 0.0, host_calls: 0.25 * sizes.count };
            Some(without_temporaries(program, &phases, 0, work))
        }
        OptimizerForm::ForLoop => {
            // The same traffic, in one kernel for each parameter and operation.
            let kernels = KERNELS_PER_PARAMETER * sizes.count;
            let traffic = optimizer_traffic(program, &phases);
            let work = Work {
                device_us: moved_us(traffic, device) + kernels * device.kernel_us.value,
                link_us: 0.0,
                host_calls: kernels * 0.65 * SMALL_CALLS,
            };
            Some(without_temporaries(program, &phases, 2 * sizes.largest, work))
        }
        OptimizerForm::InBackward => in_backward(program, &phases, device),
        OptimizerForm::EightBit => Some(low_bit(program, &phases, &sizes, device, 8)),
        OptimizerForm::FourBit => Some(low_bit(program, &phases, &sizes, device, 4)),
    }
}

/// State in 16 bits between steps. A step makes it whole piece by piece.
#[must_use]
pub fn half_state<'t>(program: &Program<'t>, device: &Device) -> Option<Program<'t>> {
    let phases = optimizer_phases(program);
    if phases.is_empty() {
        return None;
    }
    let sizes = Sizes::of(program);
    let rounding = Work {
        device_us: moved_us(ROUNDING_PASSES * sizes.state, device),
        link_us: 0.0,
        host_calls: 2.0 * OPERATORS_TO_MOVE * SMALL_CALLS * sizes.count,
    };
    let mut result = in_pieces(program, &phases, device, rounding);
    scale_state(&mut result, |bytes| bytes / 2);
    Some(result)
}

/// State on the host between steps. A step fetches it piece by piece, and sends it back.
#[must_use]
pub fn offload<'t>(program: &Program<'t>, device: &Device) -> Option<Program<'t>> {
    let phases = optimizer_phases(program);
    if phases.is_empty() {
        return None;
    }
    let sizes = Sizes::of(program);
    // In, and out again before the next piece comes: the device waits for both.
    let copies = Work {
        device_us: 2.0 * sizes.state / device.link_bytes_per_second.value.max(1.0) * 1e6,
        link_us: 0.0,
        host_calls: OPERATORS_TO_MOVE * SMALL_CALLS * sizes.count,
    };
    let mut result = in_pieces(program, &phases, device, copies);
    scale_state(&mut result, |_| 0);
    Some(result)
}

/// The step for so many parameters at once that they have [`PIECE`] bytes: with their state and temporaries; `more` is
/// done beside it.
fn in_pieces<'t>(program: &Program<'t>, phases: &[(usize, usize)], device: &Device, more: Work) -> Program<'t> {
    let sizes = Sizes::of(program);
    let temporaries = phases.iter().map(|&phase| most_temporaries(program, phase)).max().unwrap_or(0);
    let all = sizes.state + temporaries as f64;
    // A piece is never smaller than the largest parameter.
    let part = (PIECE.max(sizes.largest) as f64 / sizes.gradients.max(1.0)).min(1.0);
    let work = Work {
        device_us: moved_us(optimizer_traffic(program, phases), device) + more.device_us,
        link_us: 0.0,
        host_calls: PARAMETER_CALLS * sizes.count + more.host_calls,
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a size of memory")]
    without_temporaries(program, phases, (all * part) as u64, work)
}

fn moved_us(bytes: f64, device: &Device) -> f64 {
    bytes / device.bandwidth() * 1e6
}

/// The most bytes that come and go within a step of the optimizer.
fn most_temporaries(program: &Program<'_>, (start, end): (usize, usize)) -> u64 {
    let (mut alive, mut most) = (0_u64, 0_u64);
    let mut open: HashSet<u32> = HashSet::default();
    for event in &program.events[start..end] {
        match *event {
            Event::Alloc(slot) if !program.slots[slot as usize].class.is_lasting() => {
                open.insert(slot);
                alive += program.slots[slot as usize].rounded();
                most = most.max(alive);
            }
            Event::Free(slot) if open.remove(&slot) => alive -= program.slots[slot as usize].rounded(),
            _ => {}
        }
    }
    most
}

/// What the optimizer works on, in bytes.
struct Sizes {
    gradients: f64,
    state: f64,
    largest: u64,
    count: f64,
}

impl Sizes {
    fn of(program: &Program<'_>) -> Self {
        let slots = || program.slots.iter().take(program.trace.storages.len());
        let sum = |class: Class| slots().filter(|slot| slot.class == class).map(|slot| slot.bytes).sum::<u64>() as f64;
        let parameters = slots().filter(|slot| slot.class == Class::Parameter);
        let trained = program.trace.model.trainable_bytes;
        let gradients = if trained > 0 { trained as f64 } else { sum(Class::Parameter) };
        Self {
            gradients,
            state: sum(Class::Optimizer),
            largest: parameters.clone().map(|slot| slot.bytes).max().unwrap_or(0),
            count: parameters.count() as f64,
        }
    }

    /// Parameters, gradients and state read, parameters and state written.
    fn traffic(&self) -> f64 {
        3.0 * self.gradients + 2.0 * self.state
    }
}

/// Each piece of the program that is an optimizer's step.
fn optimizer_phases(program: &Program<'_>) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = None;
    for (at, event) in program.events.iter().enumerate() {
        if matches!(event, Event::Phase(_) | Event::Step(_)) {
            if let Some(start) = start.take() {
                found.push((start, at));
            }
            if matches!(event, Event::Phase(Phase::Optimizer)) {
                start = Some(at + 1);
            }
        }
    }
    found.extend(start.map(|start| (start, program.events.len())));
    found
}

fn optimizer_traffic(program: &Program<'_>, phases: &[(usize, usize)]) -> f64 {
    let Some(&(start, end)) = phases.last() else { return 0.0 };
    let calls = program.events[start..end].iter().filter_map(|event| match event {
        Event::Op(call) => Some(&program.trace.calls[*call as usize]),
        _ => None,
    });
    calls.map(|call| call.read.saturating_add(call.written) as f64).sum()
}

/// The steps of the optimizer without what comes and goes within them, but for `bytes` at once; with `work` in the place
/// of their operators.
fn without_temporaries<'t>(program: &Program<'t>, phases: &[(usize, usize)], bytes: u64, work: Work) -> Program<'t> {
    let mut result = program.clone();
    let work = (work != Work::default()).then(|| result.work(work));
    let mut edits = Edits::default();
    let scratch = (bytes > 0).then(|| result.add(Slot { bytes, class: Class::Temporary, module: NO_MODULE }));
    for &(start, end) in phases {
        let mut open: HashMap<u32, usize> = HashMap::default();
        for at in start..end {
            match program.events[at] {
                Event::Alloc(slot) if !program.slots[slot as usize].class.is_lasting() => {
                    open.insert(slot, at);
                }
                Event::Free(slot) => {
                    if let Some(made) = open.remove(&slot) {
                        edits.remove(made);
                        edits.remove(at);
                    }
                }
                Event::Op(_) => edits.remove(at),
                _ => {}
            }
        }
        if let Some(work) = work {
            edits.before(end, work);
        }
        if let Some(scratch) = scratch {
            // When all state is there.
            edits.before(end, Event::Alloc(scratch));
            edits.before(end, Event::Free(scratch));
        }
    }
    (result.events, _) = edits.apply(&program.events);
    result
}

fn scale_state(program: &mut Program<'_>, scale: impl Fn(u64) -> u64) {
    for slot in program.slots.iter_mut().filter(|slot| slot.class == Class::Optimizer) {
        // Counters of steps are single numbers.
        if slot.bytes >= LOW_BIT_LEAST {
            slot.bytes = scale(slot.bytes);
        }
    }
}

fn low_bit<'t>(
    program: &Program<'t>,
    phases: &[(usize, usize)],
    sizes: &Sizes,
    device: &Device,
    bits: u64,
) -> Program<'t> {
    // State of one parameter in full is there for a moment: two moments of it.
    let state = sizes.state * bits as f64 / 32.0;
    let work = Work {
        device_us: moved_us(3.0 * sizes.gradients + 2.0 * state, device),
        link_us: 0.0,
        host_calls: KERNELS_PER_PARAMETER * SMALL_CALLS * sizes.count,
    };
    let mut result = without_temporaries(program, phases, 2 * sizes.largest, work);
    // Codes, and a 32-bit scale for each block of 256 (8 bits) or 128 (4 bits) numbers.
    let block = if bits == 8 { 256 } else { 128 };
    scale_state(&mut result, |bytes| bytes * bits / 32 + bytes.div_ceil(block));
    result
}

/// Each gradient is used and dropped as soon as it is whole.
fn in_backward<'t>(program: &Program<'t>, phases: &[(usize, usize)], device: &Device) -> Option<Program<'t>> {
    let trace = program.trace;
    let mut result = without_temporaries(program, phases, 0, Work::default());
    // A gradient's share of what the optimizer reads and writes, in kernels of its own.
    let traffic = optimizer_traffic(program, phases) / Sizes::of(program).gradients.max(1.0);
    let begins = KERNELS_PER_PARAMETER * device.kernel_us.value;
    let events = std::mem::take(&mut result.events);
    let mut edits = Edits::default();
    let mut made: HashMap<u32, usize> = HashMap::default();
    let mut last_use: HashMap<u32, usize> = HashMap::default();
    let mut dropped = 0_usize;
    let mut gone: Vec<u32> = Vec::new();
    let mut phase = Phase::Setup;
    let drop_all = |made: &mut HashMap<u32, usize>,
                    last_use: &HashMap<u32, usize>,
                    edits: &mut Edits,
                    result: &mut Program<'t>| {
        let mut all: Vec<(u32, usize)> = made.drain().collect();
        all.sort_unstable_by_key(|&(slot, at)| (at, slot));
        for (slot, at) in all {
            let at = last_use.get(&slot).copied().unwrap_or(at).max(at);
            let bytes = 2 * result.slots[slot as usize].bytes;
            let scratch = result.add(Slot { bytes, class: Class::Temporary, module: NO_MODULE });
            let device_us = moved_us(traffic * bytes as f64 / 2.0, device) + begins;
            let step = result.work(Work { device_us, link_us: 0.0, host_calls: HOOK_CALLS });
            for event in [Event::Alloc(scratch), step, Event::Free(scratch), Event::Free(slot)] {
                edits.after(at, event);
            }
            gone.push(slot);
        }
    };
    let mut drop_all = drop_all;
    let mut removed: Vec<(usize, u32)> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        match *event {
            Event::Phase(next) => {
                if phase == Phase::Backward {
                    dropped += made.len();
                    drop_all(&mut made, &last_use, &mut edits, &mut result);
                }
                phase = next;
            }
            Event::Alloc(slot) if program_class(&result, slot) == Class::Gradient && phase == Phase::Backward => {
                made.insert(slot, at);
            }
            // One that is dropped within the same backward pass is a temporary already.
            Event::Free(slot) if program_class(&result, slot) == Class::Gradient && made.remove(&slot).is_none() => {
                removed.push((at, slot));
            }
            Event::Op(call) => {
                let call = &trace.calls[call as usize];
                for slot in trace.inputs(call).iter().chain(trace.outputs(call)) {
                    if made.contains_key(slot) {
                        last_use.insert(*slot, at);
                    }
                }
            }
            _ => {}
        }
    }
    if dropped == 0 {
        return None;
    }
    gone.sort_unstable();
    for (at, slot) in removed {
        if gone.binary_search(&slot).is_ok() {
            edits.remove(at);
        }
    }
    (result.events, _) = edits.apply(&events);
    Some(result)
}

fn program_class(program: &Program<'_>, slot: u32) -> Class {
    program.slots[slot as usize].class
}
