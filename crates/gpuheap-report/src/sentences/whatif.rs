//! What the forms of a what-if report say in the same words.

use gpuheap_explain::{WhatIf, WhatIfReport, WhatIfRole};
use gpuheap_record::Bytes;

use crate::text;

/// What stands where no setting helps.
pub(crate) const NOTHING_BETTER: &str = "Nothing better was found";

/// Settings of more columns than this spoil a sentence.
const LONG: usize = 48;

/// What the rows are about.
pub(crate) fn heading(report: &WhatIfReport) -> String {
    match report.whatif.first().and_then(|row| row.limit_bytes) {
        Some(limit) => format!("Other settings under a limit of {limit}"),
        None => "What other settings would have reserved".to_owned(),
    }
}

/// What the reader should know about a row beside its settings.
pub(crate) fn mark(report: &WhatIfReport, row: &WhatIf) -> &'static str {
    match (row.role, is_best(report, row)) {
        (WhatIfRole::Recorded, _) => "(recorded)",
        (_, true) => "(best)",
        (_, false) => "",
    }
}

fn is_best(report: &WhatIfReport, row: &WhatIf) -> bool {
    row.role != WhatIfRole::Recorded && report.best.as_ref() == Some(&row.conf)
}

/// The part of the most reserved memory that was never in use.
pub(crate) fn waste(row: &WhatIf) -> String {
    text::share(row.peak_reserved_bytes - row.peak_active_bytes, row.peak_reserved_bytes)
}

/// The smallest limit under which the program runs to its end; `-` where it is not known.
pub(crate) fn fits_in(row: &WhatIf) -> String {
    row.smallest_limit_bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string())
}

/// Where the memory ran out, if it did.
pub(crate) fn failure(row: &WhatIf) -> Option<String> {
    if !row.oom {
        return None;
    }
    let event = row.oom_event.map(|event| format!(" in event {}", text::count(event)));
    let place = row.oom_site.as_ref().map(|site| format!(", at {}", text::site(site, usize::MAX)));
    Some(format!("out of memory{}{}", event.unwrap_or_default(), place.unwrap_or_default()))
}

/// What the figures of a row mean.
pub(crate) const LEGEND: &str = "waste: the part of the reserved memory that was never in use; retries: times that the \
                                 cache was released for a request; fits in: the smallest limit under which all \
                                 that was recorded runs";

/// The answer in one sentence.
pub(crate) fn answer(report: &WhatIfReport) -> String {
    let Some(recorded) = report.whatif.first() else { return String::new() };
    let limit = recorded.limit_bytes.map(|limit| format!(" under {limit}")).unwrap_or_default();
    let Some(best) = report.whatif.iter().find(|row| is_best(report, row)) else {
        return if recorded.oom {
            format!("What was recorded runs out of memory{limit} with every setting that was tried.")
        } else {
            "No setting that was tried is worth changing to: none reserves at least 20 MiB and 2 % less than the recorded \
             ones."
                .to_owned()
        };
    };
    let settings = match best.conf.as_str() {
        "" => "stock settings".to_owned(),
        long if text::width(long) > LONG => "the best of these settings".to_owned(),
        conf => format!("`{conf}`"),
    };
    match report.saves_bytes.filter(|&saves| saves > Bytes::ZERO) {
        Some(saves) => {
            let share = text::share(saves, recorded.peak_reserved_bytes);
            format!("With {settings} the program reserves {saves} ({share}) less at the peak.")
        }
        None => {
            let spare = recorded
                .limit_bytes
                .map_or_else(String::new, |limit| format!(", with {} to spare", limit - best.peak_reserved_bytes));
            format!(
                "With {settings} all that was recorded runs{limit}{spare}; with the recorded settings it runs out of memory. \
                 What the program would have asked for next is not known."
            )
        }
    }
}

/// Why the figures are estimates, if they are.
pub(crate) fn estimate(report: &WhatIfReport) -> Option<String> {
    if report.whatif.iter().all(|row| row.exact) {
        return None;
    }
    let why = if !report.source.complete {
        "the recording starts late, so the first segments are not known"
    } else if !report.replay.exact {
        "the recorded settings do not explain every event"
    } else {
        "some choices hang on what is not recorded: when memory that waited for other streams was free again, or which \
         addresses the driver chose"
    };
    Some(format!("These figures are estimates: {why}."))
}

/// How well the recorded settings explain the recording.
pub(crate) fn verified(report: &WhatIfReport) -> String {
    let replay = &report.replay;
    let settings = text::settings(&replay.conf);
    if replay.exact && replay.segment_events == 0 {
        return "Nothing to compare: no segment events in the recording".to_owned();
    }
    let events = format!(
        "{} of {} predicted with {settings}",
        text::count(replay.matched),
        text::counted(replay.segment_events, "segment event", "segment events")
    );
    format!("{}: {events}", if replay.exact { "Exact" } else { "Not exact" })
}
