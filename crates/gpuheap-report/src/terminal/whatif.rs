//! What other settings would have done: one entry for each, the answer, and the line to copy.

use gpuheap_explain::{WhatIf, WhatIfReport};

use super::Style;
use super::charts::bar;
use super::page::{Line, Page};
use super::palette::Role;
use crate::sentences::{self, whatif as say};
use crate::text;

/// A column of figures.
struct Column {
    title: &'static str,
    /// The column is left out on pages narrower than this.
    from_width: usize,
    width: usize,
    figure: fn(&WhatIf) -> String,
}

const COLUMNS: [Column; 6] = [
    Column { title: "reserved", from_width: 0, width: 8, figure: |row| row.peak_reserved_bytes.to_string() },
    Column { title: "waste", from_width: 0, width: 5, figure: say::waste },
    Column { title: "segments", from_width: 72, width: 8, figure: |row| text::count(row.segments) },
    Column { title: "calls", from_width: 72, width: 7, figure: |row| text::count(row.driver_calls) },
    Column { title: "retries", from_width: 60, width: 7, figure: |row| text::count(row.retries) },
    Column { title: "fits in", from_width: 0, width: 8, figure: say::fits_in },
];
/// Columns of the bars, at most.
const BARS: usize = 48;
/// Columns before the bars and between the figures.
const INDENT: usize = 4;
const GAP: usize = 2;

pub(crate) fn render(report: &WhatIfReport, style: Style) -> String {
    let mut page = Page::new(style);
    if report.whatif.is_empty() {
        verified(&mut page, report);
    } else {
        entries(&mut page, report);
        answer(&mut page, report);
    }
    page.finish()
}

fn entries(page: &mut Page, report: &WhatIfReport) {
    page.heading(&say::heading(report));
    let columns: Vec<&Column> = COLUMNS.iter().filter(|column| column.from_width <= page.width()).collect();
    let figures: usize = columns.iter().map(|column| column.width + GAP).sum();
    let bars = page.width().saturating_sub(INDENT + figures).min(BARS);
    let titles = cells(&columns, |column| column.title.to_owned());
    page.line(Line::of(Role::Faint, &format!("{}{titles}", " ".repeat(INDENT + bars))));
    let most = report.whatif.iter().map(|row| row.peak_reserved_bytes).max().unwrap_or_default();
    for row in &report.whatif {
        name(page, report, row);
        let bar = page.folded(&bar(row.peak_reserved_bytes, most, bars, page.style().unicode));
        let padding = " ".repeat(bars - text::width(&bar));
        let figures = cells(&columns, |column| (column.figure)(row));
        let line = Line::of(Role::Plain, &" ".repeat(INDENT)).with(color(row), &bar);
        page.line(line.with(Role::Plain, &padding).with(Role::Plain, &figures));
        if let Some(failure) = say::failure(row) {
            page.paragraph("    ", INDENT, Role::Alarm, &failure);
        }
    }
    page.gap();
    page.paragraph("", 0, Role::Faint, say::LEGEND);
}

/// What stands in each column, to the right.
fn cells(columns: &[&Column], text: impl Fn(&Column) -> String) -> String {
    columns.iter().fold(String::new(), |line, column| format!("{line}  {:>1$}", text(column), column.width))
}

fn color(row: &WhatIf) -> Role {
    if row.oom { Role::Faint } else { Role::Reserved }
}

/// The settings, and what they are to the reader.
fn name(page: &mut Page, report: &WhatIfReport, row: &WhatIf) {
    let settings = page.folded(&text::settings(&row.conf));
    let mark = say::mark(report, row);
    let lead = "  ";
    if lead.len() + text::width(&settings) + GAP + mark.len() > page.width() {
        page.paragraph(lead, lead.len(), Role::Code, &settings);
        if !mark.is_empty() {
            page.line(Line::of(Role::Plain, lead).with(Role::Strong, mark));
        }
        return;
    }
    let gap = " ".repeat(GAP);
    page.line(Line::of(Role::Plain, lead).with(Role::Code, &settings).with(Role::Plain, &gap).with(Role::Strong, mark));
}

/// The answer, what weakens it, and the line to copy.
fn answer(page: &mut Page, report: &WhatIfReport) {
    page.gap();
    page.paragraph("", 0, Role::Plain, &say::answer(report));
    if let Some(estimate) = say::estimate(report) {
        page.paragraph("", 0, Role::Plain, &estimate);
    }
    page.gap();
    match &report.best {
        Some(conf) => page.command(&text::conf_line(conf)),
        None => page.paragraph("", 0, Role::Strong, say::NOTHING_BETTER),
    }
}

/// Only how well the recorded settings explain the recording.
fn verified(page: &mut Page, report: &WhatIfReport) {
    page.paragraph("", 2, Role::Strong, &say::verified(report));
    let first = report.replay.first_mismatch.as_ref().filter(|_| !report.replay.exact);
    if let Some(first) = first {
        page.field("First", Role::Plain, first);
    }
    page.field("Source", Role::Plain, sentences::file(&report.source.path));
    let said = |note: &&String| first.is_some_and(|first| note.ends_with(first.as_str()));
    for (index, note) in report.source.notes.iter().filter(|note| !said(note)).enumerate() {
        page.field(if index == 0 { "Notes" } else { "" }, Role::Plain, &sentences::note(note));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_leave_room_for_bars() {
        for width in [40, 60, 72, 80] {
            let figures: usize =
                COLUMNS.iter().filter(|column| column.from_width <= width).map(|column| column.width + GAP).sum();
            assert!(INDENT + figures + 8 <= width, "{width}: {figures}");
        }
    }
}
