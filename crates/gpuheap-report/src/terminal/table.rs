//! Tables: numbers to the right, one column takes what is left.

use gpuheap_explain::Site;

use super::page::{Line, Page};
use super::palette::Role;
use crate::text;

/// What stands in a cell.
#[derive(Debug)]
pub(super) enum Cell {
    /// Words.
    Text(Role, String),
    /// A figure, to the right.
    Number(String),
    /// A place in the program.
    Site(Site),
    /// A place in the program, and its line before if that was another.
    Moved(Site, Option<u32>),
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// The column is left out on pages narrower than this.
    pub(super) from_width: usize,
    /// Words that are too long for the column go on in the next line; else they are cut.
    pub(super) wraps: bool,
}

impl Column {
    pub(super) const fn new(title: &'static str) -> Self {
        Self { title, from_width: 0, wraps: false }
    }

    pub(super) const fn wrapping(title: &'static str) -> Self {
        Self { title, from_width: 0, wraps: true }
    }

    pub(super) const fn from(title: &'static str, from_width: usize) -> Self {
        Self { title, from_width, wraps: false }
    }
}

/// What of a cell goes on below it.
struct Overflow {
    start: usize,
    role: Role,
    parts: Vec<String>,
}

impl Page {
    /// A table. The last column takes the room that the others leave; each row has a cell for every column.
    pub(super) fn table(&mut self, columns: &[Column], rows: &[Vec<Cell>]) {
        let shown: Vec<usize> = (0..columns.len()).filter(|&at| columns[at].from_width <= self.width()).collect();
        let Some((&last, fixed)) = shown.split_last() else { return };
        let widths: Vec<usize> = fixed
            .iter()
            .map(|&at| {
                let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| self.natural(cell));
                cells.chain([text::width(columns[at].title)]).max().unwrap_or(0)
            })
            .collect();
        let used: usize = widths.iter().map(|width| width + 2).sum::<usize>() + 2;
        let room = self.width().saturating_sub(used);
        if columns.iter().any(|column| !column.title.is_empty()) {
            let mut head = Line::of(Role::Plain, "  ");
            for (&at, &width) in fixed.iter().zip(&widths) {
                let number = rows.iter().filter_map(|row| row.get(at)).any(|cell| matches!(cell, Cell::Number(_)));
                let title = columns[at].title;
                let title = if number { format!("{title:>width$}  ") } else { format!("{title:<width$}  ") };
                head.push(Role::Faint, &title);
            }
            self.line(head.with(Role::Faint, columns[last].title));
        }
        for row in rows {
            let mut more: Vec<Overflow> = Vec::new();
            let mut line = Line::of(Role::Plain, "  ");
            for (&at, &width) in fixed.iter().zip(&widths) {
                let start = line.width();
                match row.get(at) {
                    Some(Cell::Text(role, text)) if columns[at].wraps => {
                        let mut parts = text::wrap(&self.folded(text), width, width).into_iter();
                        let first = parts.next().unwrap_or_default();
                        self.cell(&mut line, &Cell::Text(*role, first), width);
                        more.push(Overflow { start, role: *role, parts: parts.collect() });
                    }
                    Some(cell) => self.cell(&mut line, cell, width),
                    None => continue,
                }
                line.push(Role::Plain, "  ");
            }
            match row.get(last) {
                Some(Cell::Text(role, text)) => {
                    let start = line.width();
                    let mut parts = text::wrap(&self.folded(text), room, room).into_iter();
                    self.line(line.with(*role, &parts.next().unwrap_or_default()));
                    more.push(Overflow { start, role: *role, parts: parts.collect() });
                }
                Some(cell) => {
                    self.cell(&mut line, cell, room);
                    self.line(line);
                }
                None => self.line(line),
            }
            self.rest(&more);
        }
    }

    /// What did not fit into the first line of a row, each column below its own.
    fn rest(&mut self, columns: &[Overflow]) {
        let lines = columns.iter().map(|column| column.parts.len()).max().unwrap_or(0);
        for number in 0..lines {
            let mut line = Line::new();
            for column in columns {
                let Some(part) = column.parts.get(number) else { continue };
                let gap = " ".repeat(column.start.saturating_sub(line.width()));
                line = line.with(Role::Plain, &gap).with(column.role, part);
            }
            self.line(line);
        }
    }

    fn natural(&self, cell: &Cell) -> usize {
        match cell {
            Cell::Text(_, text) => text::width(&self.folded(text)).min(28),
            Cell::Number(number) => text::width(&self.folded(number)),
            Cell::Site(site) | Cell::Moved(site, _) => text::width(&self.folded(&text::site(site, 40))),
        }
    }

    fn cell(&self, line: &mut Line, cell: &Cell, room: usize) {
        let (role, shown) = match cell {
            Cell::Text(role, text) => (*role, self.cut(text, room)),
            Cell::Number(number) => (Role::Plain, self.folded(number)),
            Cell::Site(site) => (Role::Code, self.site(site, room)),
            Cell::Moved(site, from) => (Role::Code, self.fitted(room, |room| text::moved_site(site, *from, room))),
        };
        let padding = " ".repeat(room.saturating_sub(text::width(&shown)));
        if matches!(cell, Cell::Number(_)) {
            line.push(Role::Plain, &padding);
            line.push(role, &shown);
        } else {
            line.push(role, &shown);
            line.push(Role::Plain, &padding);
        }
    }

    /// `text` in at most `room` columns.
    pub(super) fn cut(&self, text: &str, room: usize) -> String {
        self.fitted(room, |room| text::cut_end(&self.folded(text), room))
    }

    /// The place in at most `room` columns.
    pub(super) fn site(&self, site: &Site, room: usize) -> String {
        self.fitted(room, |room| text::site(site, room))
    }

    /// ASCII needs more columns for some characters: tries with less room until the text fits.
    fn fitted(&self, room: usize, text_for: impl Fn(usize) -> String) -> String {
        let text = self.folded(&text_for(room));
        let over = text::width(&text).saturating_sub(room);
        if over == 0 { text } else { self.folded(&text_for(room.saturating_sub(over))) }
    }
}
