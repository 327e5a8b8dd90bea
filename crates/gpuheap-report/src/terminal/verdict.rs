//! The answer: what is wrong, where, how sure, what to change.

use gpuheap_explain::{Finding, Report};

use super::page::{LABEL, Line, Page};
use super::palette::Role;
use crate::{sentences, text};

/// Findings beside the main one that the first screen names.
const OTHERS: usize = 2;

pub(super) fn show(page: &mut Page, report: &Report) {
    let verdict = &report.verdict;
    let (name, headline) = text::headline(verdict.kind, &verdict.headline);
    let lead = format!("{name}: ");
    let parts = text::wrap(&page.folded(&headline), page.width() - text::width(&lead), page.width() - 2);
    for (index, part) in parts.iter().enumerate() {
        let line = if index == 0 { Line::of(Role::Verdict(verdict.kind), &lead) } else { Line::of(Role::Plain, "  ") };
        page.line(line.with(Role::Strong, part));
    }
    place(page, report);
    let (main, rest) = sentences::main_finding(report);
    match main {
        Some(main) => remedy(page, main),
        None => {
            if let Some(remedy) = sentences::verdict_remedy(report) {
                page.field("Change", Role::Plain, remedy);
            }
        }
    }
    if let Some(oom) = &report.oom {
        page.field("Request", Role::Plain, &sentences::request(oom));
    }
    others(page, rest);
}

/// The place, and how sure the verdict is.
fn place(page: &mut Page, report: &Report) {
    let sure = text::confidence(report.verdict.confidence);
    let Some(site) = &report.verdict.site else {
        page.field("Confidence", Role::Plain, sure);
        return;
    };
    let room = page.width() - LABEL;
    let beside = room.saturating_sub(sure.len() + "  ( confidence)".len());
    let wanted = text::width(&page.folded(&text::site(site, usize::MAX)));
    let label = format!("{:<LABEL$}", "Where");
    if wanted <= beside || beside >= 48 {
        let place = page.site(site, beside);
        page.line(
            Line::of(Role::Faint, &label).with(Role::Code, &place).with(Role::Plain, &format!("  ({sure} confidence)")),
        );
    } else {
        let place = page.site(site, room);
        page.line(Line::of(Role::Faint, &label).with(Role::Code, &place));
        page.field("Confidence", Role::Plain, sure);
    }
}

/// What to do about a finding, and what that saves.
pub(super) fn remedy(page: &mut Page, finding: &Finding) {
    let remedy = &finding.remedy;
    page.field("Change", Role::Plain, &sentences::remedy(remedy));
    if let Some(conf) = &remedy.conf {
        page.settings(if conf.is_empty() { "Run" } else { "Set" }, conf);
    }
}

fn others(page: &mut Page, rest: &[Finding]) {
    for (index, finding) in rest.iter().take(OTHERS).enumerate() {
        let label = if index == 0 { "Also" } else { "" };
        page.field(label, Role::Plain, &finding.title);
    }
    if rest.len() > OTHERS && !page.details() {
        page.field("", Role::Faint, &format!("and {} more, with `--details`", rest.len() - OTHERS));
    }
}
