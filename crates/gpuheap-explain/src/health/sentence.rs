//! A judgement in words: those of `explain`, where it says the same.

use gpuheap_record::Bytes;

use super::Health;
use super::judge::{HealthKind, Judgement};
use crate::findings::{grouped, per_step, percent, plural};
use crate::report::VerdictKind;
use crate::steps::FEWEST_BOUNDARIES;

pub(super) fn sentence(health: &Health, judgement: &Judgement, unit: &str) -> String {
    let growth = per_step(judgement.growth);
    let (from, to) = (judgement.from, judgement.to);
    let steps = |count: u64| format!("{} step{}", grouped(count), if count == 1 { "" } else { "s" });
    let judged = format!("{} of {} judged", grouped(judgement.steps), steps(judgement.seen));
    let mut parts = Vec::new();
    match judgement.kind {
        HealthKind::WarmingUp => parts.push(format!(
            "Warming up: {} seen{}, {FEWEST_BOUNDARIES} needed: too short to judge leaks",
            steps(judgement.seen),
            if judgement.since.is_some() { " since the level moved" } else { "" },
        )),
        HealthKind::Steady => {
            let waste = health
                .waste
                .map_or_else(String::new, |waste| format!(", {} of it never in use", percent(waste)));
            parts.push(format!(
                "{}: {} allocated and {} reserved{waste}; no leak in {} judged",
                VerdictKind::Healthy.title(),
                Bytes::new(health.allocated),
                Bytes::new(health.reserved),
                steps(judgement.steps),
            ));
        }
        HealthKind::Leak => parts.push(format!(
            "{}: +{growth} per {unit}{} ({judged}); live blocks grew from {} to {}, as they would in a buffer for more than \
             {}",
            VerdictKind::Leak.title(),
            judgement.began.map_or_else(String::new, |step| format!(" since step {}", grouped(step.saturating_add(1)))),
            grouped(from),
            grouped(to),
            steps(judgement.seen),
        )),
        HealthKind::Sawtooth => parts.push(format!(
            "{}: +{growth} of garbage per {unit} until the collector runs, up to {}",
            VerdictKind::Sawtooth.title(),
            Bytes::new(to),
        )),
        HealthKind::Growing => parts.push(match health.blocks {
            Some(blocks) => format!(
                "Growing: each {unit} holds about {growth} more at its end than the one before ({judged}), in as many \
                 blocks, {}: they are replaced by larger ones",
                grouped(blocks),
            ),
            None => format!(
                "Growing: each {unit} holds about {growth} more at its end than the one before ({judged}); this allocator \
                 does not count its blocks, so a leak and larger arrays look the same"
            ),
        }),
        HealthKind::ReservedGrowth => parts.push(format!(
            "{}: reserved memory grew from {} to {} while {} are allocated: not a leak",
            VerdictKind::Fragmentation.title(),
            Bytes::new(from),
            Bytes::new(to),
            Bytes::new(health.allocated),
        )),
        HealthKind::OutsideGrowth => parts.push(format!(
            "Outside the allocator: +{growth} per {unit}, from {} to {}, while {} are reserved: libraries, other \
             allocators{}",
            Bytes::new(from),
            Bytes::new(to),
            Bytes::new(health.reserved),
            if health.others.is_none() { " or other processes" } else { "" },
        )),
    }
    if let Some(since) = judgement.since {
        parts.push(format!("judged anew since step {}, where the level moved at once", grouped(since)));
    }
    if let Some((fewest, most)) = health.steps_left {
        let full =
            health.total.map_or_else(|| "memory is full".to_owned(), |total| format!("{} are full", Bytes::new(total)));
        let range = if fewest == most {
            format!("about {}", grouped(fewest))
        } else {
            format!("{} to {}", grouped(fewest), grouped(most))
        };
        let time = health
            .seconds_left
            .filter(|&(fewest, _)| fewest >= 1.0)
            .map_or_else(String::new, |(fewest, _)| format!(" (not before {})", span(fewest)));
        parts.push(format!("{range} more steps until {full}{time}"));
    }
    if health.ooms > 0 {
        let failed = plural(usize::try_from(health.ooms).unwrap_or(usize::MAX), "allocation");
        parts.push(format!("{failed} failed"));
    }
    if health.retries > 0 {
        let retried = plural(usize::try_from(health.retries).unwrap_or(usize::MAX), "time");
        parts.push(format!("the cache was emptied {retried} to serve a request"));
    }
    parts.join("; ")
}

/// Seconds in the unit that a person would use.
fn span(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.0} h", seconds / 3600.0),
        seconds => format!("{:.0} days", seconds / 86_400.0),
    }
}
