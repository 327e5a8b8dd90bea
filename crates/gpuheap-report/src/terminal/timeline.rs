//! Allocated and reserved memory over the recording, drawn with characters.

use gpuheap_explain::{Report, TimelinePoint};
use gpuheap_record::Bytes;

use super::Style;
use super::charts::{block, runs, scaled, spread};
use super::page::{Line, Page};
use super::palette::Role;
use crate::text;

/// Rows of the drawing on the first screen: at least, at most.
const ROWS: (usize, usize) = (3, 6);
/// Rows of the drawing where everything is shown.
const ROWS_IN_DETAIL: usize = 10;
/// Lines that are not rows: a gap, the heading, the axis, and a gap after it.
const AROUND: usize = 4;
/// Columns of the labels of the axis.
const LABEL: usize = 8;

/// The characters of a drawing.
struct Ink {
    full: char,
    reserved: char,
    axis: char,
    corner: char,
    floor: char,
    peak: char,
    oom: char,
}

const UNICODE: Ink =
    Ink { full: '█', reserved: '░', axis: '│', corner: '└', floor: '─', peak: '▲', oom: '×' };
const ASCII: Ink = Ink { full: '#', reserved: ':', axis: '|', corner: '+', floor: '-', peak: '^', oom: 'x' };

pub(super) fn show(page: &mut Page, report: &Report, lines: usize) {
    let points = &report.timeline;
    let most = points.iter().map(|point| point.reserved_bytes.max(point.allocated_bytes)).max().unwrap_or_default();
    if most == Bytes::ZERO {
        return;
    }
    let ink = if page.style().unicode { UNICODE } else { ASCII };
    let rows = if page.details() { ROWS_IN_DETAIL } else { lines.saturating_sub(AROUND).clamp(ROWS.0, ROWS.1) };
    let columns = page.width().saturating_sub(LABEL + 3).min(120);
    let levels: Vec<Levels> =
        spread(points.len(), columns).map(|range| Levels::of(&points[range], most, rows * 8)).collect();

    title(page, report, &ink);
    for row in (0..rows).rev() {
        let label = if row + 1 == rows { most.to_string() } else { String::new() };
        let mut line = Line::of(Role::Plain, &format!("{label:>LABEL$} {}", ink.axis));
        for (role, cells) in runs(levels.iter().map(|levels| levels.cell(row, &ink, page.style().unicode))) {
            line.push(role, &cells);
        }
        page.line(line);
    }
    axis(page, report, &ink, columns);
    page.gap();
}

/// The drawing alone, without colours, for other forms of the report.
pub(super) fn drawing(report: &Report, style: Style) -> String {
    let mut page = Page::new(style);
    show(&mut page, report, ROWS.1 + AROUND);
    page.finish()
}

/// What is drawn, over how long, and the legend.
fn title(page: &mut Page, report: &Report, ink: &Ink) {
    page.gap();
    let source = &report.source;
    let mut over = text::counted(source.device_events, "event", "events");
    if source.duration_us > 0 {
        over = format!("{over}, {}", text::duration(source.duration_us));
    }
    let line = Line::of(Role::Heading, &format!("Memory over {over}"));
    let legend = Line::of(Role::Allocated, &ink.full.to_string())
        .with(Role::Plain, " allocated  ")
        .with(Role::Reserved, &ink.reserved.to_string())
        .with(Role::Plain, " reserved");
    if line.width() + legend.width() + 4 <= page.width() {
        page.line(line.with(Role::Plain, "    ").and(legend));
    } else {
        page.line(line);
        page.line(Line::of(Role::Plain, "  ").and(legend));
    }
}

/// The lower edge, with the moments that count.
fn axis(page: &mut Page, report: &Report, ink: &Ink, columns: usize) {
    let mut cells: Vec<(Role, char)> = vec![(Role::Plain, ink.floor); columns];
    let mut mark = |event: Option<u64>, role: Role, sign: char, name: &str| {
        let Some(at) = event.and_then(|event| column(&report.timeline, event, columns)) else { return };
        if cells.get(at).is_none_or(|cell| cell.1 != ink.floor) {
            return;
        }
        let name = format!(" {name} ");
        // The name goes to the right of its sign, or to the left where the edge is near.
        let right = at + 1..at + 1 + name.len();
        let left = at.saturating_sub(name.len())..at;
        let free = |range: &std::ops::Range<usize>| {
            range.len() == name.len()
                && cells.get(range.clone()).is_some_and(|cells| cells.iter().all(|cell| cell.1 == ink.floor))
        };
        if let Some(range) = [right, left].into_iter().find(free) {
            for (cell, letter) in cells[range].iter_mut().zip(name.chars()) {
                *cell = (Role::Plain, letter);
            }
        }
        cells[at] = (role, sign);
    };
    let oom = report.oom.as_ref().map(|oom| &oom.moment);
    mark(oom.and_then(|moment| moment.event), Role::Alarm, ink.oom, "allocation failed");
    mark(report.peak.event, Role::Strong, ink.peak, &format!("peak {}", report.peak.allocated_bytes));
    let mut line = Line::of(Role::Plain, &format!("{:>LABEL$} {}", Bytes::ZERO.to_string(), ink.corner));
    for (role, text) in runs(cells.into_iter()) {
        line.push(role, &text);
    }
    page.line(line);
}

/// The column in which `event` lies.
fn column(points: &[TimelinePoint], event: u64, columns: usize) -> Option<usize> {
    let point = points.partition_point(|point| point.event < event).min(points.len().checked_sub(1)?);
    spread(points.len(), columns).position(|range| range.end > point)
}

/// How far a column of the drawing is filled, in eighths of a row.
struct Levels {
    allocated: usize,
    reserved: usize,
}

impl Levels {
    fn of(points: &[TimelinePoint], most: Bytes, eighths: usize) -> Self {
        let level = |bytes: Option<Bytes>| scaled(bytes.unwrap_or_default(), most, eighths);
        Self {
            allocated: level(points.iter().map(|point| point.allocated_bytes).max()),
            reserved: level(points.iter().map(|point| point.reserved_bytes).max()),
        }
    }

    fn cell(&self, row: usize, ink: &Ink, unicode: bool) -> (Role, char) {
        let within = |level: usize| level.saturating_sub(row * 8).min(8);
        let (allocated, reserved) = (within(self.allocated), within(self.reserved));
        match allocated {
            8 => (Role::Allocated, ink.full),
            1.. if unicode => (Role::Allocated, block(allocated)),
            4.. => (Role::Allocated, ink.full),
            // The lowest row shows that there is something, however little.
            1.. if row == 0 => (Role::Allocated, ink.full),
            _ if reserved >= 4 || (row == 0 && reserved > 0) => (Role::Reserved, ink.reserved),
            _ => (Role::Plain, ' '),
        }
    }
}
