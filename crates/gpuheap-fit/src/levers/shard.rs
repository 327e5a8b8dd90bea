//! Several devices. What one of them holds, as far as it follows from a trace of one: copies of the model (data
//! parallel), or a part of every parameter on each (FSDP2).

use super::ShardForm;
use crate::device::Device;
use crate::program::{Program, Slot};
use crate::trace::{Class, Event, NO_MODULE, Phase};

/// The most bytes of a bucket of gradients in data parallel training.
const BUCKET: u64 = 25 << 20;
/// Buckets of a model, at most: 1.6 TB of gradients. What is more is in larger ones.
const BUCKETS: u64 = 1 << 16;

/// What one device of `gpus` does; the program is the one at a device's part of the batch. `None` for forms that do not
/// follow from it.
#[must_use]
pub fn shard<'t>(
    program: &Program<'t>,
    form: ShardForm,
    gpus: u32,
    largest_block: u64,
    device: &Device,
) -> Option<Program<'t>> {
    match form {
        ShardForm::Data => Some(data(program, gpus, device)),
        ShardForm::Fsdp2 => Some(fsdp2(program, gpus, largest_block, device)),
        ShardForm::Tensor | ShardForm::Pipeline => None,
    }
}

/// Gradients are parts of buckets that stay: each is copied to its place as soon as it is there, and gone as memory of
/// its own. Sums over the devices run beside the backward pass.
fn data<'t>(program: &Program<'t>, gpus: u32, device: &Device) -> Program<'t> {
    let mut result = program.clone();
    result.events = released_when_made(program);
    let mut left = trained(program);
    let bucket = BUCKET.max(left.div_ceil(BUCKETS));
    let mut buckets = Vec::new();
    while left > 0 {
        let bytes = left.min(bucket);
        buckets.push(Event::Alloc(result.add(Slot { bytes, class: Class::Gradient, module: NO_MODULE })));
        left -= bytes;
    }
    let at = result.events.iter().position(|event| matches!(event, Event::Step(_))).unwrap_or(0);
    result.events.splice(at..at, buckets);
    result.extra_us += 0.1 * ring_us(trained(program), gpus, device);
    result
}

/// The events with every gradient dropped behind the operator that made it, and not later.
fn released_when_made(program: &Program<'_>) -> Vec<Event> {
    let gradient = |slot: u32| program.slots[slot as usize].class == Class::Gradient;
    let mut events = Vec::with_capacity(program.events.len());
    let mut made: Vec<u32> = Vec::new();
    for &event in &program.events {
        match event {
            Event::Free(slot) if gradient(slot) => {
                // One that no operator has made is dropped where it was.
                if let Some(at) = made.iter().position(|&one| one == slot) {
                    made.remove(at);
                    events.push(event);
                }
                continue;
            }
            Event::Alloc(slot) if gradient(slot) => made.push(slot),
            _ => {}
        }
        events.push(event);
        if matches!(event, Event::Op(_)) {
            events.extend(made.drain(..).map(Event::Free));
        }
    }
    events
}

/// Parameters, gradients and state in parts; two blocks at a time are whole, once for the parameters and once for the
/// gradients.
fn fsdp2<'t>(program: &Program<'t>, gpus: u32, largest_block: u64, device: &Device) -> Program<'t> {
    let parts = u64::from(gpus.max(1));
    let mut result = program.clone();
    for slot in &mut result.slots {
        if matches!(slot.class, Class::Parameter | Class::Gradient | Class::Optimizer) {
            slot.bytes = slot.bytes.div_ceil(parts);
        }
    }
    let whole: Vec<u32> =
        (0..3).map(|_| result.add(Slot { bytes: largest_block, class: Class::Parameter, module: NO_MODULE })).collect();
    let mut events = Vec::with_capacity(result.events.len() + 16);
    let mut open = false;
    for &event in &program.events {
        let is_end = matches!(event, Event::Phase(Phase::Optimizer | Phase::ZeroGrad) | Event::Step(_));
        if open && is_end {
            events.extend(whole.iter().map(|&slot| Event::Free(slot)));
            open = false;
        }
        events.push(event);
        if !open && matches!(event, Event::Phase(Phase::Forward)) {
            events.extend(whole.iter().map(|&slot| Event::Alloc(slot)));
            open = true;
        }
    }
    if open {
        events.extend(whole.iter().map(|&slot| Event::Free(slot)));
    }
    result.events = events;
    // Parameters are gathered twice and gradients scattered once; most of it runs beside the arithmetic.
    result.extra_us += 0.1 * 1.5 * ring_us(trained(program), gpus, device);
    result
}

fn trained(program: &Program<'_>) -> u64 {
    let known = program.trace.model.trainable_bytes;
    let parameters = program.trace.storages.iter().filter(|storage| storage.class == Class::Parameter);
    let there: u64 = parameters.map(|storage| storage.bytes).sum();
    // What is said to be trained is part of what is there.
    if known > 0 && (known < there || there == 0) { known.min(crate::trace::MOST_IN_ALL) } else { there }
}

/// Time to sum `bytes` over all devices, each sending and receiving at once.
fn ring_us(bytes: u64, gpus: u32, device: &Device) -> f64 {
    let gpus = f64::from(gpus.max(1));
    let speed = device.peer_bandwidth();
    2.0 * (gpus - 1.0) / gpus * bytes as f64 / speed * 1e6
}

/// The bytes of the parameters of the largest block, or of the largest parameter outside of blocks: what FSDP2 puts
/// together at once.
#[must_use]
pub fn largest_block(program: &Program<'_>) -> u64 {
    let trace = program.trace;
    let mut sums: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
    for storage in trace.storages.iter().filter(|storage| storage.class == Class::Parameter) {
        let name = trace.module_name(storage.module);
        // Up to the first number: `model.layers.3`.
        let mut parts = Vec::new();
        for part in name.split('.') {
            parts.push(part);
            if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
                break;
            }
        }
        *sums.entry(parts.join(".")).or_default() += storage.bytes;
    }
    sums.into_values().max().unwrap_or(0)
}
