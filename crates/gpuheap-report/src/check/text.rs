//! The result for people: one line for each violation.

use std::fmt::Write;

use super::CheckReport;
use crate::text;

/// One line for each check that does not hold; one line for all if every check holds.
#[must_use]
pub fn to_text(report: &CheckReport) -> String {
    let mut lines = String::new();
    for (recording, check) in report.violations() {
        let place = check.site.as_ref().map(|site| format!(", at {}", text::site(site, usize::MAX)));
        let line = format!("{}: {}: {}{}", recording.name(), check.name, check.message, place.unwrap_or_default());
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "{}", text::sanitize(&line));
    }
    if report.holds {
        let _ = writeln!(lines, "{}", all_hold(report));
    }
    lines
}

/// How many checks hold, if all do.
pub(super) fn all_hold(report: &CheckReport) -> String {
    let count = report.checks().count() as u64;
    if count == 1 { "1 check holds".to_owned() } else { format!("All {} checks hold", text::count(count)) }
}
