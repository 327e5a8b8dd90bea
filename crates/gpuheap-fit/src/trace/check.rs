//! Whether a trace holds together. Whatever comes after this can rely on it.

use foldhash::HashMap;

use super::wire::{WireCall, WireEvent, WireTrace};
use super::{Call, Class, Event, Module, NO_MODULE, Pass, Phase, SCHEMA, Storage, Trace};
use crate::error::TraceError;

/// No storage is larger, in bytes: a petabyte.
const MOST_BYTES: u64 = 1 << 50;
/// All storages, and all calls, have fewer bytes: sums of a few of them are numbers yet.
pub(crate) const MOST_IN_ALL: u64 = 1 << 60;
/// No batch has more samples, or more parts.
const MOST_SAMPLES: u64 = 1 << 40;

pub(super) fn trace(mut wire: WireTrace) -> Result<Trace, TraceError> {
    let ranks = std::mem::take(&mut wire.ranks).into_iter().enumerate().map(|(index, rank)| match rank.ranks.len() {
        0 => of_rank(rank),
        others => Err(TraceError::OutOfRange {
            what: "the number of ranks within a rank",
            value: others.to_string(),
            place: format!("rank {}", index + 1),
        }),
    });
    let ranks = ranks.collect::<Result<_, _>>()?;
    Ok(Trace { ranks, ..of_rank(wire)? })
}

/// The trace of one rank, without the others.
fn of_rank(wire: WireTrace) -> Result<Trace, TraceError> {
    if wire.schema != SCHEMA {
        return Err(TraceError::Schema { found: wire.schema, expected: SCHEMA });
    }
    figures(&wire)?;
    let modules = modules(&wire)?;
    let (storages, dtypes) = storages(&wire, modules.len())?;
    let mut checker = Checker {
        modules: modules.len(),
        ops: wire.ops.len(),
        alive: vec![false; storages.len()],
        entered: vec![0; modules.len()],
        calls: Vec::new(),
        arguments: Vec::new(),
        recorded: HashMap::default(),
        events: Vec::with_capacity(wire.events.0.len()),
        steps: 0,
    };
    for (number, event) in wire.events.0.into_iter().enumerate() {
        checker.event(number, event)?;
    }
    if checker.steps == 0 {
        return Err(TraceError::NoSteps);
    }
    let Checker { calls, arguments, events, .. } = checker;
    Ok(Trace {
        source: wire.source,
        applied: wire.applied,
        batch: wire.batch,
        model: wire.model,
        optimizer: wire.optimizer,
        modules,
        ops: wire.ops,
        dtypes,
        storages,
        calls,
        arguments,
        events,
        unknown: wire.unknown,
        micro_batches: wire.micro_batches.unwrap_or(1).max(1),
        ranks: Vec::new(),
    })
}

/// What a trace says of itself in figures that others are worked out from.
fn figures(wire: &WireTrace) -> Result<(), TraceError> {
    let within = |what, value: u64, most, place: &str| {
        let place = place.to_owned();
        if value <= most { Ok(()) } else { Err(TraceError::OutOfRange { what, value: value.to_string(), place }) }
    };
    within("the number of samples", wire.batch.size, MOST_SAMPLES, "the batch")?;
    let mut all = 0;
    for (index, unknown) in wire.unknown.iter().enumerate() {
        let bytes = unknown.bound_bytes.unwrap_or(0);
        all = bytes.saturating_add(all);
        within("the bound of what is not known", all, MOST_IN_ALL, &format!("unknown {index}"))?;
    }
    Ok(())
}

fn modules(wire: &WireTrace) -> Result<Vec<Module>, TraceError> {
    let module = |(index, module): (usize, &super::wire::WireModule)| {
        // A parent that comes later could be its own.
        let parent = match module.parent {
            -1 => NO_MODULE,
            parent => below(parent, index).ok_or_else(|| TraceError::OutOfRange {
                what: "the parent of a module",
                value: parent.to_string(),
                place: format!("module {index}"),
            })?,
        };
        Ok(Module { name: module.name.clone(), class: module.class.clone(), parent })
    };
    wire.modules.iter().enumerate().map(module).collect()
}

fn storages(wire: &WireTrace, modules: usize) -> Result<(Vec<Storage>, Vec<String>), TraceError> {
    let columns = &wire.storages;
    let expected = columns.bytes.len();
    for (column, found) in [
        ("class", columns.class.len()),
        ("module", columns.module.len()),
        ("dtype", columns.dtype.len()),
        ("name", columns.name.len()),
        ("stream", columns.stream.len()),
    ] {
        // What is not there at all is not known; what is there has to be whole.
        if found != expected && !(found == 0 && column != "class") {
            return Err(TraceError::Columns { column, found, expected });
        }
    }
    let mut dtypes: Vec<String> = Vec::new();
    let mut numbers: HashMap<&str, u32> = HashMap::default();
    let mut storages = Vec::with_capacity(expected);
    let mut all = 0_u64;
    for index in 0..expected {
        let out_of_range = |what, value: i64| TraceError::OutOfRange {
            what,
            value: value.to_string(),
            place: format!("storage {index}"),
        };
        let bytes = columns.bytes[index];
        let known = u64::try_from(bytes).ok().filter(|&bytes| bytes <= MOST_BYTES);
        let bytes = known.ok_or_else(|| out_of_range("the size of a storage", bytes))?;
        all += bytes;
        if all > MOST_IN_ALL {
            return Err(out_of_range("the size of all storages up to here", i64::try_from(all).unwrap_or(i64::MAX)));
        }
        let module = match columns.module.get(index).copied().flatten() {
            None | Some(-1) => NO_MODULE,
            Some(module) => below(module, modules).ok_or_else(|| out_of_range("the module of a storage", module))?,
        };
        let dtype = columns.dtype.get(index).map_or("", String::as_str);
        let next = u32::try_from(dtypes.len()).unwrap_or(u32::MAX);
        let dtype = *numbers.entry(dtype).or_insert_with(|| {
            dtypes.push(dtype.to_owned());
            next
        });
        let name = columns.name.get(index).map_or("", String::as_str).into();
        let stream = columns.stream.get(index).copied().unwrap_or(0);
        let stream = u16::try_from(stream).map_err(|_| out_of_range("the stream of a storage", stream))?;
        storages.push(Storage { bytes, class: class(&columns.class[index]), module, dtype, name, stream });
    }
    Ok((storages, dtypes))
}

fn class(name: &str) -> Class {
    match name {
        "parameter" => Class::Parameter,
        "buffer" => Class::Buffer,
        "gradient" => Class::Gradient,
        "optimizer" => Class::Optimizer,
        "activation" => Class::Activation,
        "temporary" => Class::Temporary,
        "input" => Class::Input,
        "loss" => Class::Loss,
        "workspace" => Class::Workspace,
        _ => Class::Unknown,
    }
}

fn below(id: i64, count: usize) -> Option<u32> {
    usize::try_from(id).ok().filter(|&id| id < count).and_then(|id| u32::try_from(id).ok())
}

struct Checker {
    modules: usize,
    ops: usize,
    alive: Vec<bool>,
    /// How often each module is entered and not left.
    entered: Vec<u32>,
    calls: Vec<Call>,
    arguments: Vec<u32>,
    /// Events of streams that were recorded, by the number that the tracer gave them.
    recorded: HashMap<i64, u32>,
    events: Vec<Event>,
    steps: usize,
}

impl Checker {
    fn event(&mut self, number: usize, event: WireEvent) -> Result<(), TraceError> {
        let event = match event {
            WireEvent::Phase(name) => Event::Phase(Phase::parse(&name)),
            WireEvent::Step(step) => {
                self.steps += 1;
                Event::Step(id(step, usize::MAX, "the number of a step", number)?)
            }
            WireEvent::Enter(module, pass) => {
                let module = id(module, self.modules, "a module", number)?;
                self.entered[module as usize] += 1;
                Event::Enter(module, pass_of(pass, number)?)
            }
            WireEvent::Leave(module, pass) => {
                let module = id(module, self.modules, "a module", number)?;
                let left = self.entered[module as usize].checked_sub(1);
                self.entered[module as usize] = left.ok_or(TraceError::Unentered { event: number, module })?;
                Event::Leave(module, pass_of(pass, number)?)
            }
            WireEvent::Alloc(storage) => {
                let storage = self.storage(storage, number)?;
                if std::mem::replace(&mut self.alive[storage as usize], true) {
                    return Err(TraceError::Life { event: number, storage, problem: "made while it is alive" });
                }
                Event::Alloc(storage)
            }
            WireEvent::Free(storage) => {
                let storage = self.storage(storage, number)?;
                if !std::mem::replace(&mut self.alive[storage as usize], false) {
                    return Err(TraceError::Life { event: number, storage, problem: "freed while it is not alive" });
                }
                Event::Free(storage)
            }
            WireEvent::Saved(storage) => Event::Saved(self.storage(storage, number)?),
            WireEvent::Op(call) => {
                let call = self.call(&call, number)?;
                self.calls.push(call);
                Event::Op(index(self.calls.len() - 1, number)?)
            }
            WireEvent::Record(event, stream) => {
                let next = index(self.recorded.len(), number)?;
                let event = *self.recorded.entry(event).or_insert(next);
                Event::Record(event, stream_of(stream, number)?)
            }
            WireEvent::Wait(stream, event) => match self.recorded.get(&event) {
                Some(&event) => Event::Wait(stream_of(stream, number)?, event),
                // Whatever came before the trace is over.
                None => return Ok(()),
            },
            WireEvent::Other => return Ok(()),
        };
        self.events.push(event);
        Ok(())
    }

    fn storage(&self, storage: i64, number: usize) -> Result<u32, TraceError> {
        id(storage, self.alive.len(), "a storage", number)
    }

    fn call(&mut self, call: &WireCall, number: usize) -> Result<Call, TraceError> {
        let module = if call.module < 0 { NO_MODULE } else { id(call.module, self.modules, "a module", number)? };
        let thread = id(call.thread, 256, "a thread", number)?;
        let inputs = self.list(&call.inputs, number)?;
        let outputs = self.list(&call.outputs, number)?;
        Ok(Call {
            op: id(call.op, self.ops, "an operator", number)?,
            module,
            thread: u8::try_from(thread).unwrap_or(u8::MAX),
            flops: amount(call.flops, "a number of operations", number)?,
            read: whole(amount(call.read, "bytes read", number)?),
            written: whole(amount(call.written, "bytes written", number)?),
            inputs,
            outputs,
            stream: stream_of(call.stream, number)?,
        })
    }

    fn list(&mut self, storages: &[i64], number: usize) -> Result<(u32, u32), TraceError> {
        let start = index(self.arguments.len(), number)?;
        for &storage in storages {
            let storage = self.storage(storage, number)?;
            self.arguments.push(storage);
        }
        Ok((start, index(self.arguments.len(), number)?))
    }
}

fn pass_of(pass: i64, number: usize) -> Result<Pass, TraceError> {
    match pass {
        0 => Ok(Pass::Forward),
        1 => Ok(Pass::Backward),
        2 => Ok(Pass::Recompute),
        _ => Err(out_of_range("a pass", &pass.to_string(), number)),
    }
}

fn stream_of(stream: i64, number: usize) -> Result<u16, TraceError> {
    u16::try_from(stream).map_err(|_| out_of_range("a stream", &stream.to_string(), number))
}

fn id(value: i64, count: usize, what: &'static str, number: usize) -> Result<u32, TraceError> {
    below(value, count).ok_or_else(|| out_of_range(what, &value.to_string(), number))
}

fn index(value: usize, number: usize) -> Result<u32, TraceError> {
    u32::try_from(value).map_err(|_| out_of_range("the number of events", &value.to_string(), number))
}

fn amount(value: f64, what: &'static str, number: usize) -> Result<f64, TraceError> {
    if (0.0..=1e24).contains(&value) { Ok(value) } else { Err(out_of_range(what, &value.to_string(), number)) }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an amount is not negative, and saturates")]
fn whole(amount: f64) -> u64 {
    (amount as u64).min(MOST_IN_ALL)
}

fn out_of_range(what: &'static str, value: &str, number: usize) -> TraceError {
    TraceError::OutOfRange { what, value: value.to_owned(), place: format!("event {number}") }
}
