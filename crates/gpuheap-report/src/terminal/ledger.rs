//! Where the memory went: the parts of the ledger, each with its share, and their sum.

use gpuheap_explain::{LedgerPart, PartKind, Report};
use gpuheap_record::Bytes;

use super::charts::bar;
use super::page::{Line, Page};
use super::palette::Role;
use crate::{sentences, text};

/// Parts that the first screen shows one by one.
const PARTS: usize = 7;
/// Parts with less than this share of the whole may be shown together.
const SMALL: f64 = 0.01;
/// Columns of the sizes and of the shares.
const SIZE: usize = 8;
const SHARE: usize = 5;

pub(super) fn show(page: &mut Page, report: &Report) {
    let (parts, outside) = sentences::ledger(report);
    if parts.is_empty() && outside.is_empty() {
        return;
    }
    page.heading(&format!("Where the memory was {}", sentences::moment(report.ledger_at)));
    let reserved = parts.iter().map(|part| part.bytes).sum();
    let (shown, rest) = split(&parts, reserved, page.details());
    let rest_bytes: Bytes = rest.iter().map(|part| part.bytes).sum();
    let rest_name = format!("{} smaller parts", rest.len());

    let names = shown.iter().chain(&outside).map(|part| text::width(&page.folded(&part.part)));
    let widest = names.chain([rest_name.len(), "= reserved".len()]).max();
    let name_width = widest.unwrap_or(0).min(page.width().saturating_sub(SIZE + SHARE + 6).min(30));
    let bars = page.width().saturating_sub(name_width + SIZE + SHARE + 8).min(48);
    let figures = |page: &Page, name: &str, bytes: Bytes| {
        let name = page.cut(name, name_width);
        let padding = " ".repeat(name_width - text::width(&name));
        (name, format!("{padding}  {bytes:>SIZE$}"))
    };
    let row = |page: &mut Page, role, name: &str, bytes: Bytes| {
        let (name, size) = figures(page, name, bytes);
        let share = format!(" {:>SHARE$}  ", text::share(bytes, reserved));
        let bar = bar(bytes, reserved, bars, page.style().unicode);
        let line = Line::of(Role::Plain, "  ").with(role, &name).with(Role::Plain, &size);
        page.line(line.with(Role::Plain, &share).with(role, &bar));
    };
    let sum = |page: &mut Page, name: &str, bytes: Bytes| {
        let (name, size) = figures(page, name, bytes);
        page.line(Line::of(Role::Plain, "  ").with(Role::Strong, &(name + &size)));
    };
    let detail = |page: &mut Page, part: &LedgerPart| {
        if page.details() && !part.detail.is_empty() {
            page.paragraph("      ", 6, Role::Faint, &part.detail);
        }
    };
    for part in &shown {
        row(page, role(part), &part.part, part.bytes);
        detail(page, part);
    }
    if !rest.is_empty() {
        row(page, Role::Faint, &rest_name, rest_bytes);
    }
    sum(page, "= reserved", reserved);
    for part in &outside {
        let (name, size) = figures(page, &part.part, part.bytes);
        page.line(Line::of(Role::Plain, "  ").with(role(part), &name).with(Role::Plain, &size));
        detail(page, part);
    }
    if !outside.is_empty() {
        let all = reserved + outside.iter().map(|part| part.bytes).sum::<Bytes>();
        sum(page, &format!("= {}", sentences::whole(&outside)), all);
    }
}

fn role(part: &LedgerPart) -> Role {
    part.class.map_or(Role::Part(part.kind), Role::Class)
}

/// The parts to show, in their order, and the others. Nothing stands for just one other.
fn split<'a>(ledger: &[&'a LedgerPart], total: Bytes, all: bool) -> (Vec<&'a LedgerPart>, Vec<&'a LedgerPart>) {
    let mut by_size: Vec<usize> = (0..ledger.len()).collect();
    by_size.sort_by_key(|&at| std::cmp::Reverse(ledger[at].bytes));
    // What is free is part of the answer, however little it is.
    by_size.retain(|&at| ledger[at].kind == PartKind::Free || ledger[at].bytes.share_of(total) >= SMALL);
    by_size.truncate(PARTS);
    let (shown, rest): (Vec<usize>, Vec<usize>) = (0..ledger.len()).partition(|at| by_size.contains(at));
    if all || rest.len() < 2 {
        return (ledger.to_vec(), Vec::new());
    }
    let parts = |rows: Vec<usize>| rows.into_iter().map(|at| ledger[at]).collect();
    (parts(shown), parts(rest))
}
