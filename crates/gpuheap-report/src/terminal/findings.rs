//! All findings with what was seen.

use gpuheap_explain::{Finding, Report};

use super::charts::curve;
use super::page::{LABEL, Line, Page};
use super::palette::{Role, by_confidence};
use super::verdict::remedy;
use crate::text;

pub(super) fn show(page: &mut Page, report: &Report) {
    if report.findings.is_empty() {
        return;
    }
    page.heading(&text::counted(report.findings.len() as u64, "finding", "findings"));
    for finding in &report.findings {
        page.gap();
        one(page, finding);
    }
}

fn one(page: &mut Page, finding: &Finding) {
    page.paragraph("", 2, Role::Strong, &format!("{}: {}", finding.id, finding.title));
    if let Some(site) = &finding.site {
        let place = page.site(site, page.width() - LABEL);
        page.field("Where", Role::Code, &place);
    }
    let mut costs = finding.bytes.to_string();
    if let Some(per_step) = finding.bytes_per_step {
        costs = format!("{costs}, {per_step} more each step");
    }
    page.field("Costs", Role::Plain, &costs);
    page.field("Confidence", by_confidence(finding.confidence), text::confidence(finding.confidence));
    remedy(page, finding);
    for (index, evidence) in finding.evidence.iter().enumerate() {
        page.field(if index == 0 { "Seen" } else { "" }, Role::Plain, evidence);
    }
    growth(page, finding);
    for (index, site) in finding.stack.iter().enumerate() {
        let label = if index == 0 { "Stack" } else { "" };
        let place = page.site(site, page.width() - LABEL);
        page.line(Line::of(Role::Faint, &format!("{label:<LABEL$}")).with(Role::Code, &place));
    }
}

fn growth(page: &mut Page, finding: &Finding) {
    let [first, .., last] = finding.growth.as_slice() else { return };
    let (first, last) = (first.to_string(), last.to_string());
    let room = page.width().saturating_sub(LABEL + first.len() + last.len() + 2).min(80);
    let curve = curve(&finding.growth, room, page.style().unicode);
    page.line(
        Line::of(Role::Faint, &format!("{:<LABEL$}", "Growth"))
            .with(Role::Plain, &format!("{first} "))
            .with(Role::Allocated, &curve)
            .with(Role::Plain, &format!(" {last}")),
    );
}
