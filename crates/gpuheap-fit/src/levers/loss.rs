//! The loss in chunks: the scores of all words are never there at once.

use crate::program::{Program, Slot};
use crate::trace::{Class, Event, NO_MODULE, Phase};

/// The program with the last layer and the loss done in `chunks` parts, each made again for its backward pass. `None`
/// where there is no loss over large scores.
#[must_use]
pub fn chunked<'t>(program: &Program<'t>, chunks: u32) -> Option<Program<'t>> {
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
    result.extra_launches += f64::from(chunks) * 12.0;
    Some(result)
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
