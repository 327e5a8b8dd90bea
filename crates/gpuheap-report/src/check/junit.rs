//! The result as `JUnit` XML, which most services for continuous integration show.

use std::fmt::Write;

use gpuheap_explain::Checked;

use super::{CheckReport, CheckedRecording};
use crate::text::{sanitize, site};

/// A suite for each device of each recording, a case for each check.
#[must_use]
pub fn to_junit(report: &CheckReport) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let (tests, failures) = (report.checks().count(), report.violations().count());
    // Writing to a string cannot fail.
    let _ = writeln!(xml, "<testsuites name=\"gpuheap check\" tests=\"{tests}\" failures=\"{failures}\">");
    for recording in &report.recordings {
        suite(&mut xml, recording);
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn suite(xml: &mut String, recording: &CheckedRecording) {
    let name = escape(&recording.name());
    let tests = recording.checks.len();
    let failures = recording.checks.iter().filter(|check| !check.holds).count();
    let _ = writeln!(xml, "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\">");
    for check in &recording.checks {
        case(xml, &name, check);
    }
    xml.push_str("  </testsuite>\n");
}

fn case(xml: &mut String, class: &str, check: &Checked) {
    let (name, message) = (escape(check.name), escape(&check.message));
    let mut place = String::new();
    if let Some(site) = &check.site {
        let _ = write!(place, " file=\"{}\" line=\"{}\"", escape(&site.file), site.line);
    }
    let _ = writeln!(xml, "    <testcase classname=\"{class}\" name=\"{name}\"{place}>");
    if check.holds {
        let _ = writeln!(xml, "      <system-out>{message}</system-out>");
    } else {
        let at = check.site.as_ref().map(|place| format!(", at {}", escape(&site(place, usize::MAX))));
        let at = at.unwrap_or_default();
        let _ = writeln!(xml, "      <failure message=\"{message}\" type=\"{name}\">{message}{at}</failure>");
    }
    xml.push_str("    </testcase>\n");
}

/// Text for elements and attributes alike. Some characters may not be in XML at all, not even escaped.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in sanitize(text).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            other => escaped.push(other),
        }
    }
    escaped
}
