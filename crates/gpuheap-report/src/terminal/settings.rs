//! What the settings that were tried for a remedy would have done.

use gpuheap_explain::Report;

use super::page::Page;
use super::palette::Role;
use super::table::{Cell, Column};
use crate::{sentences, text};

const COLUMNS: [Column; 5] = [
    Column::new("reserved"),
    Column::from("segments", 60),
    Column::from("retries", 60),
    Column::new("result"),
    Column::new("settings"),
];

pub(super) fn show(page: &mut Page, report: &Report) {
    if report.whatif.is_empty() {
        return;
    }
    page.heading("With other settings");
    let rows: Vec<Vec<Cell>> = report
        .whatif
        .iter()
        .map(|row| {
            let role = if row.oom { Role::Alarm } else { Role::Plain };
            vec![
                Cell::Number(row.peak_reserved_bytes.to_string()),
                Cell::Number(text::count(row.segments)),
                Cell::Number(text::count(row.retries)),
                Cell::Text(role, sentences::whatif_result(row).to_owned()),
                Cell::Text(Role::Code, sentences::whatif_settings(row)),
            ]
        })
        .collect();
    page.table(&COLUMNS, &rows);
    page.paragraph("  ", 2, Role::Faint, "`gpuheap whatif` searches among more of them");
}
