//! Peaks, steps, replay, source and notes: one line each, and what is behind them.

use gpuheap_explain::Report;

use super::page::Page;
use super::palette::Role;
use crate::{sentences, text};

pub(super) fn show(page: &mut Page, report: &Report) {
    page.gap();
    page.field("Peaks", Role::Plain, &sentences::peaks(report));
    page.field("Steps", Role::Plain, &sentences::steps(&report.steps));
    page.field("Replay", Role::Plain, &sentences::replay(&report.replay));
    page.field("Source", Role::Plain, &source(report));
    for (index, note) in report.source.notes.iter().enumerate() {
        page.field(if index == 0 { "Notes" } else { "" }, Role::Plain, note);
    }
    if !page.details() {
        page.field("More", Role::Faint, "`--details` shows evidence, stacks, holders and the rules of the classes");
    }
}

fn source(report: &Report) -> String {
    let source = &report.source;
    let mut line = format!("{}, {}", text::cut_path(&text::sanitize(&source.path), 48), source.bytes);
    if source.devices > 1 {
        line = format!("{line}, device {} of {}", source.device, text::count(source.devices));
    }
    if !source.complete {
        line = format!("{line}, started with {} reserved", source.reserved_before);
    }
    line
}
