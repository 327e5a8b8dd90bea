//! Smaller batches whose gradients add up to one step.
//!
//! The program is the one at the size of a micro-batch. Its first micro-batch makes the gradients; while the others run,
//! all gradients are there, and each new one is made beside the old, added and dropped. So two micro-batches show the
//! peak of any number of them: the second stands for all but the first.

use foldhash::{HashMap, HashSet};

use super::Edits;
use crate::cost::SMALL_CALLS;
use crate::device::Device;
use crate::program::{Program, Slot, Step, Work};
use crate::trace::{Class, Event, Phase};

/// The program with `factor` micro-batches a step. `None` where forward and backward pass are not one piece of a step.
#[must_use]
pub fn accumulate<'t>(program: &Program<'t>, factor: u32, device: &Device) -> Option<Program<'t>> {
    if factor < 2 {
        return Some(program.clone());
    }
    let mut result = program.clone();
    let mut edits = Edits::default();
    let mut renamed: HashMap<u32, u32> = HashMap::default();
    for step in program.steps() {
        let Some((start, end)) = micro_batch(program, step) else {
            // A step without a backward pass is no training step.
            continue;
        };
        if program.events[start..end].iter().any(|event| matches!(event, Event::Phase(Phase::Optimizer))) {
            return None;
        }
        repeat(program, &mut result, &mut edits, &mut renamed, (start, end, step.end), (factor, device));
    }
    let changed = !renamed.is_empty() || !edits.is_empty();
    if !changed {
        return None;
    }
    let (events, _) = edits.apply(&program.events);
    result.events = events;
    Some(result)
}

/// From the batch to the end of the backward pass.
fn micro_batch(program: &Program<'_>, step: Step) -> Option<(usize, usize)> {
    let events = &program.events;
    let is_start = |event: &Event| matches!(event, Event::Phase(Phase::Load | Phase::Forward | Phase::Loss));
    let start = (step.start..step.end).find(|&at| is_start(&events[at]))?;
    let backward = (start..step.end).rfind(|&at| matches!(events[at], Event::Phase(Phase::Backward)))?;
    let end = (backward + 1..step.end).find(|&at| matches!(events[at], Event::Phase(_))).unwrap_or(step.end);
    Some((start, end))
}

fn repeat(
    program: &Program<'_>,
    result: &mut Program<'_>,
    edits: &mut Edits,
    renamed: &mut HashMap<u32, u32>,
    (start, end, step_end): (usize, usize, usize),
    (factor, device): (u32, &Device),
) {
    let trace = program.trace;
    let piece = &program.events[start..end];
    let mut alive: HashMap<u32, bool> = HashMap::default();
    let mut last_use: HashMap<u32, usize> = HashMap::default();
    for (at, event) in piece.iter().enumerate() {
        match *event {
            Event::Alloc(slot) => drop(alive.insert(slot, true)),
            Event::Free(slot) => drop(alive.insert(slot, false)),
            Event::Op(call) => {
                let call = &trace.calls[call as usize];
                for &slot in trace.inputs(call).iter().chain(trace.outputs(call)) {
                    last_use.insert(slot, at);
                }
            }
            _ => {}
        }
    }
    let mut again: Vec<Event> = vec![Event::Repeat(factor - 1)];
    // What the second pass calls what the first one still holds.
    let mut second: HashMap<u32, u32> = HashMap::default();
    let mut open: HashSet<u32> = HashSet::default();
    let mut replaced: Vec<u32> = Vec::new();
    let mut added_up: Vec<(usize, u32)> = Vec::new();
    for (at, event) in piece.iter().enumerate() {
        match *event {
            Event::Alloc(slot) => {
                let class = program.slots[slot as usize].class;
                let stays = alive.get(&slot).copied().unwrap_or(false);
                if !stays {
                    open.insert(slot);
                    again.push(Event::Alloc(slot));
                } else if class == Class::Gradient {
                    let Slot { bytes, module, .. } = program.slots[slot as usize];
                    let shadow = result.add(Slot { bytes, class, module });
                    again.push(Event::Alloc(shadow));
                    added_up.push((last_use.get(&slot).copied().unwrap_or(at).max(at), shadow));
                } else if !class.is_lasting() && class != Class::Workspace {
                    let shadow = result.add(program.slots[slot as usize]);
                    again.push(Event::Alloc(shadow));
                    second.insert(slot, shadow);
                    replaced.push(slot);
                }
            }
            Event::Free(slot) if open.remove(&slot) => again.push(Event::Free(slot)),
            Event::Op(_) => {
                again.push(*event);
                // A name gets its new value: the old one goes.
                again.extend(replaced.drain(..).map(Event::Free));
            }
            Event::Enter(..) | Event::Leave(..) | Event::Phase(_) | Event::Saved(_) | Event::Work(_) => {
                again.push(*event);
            }
            _ => {}
        }
        let due = |&(last, _): &(usize, u32)| last <= at;
        for index in (0..added_up.len()).rev() {
            if due(&added_up[index]) {
                let (_, shadow) = added_up.swap_remove(index);
                // Gradients of micro-batches are added to those that are there: read both, write one.
                let moved = 3.0 * result.slots[shadow as usize].bytes as f64 / device.bandwidth() * 1e6;
                let device_us = moved + device.kernel_us.value;
                again.push(result.work(Work { device_us, link_us: 0.0, host_calls: SMALL_CALLS }));
                again.push(Event::Free(shadow));
            }
        }
    }
    again.extend(replaced.drain(..).map(Event::Free));
    again.push(Event::Repeat(1));
    for event in again {
        edits.before(end, event);
    }
    rename_frees(program, edits, &second, end, step_end, renamed);
}

/// What is dropped after the piece has the name of the second pass.
fn rename_frees(
    program: &Program<'_>,
    edits: &mut Edits,
    second: &HashMap<u32, u32>,
    end: usize,
    step_end: usize,
    renamed: &mut HashMap<u32, u32>,
) {
    let mut left = second.clone();
    for at in end..program.events.len() {
        if left.is_empty() {
            break;
        }
        if let Event::Free(slot) = program.events[at]
            && let Some(shadow) = left.remove(&slot)
        {
            edits.remove(at);
            edits.before(at, Event::Free(shadow));
            renamed.insert(slot, shadow);
            // The next step's own second pass must not drop it once more.
            let _ = step_end;
        }
    }
}
