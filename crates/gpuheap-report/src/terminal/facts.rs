//! Peaks, steps, replay, source and notes: one line each, and what is behind them.

use gpuheap_explain::Report;

use super::page::{LABEL, Page};
use super::palette::Role;
use crate::{sentences, text};

pub(super) fn show(page: &mut Page, report: &Report) {
    page.gap();
    page.field("Peaks", Role::Plain, &sentences::peaks(report));
    page.field("Steps", Role::Plain, &sentences::steps(&report.steps));
    page.field("Replay", Role::Plain, &sentences::replay(&report.replay));
    page.field("Source", Role::Plain, &source(page, report));
    for (index, note) in report.source.notes.iter().enumerate() {
        page.field(if index == 0 { "Notes" } else { "" }, Role::Plain, &sentences::note(note));
    }
    if !page.details() {
        page.field("More", Role::Faint, "`--details` adds evidence, stacks, holders and class rules");
    }
}

fn source(page: &Page, report: &Report) -> String {
    let source = &report.source;
    let mut rest = format!(", {}", source.bytes);
    if source.devices > 1 {
        rest = format!("{rest}, device {} of {}", source.device, text::count(source.devices));
    }
    let room = page.width().saturating_sub(LABEL + rest.len()).max(16);
    format!("{}{rest}", text::cut_path(&text::sanitize(sentences::file(&source.path)), room))
}
