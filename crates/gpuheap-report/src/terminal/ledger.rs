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
    if report.ledger.is_empty() {
        return;
    }
    page.heading(&format!("Where the memory was {}", sentences::moment(report.ledger_at)));
    let total = report.ledger.iter().map(|part| part.bytes).sum();
    let (shown, rest) = split(&report.ledger, page.details());
    let rest_bytes: Bytes = rest.iter().map(|part| part.bytes).sum();
    let rest_name = format!("{} smaller parts", rest.len());
    let sum_name = sentences::sum_name(&report.ledger);

    let names = shown.iter().map(|part| page.folded(&part.part)).collect::<Vec<_>>();
    let widest = names.iter().map(|name| text::width(name)).chain([rest_name.len(), sum_name.len() + 2]).max();
    let name_width = widest.unwrap_or(0).min(page.width().saturating_sub(SIZE + SHARE + 6).min(30));
    let bars = page.width().saturating_sub(name_width + SIZE + SHARE + 8).min(48);
    let row = |page: &mut Page, role, name: &str, bytes: Bytes| {
        let name = page.cut(name, name_width);
        let padding = " ".repeat(name_width - text::width(&name));
        let figures = format!("{padding}  {bytes:>SIZE$} {:>SHARE$}  ", text::share(bytes, total));
        let bar = bar(bytes, total, bars, page.style().unicode);
        page.line(Line::of(Role::Plain, "  ").with(role, &name).with(Role::Plain, &figures).with(role, &bar));
    };
    for (part, name) in shown.iter().zip(&names) {
        row(page, role(part), name, part.bytes);
        if page.details() && !part.detail.is_empty() {
            page.paragraph("      ", 6, Role::Faint, &part.detail);
        }
    }
    if !rest.is_empty() {
        row(page, Role::Faint, &rest_name, rest_bytes);
    }
    let sum = format!("{:<name_width$}  {total:>SIZE$}", format!("= {sum_name}"));
    page.line(Line::of(Role::Plain, "  ").with(Role::Strong, &sum));
}

fn role(part: &LedgerPart) -> Role {
    part.class.map_or(Role::Part(part.kind), Role::Class)
}

/// The parts to show, in their order, and the others. Nothing stands for just one other.
fn split(ledger: &[LedgerPart], all: bool) -> (Vec<&LedgerPart>, Vec<&LedgerPart>) {
    let total: Bytes = ledger.iter().map(|part| part.bytes).sum();
    let mut by_size: Vec<usize> = (0..ledger.len()).collect();
    by_size.sort_by_key(|&at| std::cmp::Reverse(ledger[at].bytes));
    // What is free is part of the answer, however little it is.
    by_size.retain(|&at| ledger[at].kind == PartKind::Free || ledger[at].bytes.share_of(total) >= SMALL);
    by_size.truncate(PARTS);
    let (shown, rest): (Vec<usize>, Vec<usize>) = (0..ledger.len()).partition(|at| by_size.contains(at));
    if all || rest.len() < 2 {
        return (ledger.iter().collect(), Vec::new());
    }
    let parts = |rows: Vec<usize>| rows.into_iter().map(|at| &ledger[at]).collect();
    (parts(shown), parts(rest))
}
