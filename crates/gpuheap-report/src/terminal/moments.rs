//! The moments of the report side by side, and the classes at each.

use gpuheap_explain::{Class, Moment, Report};

use super::page::Page;
use super::palette::Role;
use super::table::{Cell, Column};
use crate::{sentences, text};

const COLUMNS: [Column; 5] = [
    Column::new("event"),
    Column::from("after", 60),
    Column::new("allocated"),
    Column::new("reserved"),
    Column::new("moment"),
];

pub(super) fn show(page: &mut Page, report: &Report) {
    page.heading("Moments");
    let rows: Vec<Vec<Cell>> = sentences::moments(report)
        .iter()
        .map(|(moment, name)| {
            vec![
                Cell::Number(sentences::event(moment)),
                Cell::Number(sentences::after_start(report, moment)),
                Cell::Number(moment.allocated_bytes.to_string()),
                Cell::Number(moment.reserved_bytes.to_string()),
                Cell::Text(Role::Plain, (*name).to_owned()),
            ]
        })
        .collect();
    page.table(&COLUMNS, &rows);
    by_class(page, report, "Allocated by class at the peak", &report.peak);
    by_class(page, report, "Allocated by class at the end", &report.end);
}

/// The ledger shows its own moment already.
fn by_class(page: &mut Page, report: &Report, title: &str, moment: &Moment) {
    if moment.by_class.is_empty() || moment.by_class == sentences::ledger_moment(report).by_class {
        return;
    }
    page.heading(title);
    let row = |&(class, bytes): &(Class, gpuheap_record::Bytes)| {
        vec![
            Cell::Number(bytes.to_string()),
            Cell::Number(text::share(bytes, moment.allocated_bytes)),
            Cell::Text(Role::Class(class), class.title().to_owned()),
        ]
    };
    let rows: Vec<Vec<Cell>> = moment.by_class.iter().map(row).collect();
    page.table(&[Column::new(""), Column::new(""), Column::new("")], &rows);
}
