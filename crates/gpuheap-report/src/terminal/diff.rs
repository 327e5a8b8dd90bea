//! What changed between two recordings: sums, classes, places.

use gpuheap_explain::{ClassChange, Diff, Side, SiteChange};
use gpuheap_record::Bytes;

use super::Style;
use super::page::Page;
use super::palette::Role;
use super::table::{Cell, Column};
use crate::sentences::diff as say;
use crate::text;

pub(crate) fn render(diff: &Diff, style: Style) -> String {
    let mut page = Page::new(style);
    page.paragraph("", 2, Role::Strong, &say::headline(diff));
    page.gap();
    side(&mut page, "Before", &diff.before);
    side(&mut page, "After", &diff.after);
    sums(&mut page, diff);
    classes(&mut page, &diff.classes);
    page.heading("By line at the peak of allocated memory");
    places(&mut page, &diff.sites, &[Column::from("class", 100), Column::new("line")]);
    if !diff.growth.is_empty() {
        page.heading("Leaked each step, by line");
        // Growth has no class of its own.
        places(&mut page, &diff.growth, &[Column::from("", usize::MAX), Column::new("line")]);
    }
    page.finish()
}

fn side(page: &mut Page, label: &str, side: &Side) {
    page.field(label, Role::Plain, &say::side(side));
    let (name, headline) = text::headline(side.verdict.kind, &side.verdict.headline);
    page.field("", Role::Plain, &format!("{name}: {headline}"));
}

/// Before, after and the change, as cells.
fn figures(before: Bytes, after: Bytes) -> Vec<Cell> {
    vec![
        Cell::Number(before.to_string()),
        Cell::Number(after.to_string()),
        Cell::Number(say::signed(before, after)),
        Cell::Number(say::relative(before, after)),
    ]
}

const FIGURES: [Column; 4] =
    [Column::from("before", 60), Column::new("after"), Column::new("change"), Column::from("", 60)];

fn columns(more: &[Column]) -> Vec<Column> {
    FIGURES.iter().chain(more).copied().collect()
}

fn sums(page: &mut Page, diff: &Diff) {
    page.heading("In all");
    let row = |(name, before, after): (&str, Bytes, Bytes)| {
        let mut cells = figures(before, after);
        cells.push(Cell::Text(Role::Plain, name.to_owned()));
        cells
    };
    let rows: Vec<Vec<Cell>> = say::sums(diff).into_iter().map(row).collect();
    page.table(&columns(&[Column::new("")]), &rows);
}

fn classes(page: &mut Page, classes: &[ClassChange]) {
    if classes.is_empty() {
        return;
    }
    page.heading("By class at the peak of allocated memory");
    let row = |row: &ClassChange| {
        let mut cells = figures(row.before_bytes, row.after_bytes);
        cells.push(Cell::Text(Role::Class(row.class), row.class.title().to_owned()));
        cells
    };
    let rows: Vec<Vec<Cell>> = classes.iter().map(row).collect();
    page.table(&columns(&[Column::new("class")]), &rows);
}

fn places(page: &mut Page, places: &[SiteChange], more: &[Column; 2]) {
    let (shown, others) = say::places(places, page.details());
    if shown.is_empty() {
        return page.paragraph("  ", 2, Role::Plain, say::NO_PLACE_CHANGED);
    }
    let row = |row: &SiteChange| {
        let mut cells = figures(row.before_bytes, row.after_bytes);
        cells.push(Cell::Text(Role::Class(row.class), row.class.title().to_owned()));
        cells.push(match say::place(row) {
            Some((site, from)) => Cell::Moved(site.clone(), from),
            None => Cell::Text(Role::Plain, row.label.clone()),
        });
        cells
    };
    let rows: Vec<Vec<Cell>> = shown.iter().map(row).collect();
    page.table(&columns(more), &rows);
    if others > 0 {
        page.paragraph("  ", 2, Role::Faint, &format!("{}, with `--details`", say::others(others)));
    }
}
