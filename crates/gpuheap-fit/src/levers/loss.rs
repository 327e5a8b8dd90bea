//! The loss in chunks: the scores of all words are never there at once.

use crate::cost::SMALL_CALLS;
use crate::device::{Device, is_matrix_product};
use crate::program::{Program, Slot, Work};
use crate::trace::{Class, Event, NO_MODULE, Phase};

use super::Edits;

/// Operators that a chunk takes in both passes, beside those that the whole takes.
const OPERATORS_PER_CHUNK: f64 = 26.0;
/// How often the second pass over the scores goes over them: it makes them, and the loss of them, again.
const PASSES: f64 = 5.0;

/// The program with the last layer and the loss done in `chunks` parts, each made again for its backward pass. `None`
/// where there is no loss over large scores.
#[must_use]
pub fn chunked<'t>(program: &Program<'t>, chunks: u32, device: &Device) -> Option<Program<'t>> {
    let trace = program.trace;
    let scores = scores(program)?;
    let size = program.slots[scores as usize].bytes;
    let phases = program.phases();
    let mut result = program.clone();
    let mut is_scores = vec![false; program.slots.len()];
    let head = program.slots[scores as usize].module;
    for (at, event) in program.events.iter().enumerate() {
        let Event::Alloc(slot) = *event else { continue };
        let Slot { bytes, class, module } = program.slots[slot as usize];
        let passing = !class.is_lasting() && !matches!(class, Class::Gradient | Class::Input);
        let near = module == NO_MODULE || trace.is_within(module, head) || trace.is_within(head, module);
        let in_step = matches!(phases[at], Phase::Forward | Phase::Loss | Phase::Backward);
        // Copies in other types of number are half or twice as large.
        is_scores[slot as usize] = passing && near && in_step && bytes >= size / 2 && bytes <= size.saturating_mul(2);
    }
    for (slot, _) in result.slots.iter_mut().zip(&is_scores).filter(|&(_, &is)| is) {
        slot.bytes = slot.bytes.div_ceil(u64::from(chunks.max(1)));
    }
    let again = result.work(again(program, scores, chunks, device));
    let mut edits = Edits::default();
    for (at, event) in program.events.iter().enumerate() {
        if *event == Event::Phase(Phase::Backward) {
            edits.after(at, again);
        }
    }
    (result.events, _) = edits.apply(&program.events);
    Some(result)
}

/// What a pass costs more: the scores are made again for their gradients, and each chunk reads the weights and adds to
/// their gradient.
fn again(program: &Program<'_>, scores: u32, chunks: u32, device: &Device) -> Work {
    let trace = program.trace;
    let size = program.slots[scores as usize].bytes;
    let head = trace.calls.iter().find(|call| {
        let makes = |&slot: &u32| slot == scores || program.slots[slot as usize].bytes == size;
        is_matrix_product(trace.op_name(call)) && trace.outputs(call).iter().any(makes)
    });
    let dtype = trace.dtypes.get(trace.storages[scores as usize].dtype as usize);
    let weights = head.map_or(0, |call| {
        let is_weight = |&&slot: &&u32| program.slots[slot as usize].class == Class::Parameter;
        trace.inputs(call).iter().filter(is_weight).map(|&slot| program.slots[slot as usize].bytes).sum::<u64>()
    });
    let flops = head.map_or(0.0, |call| call.flops);
    let moved = PASSES * size as f64 + 4.0 * f64::from(chunks.saturating_sub(1)) * weights as f64;
    let product = flops / device.speed(dtype.map_or("float32", String::as_str)) * 1e6;
    Work {
        device_us: product + moved / device.bandwidth() * 1e6,
        host_calls: f64::from(chunks) * OPERATORS_PER_CHUNK * SMALL_CALLS,
    }
}

/// The storage that the loss takes its scores from: what the largest softmax reads.
#[must_use]
pub fn scores(program: &Program<'_>) -> Option<u32> {
    let trace = program.trace;
    let is_loss = |name: &str| {
        ["log_softmax", "cross_entropy", "nll_loss"].iter().any(|part| name.contains(part))
            && !name.contains("backward")
    };
    let found = trace.calls.iter().filter(|call| is_loss(trace.op_name(call)));
    let largest = found
        .filter_map(|call| trace.inputs(call).iter().copied().max_by_key(|&slot| program.slots[slot as usize].bytes))
        .max_by_key(|&slot| program.slots[slot as usize].bytes)?;
    // Of smaller scores there is nothing to be had.
    let passing = !program.slots[largest as usize].class.is_lasting();
    (passing && program.slots[largest as usize].bytes >= 16 << 20).then_some(largest)
}
