//! The result as annotations, which GitHub Actions shows beside the code.

use std::fmt::Write;

use gpuheap_explain::Site;

use super::CheckReport;
use super::text::all_hold;
use crate::text::sanitize;

/// One annotation for each check that does not hold; one plain line if every check holds.
///
/// Files below the folder `root` are named from there, as GitHub names the files of a repository.
#[must_use]
pub fn to_github(report: &CheckReport, root: &str) -> String {
    let mut lines = String::new();
    for (recording, check) in report.violations() {
        let place = check.site.as_ref().map(|site| place(site, root)).unwrap_or_default();
        let title = property(&format!("gpuheap check {}", check.name));
        let message = data(&format!("{}: {}", recording.name(), check.message));
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "::error {place}title={title}::{message}");
    }
    if report.holds {
        let _ = writeln!(lines, "{}", all_hold(report));
    }
    lines
}

fn place(site: &Site, root: &str) -> String {
    let below = site.file.strip_prefix(root.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/'));
    let file = property(below.filter(|_| !root.is_empty()).unwrap_or(&site.file));
    if file.is_empty() {
        return String::new();
    }
    let line = if site.line == 0 { String::new() } else { format!("line={},", site.line) };
    format!("file={file},{line}")
}

/// Text after the last `::`.
fn data(text: &str) -> String {
    sanitize(text).replace('%', "%25")
}

/// Text before it, where some characters more mean something.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_starts_another_command() {
        let evil = Site { file: "a,line=1::b\n::warning::c".to_owned(), line: 7, function: String::new() };
        assert_eq!(place(&evil, ""), "file=a%2Cline=1%3A%3Ab %3A%3Awarning%3A%3Ac,line=7,");
        assert_eq!(data("31 %\r\n::error::x"), "31 %25  ::error::x");
    }

    #[test]
    fn files_are_named_from_the_root() {
        let site = |file: &str| Site { file: file.to_owned(), line: 0, function: String::new() };
        assert_eq!(place(&site("/work/repo/train.py"), "/work/repo"), "file=train.py,");
        assert_eq!(place(&site("/work/repo/train.py"), "/work/repo/"), "file=train.py,");
        assert_eq!(place(&site("/work/repository/train.py"), "/work/repo"), "file=/work/repository/train.py,");
        assert_eq!(place(&site("/work/train.py"), ""), "file=/work/train.py,");
        assert_eq!(place(&site(""), ""), "");
    }
}
