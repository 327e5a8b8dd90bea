//! The failed allocation: what it needed, what was there, and what fills the card.

use gpuheap_record::Bytes;

use super::{Facts, percent, plural};
use crate::frames::sites;
use crate::lifetimes::Tick;
use crate::report::{Class, Confidence, Finding, FindingKind, OutOfMemory, Remedy};

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
    let mut evidence = vec![format!(
        "an allocator without any waste would have needed {}: {}",
        oom.ideal_bytes,
        if ideal_fits(facts, oom) { "that would have fitted" } else { "that would not have fitted either" }
    )];
    evidence.push(format!(
        "the largest free range was {}; {free} were cached in all and could not serve",
        oom.largest_free_bytes
    ));
    let by_class: Vec<String> = oom
        .moment
        .by_class
        .iter()
        .filter(|(_, bytes)| bytes.share_of(oom.moment.allocated_bytes) >= 0.01)
        .map(|(class, bytes)| {
            format!("{} {bytes} ({})", class.title(), percent(bytes.share_of(oom.moment.allocated_bytes)))
        })
        .collect();
    if !by_class.is_empty() {
        evidence.push(format!("what fills it: {}", by_class.join(", ")));
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
        evidence.push(format!("the driver had {} left", oom.device_free_bytes));
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
        growth: Vec::new(),
    })
}

fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// The limit as far as it is known: given by the user, or bounded by what was reserved and what was refused.
fn limit_text(facts: &Facts<'_>, oom: &OutOfMemory) -> String {
    match (facts.limit, oom.limit_below_bytes) {
        (Some(limit), _) => format!("under a limit of {limit}"),
        (None, Some(below)) if below.share_of(oom.limit_at_least_bytes) < 1.1 => {
            let middle = Bytes::new(u64::midpoint(oom.limit_at_least_bytes.get(), below.get()));
            format!("under a limit of about {middle}")
        }
        (None, Some(below)) => format!("under a limit between {} and {below}", oom.limit_at_least_bytes),
        (None, None) => format!("beside {} reserved", oom.moment.reserved_bytes),
    }
}

fn ideal_fits(facts: &Facts<'_>, oom: &OutOfMemory) -> bool {
    oom.ideal_bytes <= facts.limit.unwrap_or(oom.limit_at_least_bytes)
}

fn cause(facts: &Facts<'_>, oom: &OutOfMemory, leak: Option<&Finding>) -> Cause {
    let leaks = leak.is_some_and(|leak| leak.bytes.share_of(oom.moment.allocated_bytes) >= 0.2);
    match () {
        () if !ideal_fits(facts, oom) && leaks => Cause::Leak,
        () if !ideal_fits(facts, oom) || oom.cached_bytes < oom.asked_bytes => Cause::Full,
        () if oom.largest_free_bytes >= oom.asked_bytes => Cause::OutOfReach,
        () => Cause::Pieces,
    }
}

fn remedy(facts: &Facts<'_>, oom: &OutOfMemory, cause: Cause, leak: Option<&Finding>) -> Remedy {
    let expandable = facts.recording.settings.expandable_segments;
    match cause {
        Cause::Leak => leak.map_or_else(|| full(oom), |leak| leak.remedy.clone()),
        Cause::Pieces if !expandable => Remedy {
            text: format!(
                "Use expandable segments: {} were cached in pieces, {} were needed in one.",
                oom.cached_bytes, oom.asked_bytes
            ),
            conf: Some("expandable_segments:True".to_owned()),
            saves_bytes: None,
        },
        Cause::Pieces => Remedy {
            text: "Call `torch.cuda.empty_cache()` between phases, or pad to a few sizes.".to_owned(),
            conf: None,
            saves_bytes: None,
        },
        Cause::OutOfReach => Remedy {
            text:
                "Use one stream, or release what others cached with `torch.cuda.empty_cache()` before this allocation."
                    .to_owned(),
            conf: None,
            saves_bytes: None,
        },
        Cause::Full => full(oom),
    }
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
    let text = match largest {
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
