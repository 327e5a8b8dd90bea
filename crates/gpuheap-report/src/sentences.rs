//! What the forms of a report say in the same words.

pub(crate) mod diff;
pub(crate) mod fit;
pub(crate) mod whatif;

use gpuheap_explain::{
    Finding, Holder, LedgerPart, Moment, MomentName, OutOfMemory, PartKind, Remedy, ReplayCheck, Report, StepSource,
    Steps, VerdictKind, WhatIf,
};
use gpuheap_record::Bytes;

use crate::text;

/// A moment as the end of a sentence.
pub(crate) fn moment(name: MomentName) -> &'static str {
    match name {
        MomentName::Peak => "at the peak of allocated memory",
        MomentName::PeakReserved => "at the peak of reserved memory",
        MomentName::Oom => "when the allocation failed",
        MomentName::End => "at the end",
    }
}

/// The moments of a report with their names, the failed allocation only if there was one.
pub(crate) fn moments(report: &Report) -> Vec<(&Moment, &'static str)> {
    let mut moments = vec![(&report.peak, "most allocated"), (&report.peak_reserved, "most reserved")];
    moments.extend(report.oom.as_ref().map(|oom| (&oom.moment, "last failed allocation")));
    moments.push((&report.end, "end"));
    moments
}

/// The time of a moment from the start of the recording; `-` where it is not known.
pub(crate) fn after_start(report: &Report, moment: &Moment) -> String {
    let start = report.end.time_us.and_then(|end| end.checked_sub(report.source.duration_us));
    let after = moment.time_us.zip(start).and_then(|(time, start)| time.checked_sub(start));
    after.map_or_else(|| "-".to_owned(), text::duration)
}

/// The event of a moment.
pub(crate) fn event(moment: &Moment) -> String {
    moment.event.map_or_else(|| "start".to_owned(), text::count)
}

/// The moment of the ledger and the holders.
pub(crate) fn ledger_moment(report: &Report) -> &Moment {
    match (report.ledger_at, &report.oom) {
        (MomentName::Oom, Some(oom)) => &oom.moment,
        (MomentName::End, _) => &report.end,
        (MomentName::PeakReserved, _) => &report.peak_reserved,
        _ => &report.peak,
    }
}

/// Who held memory at the failed allocation, unless the report's holders are just these.
pub(crate) fn holders_at_failure<'a>(report: &'a Report, oom: &'a OutOfMemory) -> Option<&'a [Holder]> {
    let told_already = oom.holders.is_empty() || oom.holders == report.holders;
    (!told_already).then_some(oom.holders.as_slice())
}

/// The parts of the ledger that are reserved and not empty, and those that are not the allocator's.
pub(crate) fn ledger(report: &Report) -> (Vec<&LedgerPart>, Vec<&LedgerPart>) {
    let parts = report.ledger.iter().filter(|part| part.bytes > Bytes::ZERO);
    parts.partition(|part| part.kind != PartKind::Outside)
}

/// What all parts of the ledger are together: the limit that was asked for, or what the device has.
#[must_use]
pub fn whole(outside: &[&LedgerPart]) -> &'static str {
    if outside.iter().any(|part| part.part == "not reserved by PyTorch") { "limit" } else { "device" }
}

/// The most that each counter ever was.
#[must_use]
pub fn peaks(report: &Report) -> String {
    let peaks = &report.peaks;
    let mut line = format!("allocated {}", peaks.allocated_bytes);
    // Memory that waits for another stream is rare: only then do the two differ.
    if peaks.active_bytes != peaks.allocated_bytes {
        line = format!("{line}, active {}", peaks.active_bytes);
    }
    format!("{line}, requested {}, reserved {}", peaks.requested_bytes, peaks.reserved_bytes)
}

/// How many steps there are, and from what they were told.
#[must_use]
pub fn steps(steps: &Steps) -> String {
    let how = match steps.how {
        StepSource::Annotation => "from PyTorch's annotations",
        StepSource::OptimizerFrames => "seen in the stacks",
        StepSource::Period => "from what recurs",
        StepSource::None => return "none found".to_owned(),
    };
    format!("{}, {how}", turns(steps))
}

/// `12 optimizer steps`, `20 backward passes`, `40 turns (call of train.py:28)`.
pub(crate) fn turns(steps: &Steps) -> String {
    let count = text::count(steps.count);
    let one = steps.count == 1;
    let unit = steps.unit.as_str();
    if unit.is_empty() || unit.starts_with("call of ") {
        let turns = if one { "turn" } else { "turns" };
        let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
        format!("{count} {turns}{unit}")
    } else if unit.starts_with('`') {
        format!("{count} {} of {unit}", if one { "call" } else { "calls" })
    } else if one {
        format!("{count} {unit}")
    } else if let Some(of) = unit.strip_prefix("round of ") {
        format!("{count} rounds of {of}")
    } else {
        format!("{count} {unit}{}", if unit.ends_with('s') { "es" } else { "s" })
    }
}

/// How well the allocator's rules explain the recording.
#[must_use]
pub fn replay(replay: &ReplayCheck) -> String {
    let matched = text::count(replay.matched);
    let of = text::counted(replay.segment_events, "segment event", "segment events");
    if replay.policy == "driver" {
        return "none: what the driver was asked for, as it was".to_owned();
    }
    match (replay.exact, replay.segment_events) {
        (true, 0) => "nothing to compare: no segment events in the recording".to_owned(),
        (true, _) => format!("exact: {matched} of {of} predicted with {}", text::settings(&replay.conf)),
        (false, _) => {
            let first = replay.first_mismatch.as_ref().map(|first| format!("; first difference: {first}"));
            format!("sizes as recorded; {matched} of {of} predicted{}", first.unwrap_or_default())
        }
    }
}

/// What to do, where no finding is the main one.
pub(crate) fn verdict_remedy(report: &Report) -> Option<&str> {
    let remedy = report.verdict.remedy.as_str();
    (main_finding(report).0.is_none() && !remedy.is_empty()).then_some(remedy)
}

/// A note as a sentence.
pub(crate) fn note(note: &str) -> String {
    text::capitalized(note)
}

/// The file that was read.
pub(crate) fn file(path: &str) -> &str {
    if path == "-" { "standard input" } else { path }
}

/// The finding that the verdict is about, and the others. What a healthy recording has found is only worth knowing.
pub(crate) fn main_finding(report: &Report) -> (Option<&Finding>, &[Finding]) {
    match report.findings.split_first() {
        Some((main, rest)) if report.verdict.kind != VerdictKind::Healthy => (Some(main), rest),
        _ => (None, &report.findings),
    }
}

/// What to do, and what that saves.
#[must_use]
pub fn remedy(remedy: &Remedy) -> String {
    match remedy.saves_bytes.filter(|&bytes| bytes > Bytes::ZERO) {
        Some(bytes) if remedy.text.ends_with('.') => format!("{} Saves {bytes}.", remedy.text),
        Some(bytes) => format!("{} (saves {bytes})", remedy.text),
        None => remedy.text.clone(),
    }
}

/// The request and what stood against it.
pub(crate) fn request(oom: &OutOfMemory) -> String {
    format!(
        "{} did not fit beside {} allocated; {} cached, at most {} in one piece; the device had {} left",
        oom.asked_bytes, oom.moment.allocated_bytes, oom.cached_bytes, oom.largest_free_bytes, oom.device_free_bytes
    )
}

/// How many allocations failed.
pub(crate) fn failed(oom: &OutOfMemory) -> String {
    text::counted(oom.count, "allocation", "allocations; the figures are those of the last")
}

/// The cap that explains the failure.
pub(crate) fn limit(oom: &OutOfMemory) -> String {
    match oom.limit_below_bytes {
        Some(below) if below.to_string() == oom.limit_at_least_bytes.to_string() => below.to_string(),
        Some(below) => format!("between {} and {below}", oom.limit_at_least_bytes),
        None => format!("at least {}", oom.limit_at_least_bytes),
    }
}

/// The device, and of how many.
#[must_use]
pub fn device(report: &Report) -> String {
    let source = &report.source;
    format!("{} ({} in the recording)", source.device, text::counted(source.devices, "device", "devices"))
}

/// How many events there are, and over what time.
#[must_use]
pub fn events(report: &Report) -> String {
    let source = &report.source;
    let mut line = text::count(source.device_events);
    if source.devices > 1 {
        line = format!("{line} of this device, {} of all", text::count(source.events));
    }
    if source.duration_us > 0 {
        line = format!("{line}, over {}", text::duration(source.duration_us));
    }
    line
}

pub(crate) fn history(report: &Report) -> String {
    if report.source.complete {
        "complete: starts at the first allocation".to_owned()
    } else {
        format!("starts later: {} were already reserved", report.source.reserved_before)
    }
}

pub(crate) fn whatif_result(row: &WhatIf) -> &'static str {
    match (row.oom, row.exact) {
        (true, _) => "out of memory",
        (false, true) => "runs",
        (false, false) => "runs (estimate)",
    }
}

pub(crate) fn whatif_settings(row: &WhatIf) -> String {
    let settings = text::settings(&row.conf);
    match row.limit_bytes {
        Some(limit) => format!("{settings}, limit {limit}"),
        None => settings,
    }
}
