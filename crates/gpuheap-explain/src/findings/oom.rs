//! The failed allocation: what it needed, what was there, and what fills the card.

use gpuheap_record::Bytes;

use super::{Facts, event_at, grouped, percent, plural};
use crate::frames::{Marks, is_of_driver, sites};
use crate::lifetimes::Tick;
use crate::report::{Class, Confidence, Finding, FindingKind, OutOfMemory, Remedy};

/// A leak is the cause of a failure if even an ideal allocator would have gone on for fewer steps than this.
const FEW_STEPS: u64 = 10;

/// Why an allocation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// The program held too much.
    Full,
    /// Enough was free, in pieces.
    Pieces,
    /// Enough was free, for other streams or in other pools or waiting.
    OutOfReach,
    /// What is held grows from step to step.
    Leak,
}

/// After a failure the program may go on: with smaller batches, say.
pub(crate) fn went_on(facts: &Facts<'_>, tick: Tick) -> bool {
    let steps_since = facts.steps.ticks.iter().filter(|&&boundary| boundary > tick).count();
    let events_since = facts.phases.last.0.saturating_sub(tick.0);
    steps_since >= 3 || events_since > facts.phases.last.0 / 2
}

pub(crate) fn find(facts: &Facts<'_>, leak: Option<&Finding>) -> Option<Finding> {
    let (tick, oom) = facts.oom.as_ref()?;
    let limit = limit_text(facts, oom);
    let cause = cause(facts, oom, leak);
    let free = oom.cached_bytes;
    let title = format!(
        "{} asked for {limit} with {} allocated and {free} cached: {}",
        oom.asked_bytes,
        oom.moment.allocated_bytes,
        match cause {
            Cause::Full => "not fragmentation, the program holds too much",
            Cause::Pieces => "fragmentation, enough is free but in pieces",
            Cause::OutOfReach => "enough is free, but out of reach",
            Cause::Leak => "a leak fills the card",
        }
    );
    let title = match leak.filter(|_| cause == Cause::Leak) {
        Some(leak) => format!("{title}, {}", leak.title),
        None => title,
    };
    let mut evidence = vec![format!(
        "an allocator without any waste would have needed {}: {}",
        oom.ideal_bytes,
        if ideal_fits(facts, oom) {
            let limit = given_limit(facts, oom).unwrap_or(oom.limit_at_least_bytes);
            format!("that would have fitted, with {} to spare", limit - oom.ideal_bytes)
        } else {
            "that would not have fitted either".to_owned()
        }
    )];
    if let Some(below) = oom.limit_below_bytes {
        evidence.push(format!(
            "the limit is at least {} bytes, which were reserved, and less than {} bytes, which were refused",
            grouped(oom.limit_at_least_bytes.get()),
            grouped(below.get())
        ));
    }
    evidence.push(format!(
        "the largest free range was {}; {free} were cached in all and could not serve",
        oom.largest_free_bytes
    ));
    let of_driver = is_of_driver(facts.recording);
    let share = |bytes: Bytes| percent(bytes.share_of(oom.moment.allocated_bytes));
    let by_library =
        oom.holders.iter().map(|holder| format!("{} {} ({})", holder.label, holder.bytes, share(holder.bytes)));
    let by_class = oom
        .moment
        .by_class
        .iter()
        .filter(|(_, bytes)| bytes.share_of(oom.moment.allocated_bytes) >= 0.01)
        .map(|(class, bytes)| format!("{} {bytes} ({})", class.title(), share(*bytes)));
    let filled: Vec<String> = if of_driver { by_library.collect() } else { by_class.collect() };
    if !filled.is_empty() {
        evidence.push(format!("what fills it: {}", filled.join(", ")));
    }
    if oom.pending_bytes > Bytes::ZERO {
        evidence.push(format!("{} waited for another stream", oom.pending_bytes));
    }
    if oom.device_free_bytes >= oom.asked_bytes {
        evidence.push(format!(
            "the driver still had {}: a memory fraction or another cap refused the request",
            oom.device_free_bytes
        ));
    } else {
        let whose = if of_driver { "budget" } else { "driver" };
        evidence.push(format!("the {whose} had {} left", oom.device_free_bytes));
    }
    if oom.count > 1 {
        evidence
            .push(format!("{} failed in this recording; this is the last", plural(to_usize(oom.count), "allocation")));
    }
    let went_on = went_on(facts, *tick);
    if went_on {
        evidence.push("the program went on afterwards".to_owned());
    }
    let stack = tick.event().map(|event| facts.device.events.stack(event)).unwrap_or_default();
    Some(Finding {
        id: String::new(),
        kind: FindingKind::Oom,
        title,
        site: oom.site.clone(),
        stack: sites(facts.recording, stack),
        bytes: oom.asked_bytes,
        bytes_per_step: None,
        confidence: if facts.replay.unexplained == 0 { Confidence::High } else { Confidence::Medium },
        evidence,
        remedy: remedy(facts, oom, cause, leak),
        event: event_at(*tick),
        growth: Vec::new(),
    })
}

fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// The limit as far as it is known: given by the user, or bounded by what was reserved and what was refused. People set
/// round limits: the roundest number between the bounds is named, as "about".
fn limit_text(facts: &Facts<'_>, oom: &OutOfMemory) -> String {
    let at_least = oom.limit_at_least_bytes;
    match (given_limit(facts, oom), oom.limit_below_bytes) {
        (Some(limit), _) => format!("under a limit of {limit}"),
        (None, Some(below)) => match round_between(at_least.get(), below.get()) {
            Some(round) => format!("under a limit of about {round}"),
            None => format!("under a limit between {at_least} and {below}"),
        },
        (None, None) => format!("beside {} reserved", oom.moment.reserved_bytes),
    }
}

/// The limit that the user gave, to the command or to the run, if it can be what failed the request: a card may be larger
/// than a cap within it.
pub(crate) fn given_limit(facts: &Facts<'_>, oom: &OutOfMemory) -> Option<Bytes> {
    let can_be =
        |limit: &Bytes| *limit >= oom.limit_at_least_bytes && oom.limit_below_bytes.is_none_or(|below| *limit < below);
    facts.limit.filter(can_be).or_else(|| budget(facts, oom).filter(can_be))
}

/// The budget of a run, in a recording of what the driver was asked for: it was refused for that alone, and what was left
/// of it was written down.
fn budget(facts: &Facts<'_>, oom: &OutOfMemory) -> Option<Bytes> {
    let is_refused = is_of_driver(facts.recording) && oom.device_free_bytes < oom.asked_bytes;
    is_refused.then(|| oom.moment.reserved_bytes + oom.device_free_bytes)
}

/// The only whole number of GiB, or of half GiB, from `at_least` on and below `below`.
fn round_between(at_least: u64, below: u64) -> Option<String> {
    let only_multiple = |unit: u64| {
        let first = at_least.checked_next_multiple_of(unit)?;
        (first < below && first.saturating_add(unit) >= below).then_some(first)
    };
    let gib = 1_u64 << 30;
    if let Some(limit) = only_multiple(gib) {
        return Some(format!("{} GiB", limit / gib));
    }
    only_multiple(gib / 2).map(|limit| Bytes::new(limit).to_string())
}

fn ideal_fits(facts: &Facts<'_>, oom: &OutOfMemory) -> bool {
    oom.ideal_bytes <= given_limit(facts, oom).unwrap_or(oom.limit_at_least_bytes)
}

fn cause(facts: &Facts<'_>, oom: &OutOfMemory, leak: Option<&Finding>) -> Cause {
    let leaks = leak.is_some_and(|leak| {
        // Without any waste the program would have gone on for a few steps at most.
        let limit = given_limit(facts, oom).unwrap_or(oom.limit_at_least_bytes);
        let rate = leak.bytes_per_step.unwrap_or_default().get().max(1);
        let holds_much = leak.bytes.share_of(oom.moment.allocated_bytes) >= 0.2 || leak.bytes >= oom.asked_bytes;
        let fits_without = oom.ideal_bytes - leak.bytes <= limit;
        holds_much && fits_without && (limit - oom.ideal_bytes).get() / rate < FEW_STEPS
    });
    match () {
        () if leaks => Cause::Leak,
        () if !ideal_fits(facts, oom) || oom.cached_bytes < oom.asked_bytes => Cause::Full,
        () if oom.largest_free_bytes >= oom.asked_bytes => Cause::OutOfReach,
        () => Cause::Pieces,
    }
}

fn remedy(facts: &Facts<'_>, oom: &OutOfMemory, cause: Cause, leak: Option<&Finding>) -> Remedy {
    let mut remedy = remedy_of(facts, oom, cause, leak);
    if oom.device_free_bytes >= oom.asked_bytes {
        // Whoever set the cap may have forgotten it.
        remedy.text = format!(
            "{} The device itself had {} left: a cap refused the request, such as `torch.cuda.set_per_process_memory_fraction`; \
             raise it if it is yours.",
            remedy.text, oom.device_free_bytes
        );
    }
    remedy
}

fn remedy_of(facts: &Facts<'_>, oom: &OutOfMemory, cause: Cause, leak: Option<&Finding>) -> Remedy {
    match cause {
        Cause::Leak => leak.map_or_else(|| full(oom), |leak| leak.remedy.clone()),
        Cause::Pieces => match facts.settings().without_oom() {
            Some(row) => Remedy {
                text: format!(
                    "{}: in replay the same program gets through under this limit, with {} reserved at most.",
                    if row.conf.is_empty() { "Go back to stock settings" } else { "Use expandable segments" },
                    row.peak_reserved_bytes
                ),
                conf: Some(row.conf.clone()),
                saves_bytes: None,
            },
            None => Remedy {
                text: "No allocator setting that was tried in replay gets through. Call `torch.cuda.empty_cache()` between \
                       phases, or pad to a few sizes."
                    .to_owned(),
                conf: None,
                saves_bytes: None,
            },
        },
        Cause::OutOfReach => Remedy {
            text:
                "Use one stream, or release what others cached with `torch.cuda.empty_cache()` before this allocation."
                    .to_owned(),
            conf: None,
            saves_bytes: None,
        },
        Cause::Full => optimizer_temporaries(facts, oom).unwrap_or_else(|| full(oom)),
    }
}

/// Optimizers that update all parameters at once make temporaries as large as their gradients: an avoidable cost, and
/// often the difference.
fn optimizer_temporaries(facts: &Facts<'_>, oom: &OutOfMemory) -> Option<Remedy> {
    let (tick, _) = facts.oom.as_ref()?;
    let span = facts.phases.optimizer_of(*tick)?;
    let made_in_step = facts.replay.allocations.rows().iter().filter(|row| {
        row.born > span.start
            && row.is_live_at(*tick)
            && facts.marks.marks(row.stack).any(Marks::OPTIMIZER)
            && row.freed != Tick::NEVER
    });
    let temporaries: Bytes = made_in_step.map(|row| Bytes::new(row.size)).sum();
    if temporaries < oom.asked_bytes {
        return None;
    }
    Some(Remedy {
        text: format!(
            "The optimizer's step needs {temporaries} of temporaries, because it updates all parameters at once: make it \
             with `fused=True`, or with `foreach=False`. If that is not enough: an 8-bit optimizer or bf16 states, shards \
             over GPUs (FSDP), or optimizer state on the host."
        ),
        conf: None,
        saves_bytes: Some(temporaries),
    })
}

/// What to do when the program simply holds too much: by the class that fills the card.
fn full(oom: &OutOfMemory) -> Remedy {
    let largest = oom.moment.by_class.iter().find(|(class, _)| *class != Class::Unknown).map(|&(class, _)| class);
    let model_state = oom
        .moment
        .by_class
        .iter()
        .filter(|(class, _)| matches!(class, Class::Parameters | Class::Gradients | Class::OptimizerState));
    let model_state: Bytes = model_state.map(|&(_, bytes)| bytes).sum();
    let mostly_model = model_state.share_of(oom.moment.allocated_bytes) >= 0.6;
    let trains = oom.moment.by_class.iter().any(|(class, _)| matches!(class, Class::Gradients | Class::OptimizerState));
    let text = match largest {
        _ if oom.asked_bytes > oom.moment.allocated_bytes => {
            "One request asks for more than everything else together: check the sizes at that line."
        }
        _ if mostly_model && !trains => {
            "The model itself does not fit: load it in bf16 or quantised, spread it over GPUs, or keep a part of it on the \
             host (`device_map=\"auto\"`)."
        }
        _ if mostly_model => {
            "Parameters, gradients and optimizer state fill the card: no allocator setting and no smaller batch helps. Use \
             an 8-bit optimizer or bf16 states, shard them over GPUs (FSDP), or keep optimizer state on the host."
        }
        Some(Class::Activations | Class::Temporaries) => {
            "Activations fill the card: use a smaller batch with gradient accumulation, activation checkpointing, or bf16 \
             autocast."
        }
        Some(Class::Inputs) => "Inputs fill the card: load smaller batches, and keep the data set on the host.",
        Some(Class::Cache) => "The cache of keys and values fills the card: bound its length, or quantise it.",
        _ => "The program holds more than fits: see what fills the card, below.",
    };
    Remedy { text: text.to_owned(), conf: None, saves_bytes: None }
}
