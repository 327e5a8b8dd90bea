//! Time against memory, drawn with characters: the fastest plan for every budget.

use gpuheap_fit::Fit;
use gpuheap_record::Bytes;

use super::charts::runs;
use super::page::{Line, Page};
use super::palette::Role;
use super::table::{Cell, Column};
use crate::sentences::fit as say;
use crate::text;

const ROWS: usize = 8;
/// Columns of the labels of the axis.
const LABEL: usize = 9;
/// Columns of the drawing, at most.
const COLUMNS: usize = 72;
/// Plans that are listed, at most.
const LISTED: usize = 12;
const TABLE: [Column; 3] = [Column::new("budget"), Column::new("step"), Column::new("changes")];

/// The characters of a drawing.
struct Ink {
    point: char,
    plan: char,
    level: char,
    budget: char,
    axis: char,
    corner: char,
    floor: char,
}

const UNICODE: Ink =
    Ink { point: '●', plan: '◆', level: '╌', budget: '┊', axis: '│', corner: '└', floor: '─' };
const ASCII: Ink = Ink { point: 'o', plan: '#', level: '.', budget: ':', axis: '|', corner: '+', floor: '-' };

pub(super) fn show(page: &mut Page, fit: &Fit) {
    if fit.front.is_empty() {
        return;
    }
    page.heading("Time of a step by budget");
    if fit.front.len() > 1 {
        drawing(page, fit);
        page.gap();
    }
    let shown = spread(fit.front.len());
    let rows: Vec<Vec<Cell>> = shown
        .iter()
        .map(|&at| &fit.front[at])
        .map(|point| {
            vec![
                Cell::Number(Bytes::new(point.budget_bytes).to_string()),
                Cell::Number(say::step(point.step_us)),
                Cell::Text(Role::Faint, say::changes(&point.plan)),
            ]
        })
        .collect();
    page.table(&TABLE, &rows);
    if shown.len() < fit.front.len() {
        let more = format!("{} of {} plans; `--json` has all", shown.len(), fit.front.len());
        page.paragraph("  ", 2, Role::Faint, &more);
    }
    if let Some(smallest) = say::smallest(fit) {
        page.paragraph("  ", 2, Role::Faint, &smallest);
    }
}

/// Which of so many plans are listed: the first, the last, and others at even distances.
fn spread(count: usize) -> Vec<usize> {
    if count <= LISTED {
        return (0..count).collect();
    }
    (0..LISTED).map(|row| row * (count - 1) / (LISTED - 1)).collect()
}

fn drawing(page: &mut Page, fit: &Fit) {
    let ink = if page.style().unicode { UNICODE } else { ASCII };
    let columns = page.width().saturating_sub(LABEL + 4).min(COLUMNS);
    let frame = Frame::of(fit, columns);
    let mut cells = vec![vec![(Role::Plain, ' '); columns]; ROWS];
    if let Some(column) = frame.column(fit.budget_bytes) {
        for row in &mut cells {
            row[column] = (Role::Alarm, ink.budget);
        }
    }
    // Between two points the one with less memory is the fastest; left of the first there is none.
    let mut points: Vec<(usize, usize)> = fit
        .front
        .iter()
        .filter_map(|point| Some((frame.column(point.budget_bytes)?, frame.row(point.step_us))))
        .collect();
    points.sort_unstable();
    for (number, &(column, row)) in points.iter().enumerate() {
        let end = points.get(number + 1).map_or(columns, |&(next, _)| next);
        for cell in &mut cells[row][column..end.max(column)] {
            if cell.1 == ' ' {
                *cell = (Role::Faint, ink.level);
            }
        }
    }
    for &(column, row) in &points {
        cells[row][column] = (Role::Reserved, ink.point);
    }
    let plan = frame.column(fit.peak.high).map(|column| (column, frame.row(fit.step_us)));
    if let Some((column, row)) = plan {
        cells[row][column] = (Role::Strong, ink.plan);
    }
    for (row, cells) in cells.into_iter().enumerate() {
        let label = match row {
            0 => say::step(frame.slowest),
            row if row + 1 == ROWS => say::step(frame.fastest),
            _ => String::new(),
        };
        let mut line = Line::of(Role::Plain, &format!("{:>LABEL$} {}", page.folded(&label), ink.axis));
        for (role, text) in runs(cells.into_iter()) {
            line.push(role, &text);
        }
        page.line(line);
    }
    let floor = ink.floor.to_string().repeat(columns);
    page.line(Line::of(Role::Plain, &format!("{:LABEL$} {}{floor}", "", ink.corner)));
    let (least, most) = (Bytes::new(frame.least).to_string(), Bytes::new(frame.most).to_string());
    let gap = columns.saturating_sub(text::width(&least) + text::width(&most));
    page.line(Line::of(Role::Plain, &format!("{:LABEL$}  {least}{}{most}", "", " ".repeat(gap))));
    let mut legend = Line::of(Role::Plain, &" ".repeat(LABEL + 2)).with(Role::Reserved, &ink.point.to_string());
    legend.push(Role::Plain, " fastest plan");
    if plan.is_some() {
        let name = if fit.plan.is_empty() { " as it is" } else { " this plan" };
        legend = legend.with(Role::Plain, "  ").with(Role::Strong, &ink.plan.to_string()).with(Role::Plain, name);
    }
    if frame.column(fit.budget_bytes).is_some() {
        legend = legend.with(Role::Plain, "  ").with(Role::Alarm, &ink.budget.to_string()).with(Role::Plain, " budget");
    }
    page.line(legend);
}

/// What of memory and time is drawn where.
struct Frame {
    least: u64,
    most: u64,
    fastest: f64,
    slowest: f64,
    columns: usize,
}

impl Frame {
    fn of(fit: &Fit, columns: usize) -> Self {
        let budgets = || fit.front.iter().map(|point| point.budget_bytes);
        let times = || fit.front.iter().map(|point| point.step_us);
        Self {
            least: budgets().min().unwrap_or(0),
            most: budgets().max().unwrap_or(0),
            fastest: times().fold(f64::INFINITY, f64::min),
            slowest: times().fold(0.0, f64::max),
            columns,
        }
    }

    /// The column of an amount of memory; none beyond the front.
    fn column(&self, bytes: u64) -> Option<usize> {
        if !(self.least..=self.most).contains(&bytes) {
            return None;
        }
        let part = Bytes::new(bytes - self.least).share_of(Bytes::new(self.most - self.least));
        Some(place(part, self.columns))
    }

    /// The row of a time: the slowest at the top.
    fn row(&self, step_us: f64) -> usize {
        let range = self.slowest - self.fastest;
        let part = if range > 0.0 { (self.slowest - step_us) / range } else { 1.0 };
        place(part, ROWS)
    }
}

/// Which of `count` places a part of the whole falls into.
fn place(part: f64, count: usize) -> usize {
    let last = count.saturating_sub(1);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and `last`")]
    let place = (part.clamp(0.0, 1.0) * last as f64).round() as usize;
    place.min(last)
}
