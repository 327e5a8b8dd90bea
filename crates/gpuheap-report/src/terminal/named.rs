//! What the program itself calls its memory.

use gpuheap_explain::Report;

use super::page::Page;
use super::palette::Role;
use super::table::{Cell, Column};
use crate::{sentences, text};

const COLUMNS: [Column; 4] =
    [Column::new("held"), Column::from("blocks", 60), Column::new("class"), Column::new("what the program calls it")];

pub(super) fn show(page: &mut Page, report: &Report) {
    if report.named.is_empty() {
        return;
    }
    page.heading(&format!("Memory with names {}", sentences::moment(report.ledger_at)));
    let rows: Vec<Vec<Cell>> = report
        .named
        .iter()
        .map(|named| {
            vec![
                Cell::Number(named.bytes.to_string()),
                Cell::Number(text::count(named.blocks)),
                Cell::Text(Role::Class(named.class), named.class.title().to_owned()),
                Cell::Text(Role::Plain, named.name.clone()),
            ]
        })
        .collect();
    page.table(&COLUMNS, &rows);
}
