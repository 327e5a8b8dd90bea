//! The loss in chunks: the scores of all words are never there at once.

use crate::cost::SMALL_CALLS;
use crate::device::{Device, is_matrix_product};
use crate::program::{Program, Slot, Work};
use crate::trace::{Call, Class, Event, Phase};

/// Operators that a chunk takes in both passes, beside those that the whole takes.
const OPERATORS_PER_CHUNK: f64 = 26.0;
/// How often the second pass over the scores goes over them, beside the product: it makes the loss of them again.
const PASSES: f64 = 4.0;
/// How often each chunk goes over the weights: it reads them in each pass, and adds to their gradient.
const WEIGHTS: f64 = 4.0;

/// The program with the last layer and the loss done in `chunks` parts, each made again for its backward pass. `None`
/// where there is no loss over large scores, or no layer of its own makes them: nothing else can hold them back.
#[must_use]
pub fn chunked<'t>(program: &Program<'t>, chunks: u32, device: &Device) -> Option<Program<'t>> {
    let scores = scores(program)?;
    let is_scores = copies(program, scores);
    let head = head(program, &is_scores)?;
    let mut result = program.clone();
    for (slot, _) in result.slots.iter_mut().zip(&is_scores).filter(|&(_, &is)| is) {
        slot.bytes = slot.bytes.div_ceil(u64::from(chunks.max(1)));
    }
    let work = result.work(beside(program, scores, head, chunks, device));
    result.events = made_again(program, &is_scores, work);
    Some(result)
}

/// The name of the layer that makes the scores, if `plan.apply` does not know it by that.
#[must_use]
pub fn unusual(program: &Program<'_>) -> Option<String> {
    let is_scores = copies(program, scores(program)?);
    let name = program.trace.module_name(head(program, &is_scores)?.module);
    (name.rsplit('.').next() != Some("lm_head")).then(|| name.to_owned())
}

/// The product that the scores come from, if it is a layer's that has no others within.
fn head<'t>(program: &Program<'t>, is_scores: &[bool]) -> Option<&'t Call> {
    let trace = program.trace;
    let call = trace.calls.iter().find(|call| makes_scores(program, call, is_scores))?;
    let is_layer = trace.modules.iter().all(|module| module.parent != call.module);
    (is_layer && !trace.module_name(call.module).is_empty()).then_some(call)
}

/// What has the size of the scores and is made of them or makes them, short of the product that they come from: other
/// types of number, logarithms, gradients. Other storages may have that size, too, such as attention's.
fn copies(program: &Program<'_>, scores: u32) -> Vec<bool> {
    let trace = program.trace;
    let size = program.slots[scores as usize].bytes;
    let may_be = |slot: u32| {
        let Slot { bytes, class, .. } = program.slots[slot as usize];
        let passing = !class.is_lasting() && !matches!(class, Class::Gradient | Class::Input | Class::Workspace);
        // Copies in other types of numbers are half or twice as large.
        passing && bytes >= size / 2 && bytes <= size.saturating_mul(2)
    };
    let mut is_scores = vec![false; program.slots.len()];
    for call in trace.calls.iter().filter(|call| is_loss(trace.op_name(call))) {
        for &slot in trace.inputs(call).iter().filter(|&&slot| may_be(slot)) {
            is_scores[slot as usize] = true;
        }
    }
    let products: Vec<bool> = trace.ops.iter().map(|op| is_matrix_product(op)).collect();
    let calls = || trace.calls.iter().filter(|call| !products[call.op as usize]);
    let spread = |is_scores: &mut Vec<bool>, from: &[u32], to: &[u32]| {
        let reaches = from.iter().any(|&slot| is_scores[slot as usize]);
        let new: Vec<u32> = to.iter().copied().filter(|&slot| reaches && !is_scores[slot as usize]).collect();
        let new = new.into_iter().filter(|&slot| may_be(slot));
        new.map(|slot| is_scores[slot as usize] = true).count()
    };
    loop {
        let mut found = 0;
        for call in calls().rev() {
            found += spread(&mut is_scores, trace.outputs(call), trace.inputs(call));
        }
        for call in calls() {
            found += spread(&mut is_scores, trace.inputs(call), trace.outputs(call));
        }
        if found == 0 {
            return is_scores;
        }
    }
}

/// Whether a call is the product that the scores come from.
fn makes_scores(program: &Program<'_>, call: &Call, is_scores: &[bool]) -> bool {
    let trace = program.trace;
    trace.outputs(call).iter().any(|&slot| is_scores[slot as usize]) && is_matrix_product(trace.op_name(call))
}

/// What chunks cost beside making the scores again.
fn beside(program: &Program<'_>, scores: u32, head: &Call, chunks: u32, device: &Device) -> Work {
    let bytes = |slot: u32| program.slots[slot as usize].bytes;
    let is_weight = |slot: &u32| program.slots[*slot as usize].class == Class::Parameter;
    let weights: u64 = program.trace.inputs(head).iter().copied().filter(is_weight).map(bytes).sum();
    let moved = PASSES * bytes(scores) as f64 + WEIGHTS * f64::from(chunks.saturating_sub(1)) * weights as f64;
    Work {
        device_us: moved / device.bandwidth() * 1e6,
        link_us: 0.0,
        host_calls: f64::from(chunks) * OPERATORS_PER_CHUNK * SMALL_CALLS,
    }
}

/// The events, with the product that the scores come from once more in each backward pass, and `work`.
fn made_again(program: &Program<'_>, is_scores: &[bool], work: Event) -> Vec<Event> {
    let trace = program.trace;
    let mut events = Vec::with_capacity(program.events.len() + 4);
    let mut made: Option<u32> = None;
    for &event in &program.events {
        events.push(event);
        match event {
            Event::Op(call) if makes_scores(program, &trace.calls[call as usize], is_scores) => made = Some(call),
            Event::Phase(Phase::Backward) => {
                if let Some(call) = made.take() {
                    events.extend([Event::Op(call), work]);
                }
            }
            _ => {}
        }
    }
    events
}

fn is_loss(name: &str) -> bool {
    ["log_softmax", "cross_entropy", "nll_loss"].iter().any(|part| name.contains(part)) && !name.contains("backward")
}

/// The storage that the loss takes its scores from: what the largest softmax reads.
#[must_use]
pub fn scores(program: &Program<'_>) -> Option<u32> {
    let trace = program.trace;
    let found = trace.calls.iter().filter(|call| is_loss(trace.op_name(call)));
    let largest = found
        .filter_map(|call| trace.inputs(call).iter().copied().max_by_key(|&slot| program.slots[slot as usize].bytes))
        .max_by_key(|&slot| program.slots[slot as usize].bytes)?;
    // Of smaller scores there is nothing to be had.
    let passing = !program.slots[largest as usize].class.is_lasting();
    (passing && program.slots[largest as usize].bytes >= 16 << 20).then_some(largest)
}
