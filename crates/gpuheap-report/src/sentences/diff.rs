//! What the forms of a comparison say in the same words.

use gpuheap_explain::{Diff, Side, Site, SiteChange};
use gpuheap_record::Bytes;

use crate::text;

/// Places that are shown where not all are.
pub(crate) const FIRST: usize = 15;

/// What stands where nothing changed.
pub(crate) const NO_PLACE_CHANGED: &str = "Every line holds what it held before.";

/// The answer in one sentence.
pub(crate) fn headline(diff: &Diff) -> String {
    let (before, after) = (&diff.before.peaks, &diff.after.peaks);
    format!(
        "At the peak {}, and {}",
        moved("allocated", before.allocated_bytes, after.allocated_bytes),
        moved("reserved", before.reserved_bytes, after.reserved_bytes)
    )
}

/// `1.20 GiB (5 %) more allocated`.
fn moved(what: &str, before: Bytes, after: Bytes) -> String {
    if before == after {
        return format!("as much {what} as before ({after})");
    }
    let (by, how) = if after > before { (after - before, "more") } else { (before - after, "less") };
    let share = if before == Bytes::ZERO { String::new() } else { format!(" ({})", percent(by, before)) };
    format!("{by}{share} {how} {what}")
}

/// `by` in percent of `of`, which may be less. What is not all never looks as if it were.
fn percent(by: Bytes, of: Bytes) -> String {
    let percent = by.share_of(of) * 100.0;
    match percent {
        ..0.05 => "<0.1 %".to_owned(),
        ..9.95 => format!("{percent:.1} %"),
        99.5..100.0 => format!("{:.1} %", percent.min(99.9)),
        _ => format!("{percent:.0} %"),
    }
}

/// What the table of sums has: a name, before, after.
pub(crate) fn sums(diff: &Diff) -> Vec<(&'static str, Bytes, Bytes)> {
    let (before, after) = (&diff.before, &diff.after);
    vec![
        ("allocated at most", before.peaks.allocated_bytes, after.peaks.allocated_bytes),
        ("reserved at most", before.peaks.reserved_bytes, after.peaks.reserved_bytes),
        ("leaked each step", before.leak_bytes_per_step, after.leak_bytes_per_step),
    ]
}

/// A change with its sign.
pub(crate) fn signed(before: Bytes, after: Bytes) -> String {
    match after.cmp(&before) {
        std::cmp::Ordering::Equal => Bytes::ZERO.to_string(),
        std::cmp::Ordering::Greater => format!("+{}", after - before),
        std::cmp::Ordering::Less => format!("-{}", before - after),
    }
}

/// A change in percent of what was before.
pub(crate) fn relative(before: Bytes, after: Bytes) -> String {
    match (before, after) {
        _ if before == after => String::new(),
        (Bytes::ZERO, _) => "new".to_owned(),
        (_, Bytes::ZERO) => "gone".to_owned(),
        _ if after > before => with_sign('+', &percent(after - before, before)),
        _ => with_sign('-', &percent(before - after, before)),
    }
}

fn with_sign(sign: char, percent: &str) -> String {
    if percent.starts_with('<') { percent.to_owned() } else { format!("{sign}{percent}") }
}

/// The places to show, those that changed most first, and how many others changed.
pub(crate) fn places(rows: &[SiteChange], all: bool) -> (&[SiteChange], usize) {
    if all {
        return (rows, 0);
    }
    // They come in the order of their changes.
    let changed = rows.iter().take_while(|row| row.change_bytes != 0).count();
    (&rows[..changed.min(FIRST)], changed.saturating_sub(FIRST))
}

/// How many more places changed than are shown.
pub(crate) fn others(count: usize) -> String {
    text::counted(count as u64, "other line changed", "other lines changed")
}

/// The place as it is now, and its line before if that is another.
pub(crate) fn place(row: &SiteChange) -> Option<(&Site, Option<u32>)> {
    match (&row.before_site, &row.after_site) {
        (Some(before), Some(after)) => Some((after, (before.line != after.line).then_some(before.line))),
        (Some(only), None) | (None, Some(only)) => Some((only, None)),
        (None, None) => None,
    }
}

/// The recording, the device if that can be meant, and what was found in it.
pub(crate) fn side(side: &Side) -> String {
    let device = if side.source.devices > 1 { format!(", device {}", side.source.device) } else { String::new() };
    format!("{}{device}", super::file(&side.source.path))
}
