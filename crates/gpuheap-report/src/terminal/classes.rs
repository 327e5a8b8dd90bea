//! Which rule put how much memory into which class.

use gpuheap_explain::Report;

use super::page::Page;
use super::palette::Role;
use super::table::{Cell, Column};
use crate::{sentences, text};

const COLUMNS: [Column; 4] =
    [Column::new("class"), Column::new("bytes"), Column::from("blocks", 60), Column::new("rule")];

pub(super) fn show(page: &mut Page, report: &Report) {
    if report.classes.is_empty() {
        return;
    }
    page.heading(&format!("How memory was classed {}", sentences::moment(report.ledger_at)));
    let rows: Vec<Vec<Cell>> = report
        .classes
        .iter()
        .map(|rule| {
            vec![
                Cell::Text(Role::Class(rule.class), rule.class.title().to_owned()),
                Cell::Number(rule.bytes.to_string()),
                Cell::Number(text::count(rule.blocks)),
                Cell::Text(Role::Plain, rule.rule.to_owned()),
            ]
        })
        .collect();
    page.table(&COLUMNS, &rows);
}
