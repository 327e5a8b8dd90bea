//! The sites that held most.

use gpuheap_explain::{Holder, Report, VerdictKind};
use gpuheap_record::Bytes;

use super::page::Page;
use super::palette::Role;
use super::table::{Cell, Column};
use crate::{sentences, text};

/// Sites that the first screen shows.
const FIRST: usize = 3;

const COLUMNS: [Column; 5] = [
    Column::new("held"),
    Column::new("of allocated"),
    Column::from("blocks", 100),
    Column::from("class", 60),
    Column::new("by"),
];

/// The largest sites, where they are the answer: nothing is wrong, or the card is full.
pub(super) fn show_first(page: &mut Page, report: &Report) {
    let (holders, of) = match (&report.oom, report.verdict.kind) {
        (Some(oom), VerdictKind::Oom) => (&oom.holders, oom.moment.allocated_bytes),
        (_, VerdictKind::Healthy) => (&report.holders, sentences::ledger_moment(report).allocated_bytes),
        _ => return,
    };
    if holders.is_empty() || page.details() {
        return;
    }
    page.gap();
    table(page, &holders[..holders.len().min(FIRST)], of);
}

/// All holders of the report.
pub(super) fn show_all(page: &mut Page, report: &Report) {
    if report.holders.is_empty() {
        return;
    }
    page.heading(&format!("Who held memory {}", sentences::moment(report.ledger_at)));
    table(page, &report.holders, sentences::ledger_moment(report).allocated_bytes);
}

pub(super) fn table(page: &mut Page, holders: &[Holder], of: Bytes) {
    let rows: Vec<Vec<Cell>> = holders
        .iter()
        .map(|holder| {
            vec![
                Cell::Number(holder.bytes.to_string()),
                Cell::Number(text::share(holder.bytes, of)),
                Cell::Number(text::count(holder.blocks)),
                Cell::Text(Role::Class(holder.class), holder.class.title().to_owned()),
                match &holder.site {
                    Some(site) => Cell::Site(site.clone()),
                    None => Cell::Text(Role::Plain, holder.label.clone()),
                },
            ]
        })
        .collect();
    page.table(&COLUMNS, &rows);
}
