//! What was read.

use gpuheap_explain::Report;

use super::page::Page;
use super::palette::Role;
use crate::{sentences, text};

pub(super) fn show(page: &mut Page, report: &Report) {
    let source = &report.source;
    page.heading("Source");
    page.field("File", Role::Plain, sentences::file(&source.path));
    page.field("Format", Role::Plain, &source.format);
    page.field("Size", Role::Plain, &format!("{} ({} bytes)", source.bytes, text::count(source.bytes.get())));
    page.field("Device", Role::Plain, &sentences::device(report));
    page.field("Events", Role::Plain, &sentences::events(report));
    page.field("Policy", Role::Plain, &report.replay.policy);
    page.field("Settings", Role::Plain, &text::settings(&source.conf));
    page.field("History", Role::Plain, &sentences::history(report));
    if !source.facts.is_empty() {
        let facts: Vec<String> = source.facts.iter().map(|(name, value)| format!("{name} {value}")).collect();
        page.field("Program", Role::Plain, &facts.join(", "));
    }
}
