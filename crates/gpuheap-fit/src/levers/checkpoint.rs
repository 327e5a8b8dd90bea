//! What blocks keep for the backward pass is dropped: made again (checkpoint), made again from the results of some
//! operators (selective checkpoint), or fetched back from the host (offload).
//!
//! As `torch.utils.checkpoint` does it without re-entry: the block's forward pass runs as before and what it saved is
//! dropped, its arguments stay; when the backward pass first needs something, the forward pass runs again up to the last
//! operator that saves anything. Weights that autocast converts stay in its cache until the forward pass is over.

use foldhash::{HashMap, HashSet};

use super::Edits;
use crate::blocks::{Block, Passage, Uses, before_results};
use crate::cost::STORED_CALLS;
use crate::device::{Device, is_matrix_product};
use crate::program::{Program, Run, Slot, Work};
use crate::trace::{Class, Event, NO_MODULE, Pass, Phase};

/// What becomes of what a block keeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Treatment {
    /// It stays.
    Keep,
    /// It is made again.
    Recompute,
    /// It is made again, but for results of matrix products and attention.
    Selective,
    /// It waits on the host.
    Offload,
}

/// What is smaller is not worth a copy, in bytes.
pub const OFFLOADED: u64 = 1 << 20;
/// The most bytes that are on their way to or from the host at once.
pub(crate) const WINDOW: u64 = 512 << 20;

/// A program with treated blocks.
#[derive(Debug)]
pub struct Treated<'t> {
    /// The program.
    pub program: Program<'t>,
    /// For each event of the old program, where it now is.
    pub places: Vec<usize>,
}

/// Operators whose results a selective checkpoint keeps: those that cost most to run again.
#[must_use]
pub fn is_costly(op: &str) -> bool {
    is_matrix_product(op) || op.contains("attention") || op.contains("convolution")
}

/// The operators that a selective checkpoint keeps the results of, as they occur in the trace.
#[must_use]
pub fn costly_ops(program: &Program<'_>) -> Vec<String> {
    let mut ops: Vec<String> = program.trace.ops.iter().filter(|op| is_costly(op)).cloned().collect();
    ops.retain(|op| !op.contains("backward"));
    ops.sort();
    ops
}

/// Treats each block as `treatments` says; the lists go together.
#[must_use]
pub fn treat<'t>(
    program: &Program<'t>,
    uses: &Uses,
    blocks: &[Block],
    treatments: &[Treatment],
    device: &Device,
) -> Treated<'t> {
    let mut result = program.clone();
    let mut edits = Edits::default();
    let mut windows: Vec<(usize, usize, u64)> = Vec::new();
    for (block, &treatment) in blocks.iter().zip(treatments) {
        if let Some(run) = result.runs.get_mut(block.module as usize) {
            *run = run_of(treatment);
        }
        for passage in &block.passages {
            match treatment {
                Treatment::Keep => {}
                Treatment::Recompute => recompute(&mut result, &mut edits, uses, passage, false),
                Treatment::Selective => recompute(&mut result, &mut edits, uses, passage, true),
                Treatment::Offload => {
                    let bytes = offload(&result, &mut edits, uses, passage);
                    widen(&mut windows, passage, bytes);
                    // Out when the block is through, back when its backward pass begins, on a stream of its own.
                    let link_us = bytes as f64 / device.link_bytes_per_second.value.max(1.0) * 1e6;
                    let copy = result.work(Work { link_us, ..Work::default() });
                    edits.after(passage.leave, copy);
                    edits.before(passage.needed, copy);
                }
            }
        }
    }
    for (start, end, bytes) in windows {
        let window = result.add(Slot { bytes: bytes.min(WINDOW), class: Class::Temporary, module: NO_MODULE });
        edits.before(start, Event::Alloc(window));
        edits.after(end, Event::Free(window));
    }
    let (events, places) = edits.apply(&program.events);
    result.events = events;
    Treated { program: result, places }
}

/// How a block runs under a treatment.
pub(crate) fn run_of(treatment: Treatment) -> Run {
    match treatment {
        Treatment::Keep | Treatment::Offload => Run::Plain,
        Treatment::Recompute => Run::Checkpointed,
        Treatment::Selective => Run::Selective,
    }
}

/// Blocks of one pass share what is on its way: from the first of them to the end of its backward pass.
fn widen(windows: &mut Vec<(usize, usize, u64)>, passage: &Passage, bytes: u64) {
    match windows.iter_mut().find(|(start, end, _)| *start <= passage.enter && passage.enter <= *end) {
        Some((_, end, sum)) => {
            *end = (*end).max(passage.done);
            *sum = sum.saturating_add(bytes);
        }
        None => windows.push((passage.enter, passage.done, bytes)),
    }
}

fn recompute(program: &mut Program<'_>, edits: &mut Edits, uses: &Uses, passage: &Passage, selective: bool) {
    let trace = program.trace;
    let events: Vec<Event> = program.events[passage.enter..=passage.leave].to_vec();
    let cut = last_saving(program, passage, &events);
    // Results of costly operators that a selective checkpoint stores, whoever uses them.
    let mut stored: HashSet<u32> = HashSet::default();
    let is_skipped = |call: u32| selective && is_costly(trace.op_name(&trace.calls[call as usize]));
    if selective {
        for event in &events[..=cut] {
            if let Event::Op(call) = *event
                && is_skipped(call)
            {
                stored.extend(trace.outputs(&trace.calls[call as usize]));
            }
        }
    }
    let mut kept: HashSet<u32> = passage.kept.iter().copied().collect();
    kept.retain(|slot| !stored.contains(slot));
    let forward_end = end_of_forward(program, passage);
    for &slot in &passage.kept {
        if kept.contains(&slot) {
            let end = if is_converted_weight(program, slot, passage) {
                forward_end
            } else {
                after_last_use(program, uses, slot, passage)
            };
            edits.before(end, Event::Free(slot));
        }
    }
    let mut shadows: HashMap<u32, u32> = HashMap::default();
    let mut open: Vec<u32> = Vec::new();
    // The second pass: all of it before the first event that needs something.
    let mut second: Vec<Event> = Vec::with_capacity(cut + 1);
    let mut freed_later: Vec<(usize, u32)> = Vec::new();
    let is_result = |slot: u32| passage.results.contains(&slot);
    let mut skipped = 0_u32;
    for (offset, event) in events[..=cut].iter().enumerate() {
        match *event {
            Event::Alloc(slot) if kept.contains(&slot) => second.push(Event::Alloc(slot)),
            // A temporary that is now stored: dropped when the second pass has used it.
            Event::Alloc(slot) if stored.contains(&slot) && !is_result(slot) && !passage.kept.contains(&slot) => {
                freed_later.push((offset, slot));
            }
            Event::Alloc(slot) if stored.contains(&slot) && !is_result(slot) => {}
            Event::Alloc(slot) if is_result(slot) => {
                if stored.contains(&slot) {
                    continue;
                }
                let Slot { bytes, class, module } = program.slots[slot as usize];
                program.slots.push(Slot { bytes, class, module });
                let shadow = u32::try_from(program.slots.len() - 1).unwrap_or(u32::MAX);
                shadows.insert(slot, shadow);
                second.push(Event::Alloc(shadow));
            }
            Event::Alloc(slot) if comes_and_goes(program, &events, slot) => {
                open.push(slot);
                second.push(Event::Alloc(slot));
            }
            Event::Free(slot) => {
                if let Some(at) = open.iter().position(|&other| other == slot) {
                    open.swap_remove(at);
                    second.push(Event::Free(slot));
                }
            }
            Event::Op(call) if is_skipped(call) => skipped += 1,
            Event::Op(call) => second.push(Event::Op(call)),
            Event::Enter(module, _) => second.push(Event::Enter(module, Pass::Recompute)),
            Event::Leave(module, _) => second.push(Event::Leave(module, Pass::Recompute)),
            _ => {}
        }
    }
    // It stops within modules: those are left all the same.
    second.extend(not_left(&second));
    if skipped > 0 {
        // What is not run again is still looked up.
        second.push(program.work(Work { device_us: 0.0, link_us: 0.0, host_calls: f64::from(skipped) * STORED_CALLS }));
    }
    // Temporaries of the first pass that were stored live until here.
    for (offset, slot) in freed_later {
        let free = events[offset..].iter().position(|event| *event == Event::Free(slot));
        if let Some(free) = free {
            edits.remove(passage.enter + offset + free);
            second.push(Event::Free(slot));
        }
    }
    for slot in open {
        second.push(Event::Free(slot));
    }
    let mut shadows: Vec<(u32, u32)> = shadows.into_iter().collect();
    shadows.sort_unstable();
    for (slot, shadow) in shadows {
        // The block's own backward pass reads the second copy, others have the first.
        let last = uses.within(slot, passage.needed, passage.done).last().map(|&at| at as usize);
        match last {
            Some(at) => edits.after(at, Event::Free(shadow)),
            None => second.push(Event::Free(shadow)),
        }
    }
    for event in second {
        edits.before(passage.needed, event);
    }
    extend_arguments(edits, passage);
}

/// What leaves the modules that a second pass has entered and not left.
fn not_left(second: &[Event]) -> Vec<Event> {
    let mut inside: Vec<u32> = Vec::new();
    for event in second {
        match *event {
            Event::Enter(module, _) => inside.push(module),
            Event::Leave(module, _) => {
                if let Some(at) = inside.iter().rposition(|&other| other == module) {
                    inside.truncate(at);
                }
            }
            _ => {}
        }
    }
    inside.into_iter().rev().map(|module| Event::Leave(module, Pass::Recompute)).collect()
}

/// Whether the second pass makes it, too: what stays from step to step is there already.
fn comes_and_goes(program: &Program<'_>, events: &[Event], slot: u32) -> bool {
    match program.slots[slot as usize].class {
        // A library keeps some scratch memory for good.
        Class::Workspace => events.contains(&Event::Free(slot)),
        class => !class.is_lasting(),
    }
}

/// What was handed to the block stays until its backward pass is done.
fn extend_arguments(edits: &mut Edits, passage: &Passage) {
    for &(slot, end) in &passage.arguments {
        edits.remove(end);
        edits.after(passage.done, Event::Free(slot));
    }
}

/// Bytes that go to the host and come back.
fn offload(program: &Program<'_>, edits: &mut Edits, uses: &Uses, passage: &Passage) -> u64 {
    let mut bytes = 0_u64;
    for &slot in passage.kept.iter().filter(|&&slot| program.slots[slot as usize].bytes >= OFFLOADED) {
        edits.before(after_last_use(program, uses, slot, passage), Event::Free(slot));
        let needed = uses.within(slot, passage.needed, passage.done).first().map_or(passage.needed, |&at| at as usize);
        let before = before_results(program, needed).max(passage.needed);
        edits.before(before, Event::Alloc(slot));
        bytes = bytes.saturating_add(program.slots[slot as usize].bytes);
    }
    bytes
}

/// The offset of the last event of the block that saves something: the second pass stops there.
fn last_saving(program: &Program<'_>, passage: &Passage, events: &[Event]) -> usize {
    let trace = program.trace;
    let is_kept = |slot: &u32| passage.kept.contains(slot);
    let last = events.iter().rposition(|event| match event {
        Event::Saved(_) => true,
        Event::Op(call) => {
            let call = &trace.calls[*call as usize];
            trace.inputs(call).iter().any(is_kept) || trace.outputs(call).iter().any(is_kept)
        }
        _ => false,
    });
    last.unwrap_or(events.len() - 1)
}

/// The event before which the last reference in the forward pass is gone: behind the last use, or behind the module
/// that used it last, if it came from outside of that.
fn after_last_use(program: &Program<'_>, uses: &Uses, slot: u32, passage: &Passage) -> usize {
    let Some(last) = uses.within(slot, passage.enter, passage.leave).last().map(|&at| at as usize) else {
        return passage.leave;
    };
    let Event::Op(call) = program.events[last] else { return last + 1 };
    let module = program.trace.calls[call as usize].module;
    if program.trace.is_within(program.slots[slot as usize].module, module) {
        return last + 1;
    }
    let left = program.events[last..=passage.leave]
        .iter()
        .position(|event| matches!(event, Event::Leave(left, Pass::Forward) if *left == module));
    left.map_or(last + 1, |offset| last + offset + 1)
}

/// Where the forward pass ends: autocast drops its copies of weights there.
fn end_of_forward(program: &Program<'_>, passage: &Passage) -> usize {
    let rest = &program.events[passage.leave..passage.needed];
    let found = rest.iter().position(|event| matches!(event, Event::Phase(Phase::Backward)));
    found.map_or(passage.needed, |offset| passage.leave + offset)
}

/// Whether it is a weight in another type of number, which autocast keeps in its cache.
fn is_converted_weight(program: &Program<'_>, slot: u32, passage: &Passage) -> bool {
    let trace = program.trace;
    let made = program.events[passage.enter..=passage.leave].iter().find_map(|event| match event {
        Event::Op(call) if trace.outputs(&trace.calls[*call as usize]).contains(&slot) => Some(*call),
        _ => None,
    });
    made.is_some_and(|call| {
        let call = &trace.calls[call as usize];
        trace.op_name(call).starts_with("aten._to_copy")
            && trace.inputs(call).iter().any(|&input| program.slots[input as usize].class == Class::Parameter)
    })
}
