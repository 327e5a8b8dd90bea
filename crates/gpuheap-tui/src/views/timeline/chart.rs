//! The chart: classes stacked, reserved memory and the limit as lines, marks below.

use gpuheap_explain::{Class, MomentName};
use gpuheap_record::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use super::series::Column;
use super::{LABELS, Layout, State};
use crate::app::App;
use crate::data;
use crate::screen::paint;
use crate::text;
use crate::theme::{eighth, letter, scaled};

/// Steps are marked if they are at least this many columns apart.
const LEAST_STEP: usize = 3;

pub(super) fn draw(app: &App, buffer: &mut Buffer, layout: &Layout, width: u16) {
    let state = &app.timeline;
    let Some(series) = &state.series else { return };
    let columns = series.columns(state.window, width);
    let reserved = series.most();
    // A limit far above everything would leave nothing to be seen.
    let limit = app.data.limit.filter(|&limit| limit / 2 <= reserved && reserved > 0);
    let scale = Scale { most: reserved.max(limit.unwrap_or(0)).max(1), rows: layout.chart.height };
    title(app, buffer, layout.title, limit);
    labels(app, buffer, layout.chart, scale);
    let cursor = column_of(&columns, state.cursor);
    for (x, column) in (0..).zip(&columns) {
        let cells = Cells { app, scale, limit, column, is_cursor: cursor == Some(x) };
        for row in 0..scale.rows {
            let (sign, style) = cells.cell(row);
            let at = (layout.chart.x + LABELS + x, layout.chart.bottom() - 1 - row);
            if let Some(cell) = buffer.cell_mut(at) {
                cell.set_char(sign).set_style(style);
            }
        }
    }
    marks(app, buffer, layout.marks, &columns);
}

/// The column that stands for a tick.
fn column_of(columns: &[Column], tick: u32) -> Option<u16> {
    let after = columns.partition_point(|column| column.start <= tick);
    u16::try_from(after.checked_sub(1)?).ok()
}

#[derive(Clone, Copy)]
struct Scale {
    most: u64,
    rows: u16,
}

impl Scale {
    /// How high bytes reach, in eighths of a row.
    fn eighths(self, bytes: u64) -> usize {
        scaled(bytes, self.most, usize::from(self.rows) * 8)
    }

    /// The row in which a line at so many bytes lies.
    fn row(self, bytes: u64) -> u16 {
        u16::try_from(self.eighths(bytes).saturating_sub(1) / 8).unwrap_or(0)
    }
}

/// One column on its way to the screen.
struct Cells<'a> {
    app: &'a App,
    scale: Scale,
    limit: Option<u64>,
    column: &'a Column,
    is_cursor: bool,
}

impl Cells<'_> {
    fn cell(&self, row: u16) -> (char, Style) {
        let theme = self.app.theme;
        let (sign, style) = match self.memory(row) {
            Some(look) => look,
            None if self.column.reserved > 0 && self.scale.row(self.column.reserved) == row => ('─', theme.reserved()),
            None if self.limit.is_some_and(|limit| self.scale.row(limit) == row) => ('┈', theme.alarm()),
            None => (' ', Style::new()),
        };
        match self.is_cursor {
            true if sign == ' ' => ('│', theme.strong()),
            true => (sign, style.add_modifier(Modifier::REVERSED)),
            false => (sign, style),
        }
    }

    /// What allocated memory fills of a row.
    fn memory(&self, row: u16) -> Option<(char, Style)> {
        let allocated = self.column.classes.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let filled = self.scale.eighths(allocated).saturating_sub(usize::from(row) * 8);
        let theme = self.app.theme;
        if filled == 0 {
            return None;
        }
        // The class in the middle of what is filled.
        let edge = |row: u16| u128::from(row) * u128::from(self.scale.most) / u128::from(self.scale.rows);
        let middle = u128::midpoint(edge(row), edge(row + 1).min(allocated.into()));
        let class = self.class_at(u64::try_from(middle).unwrap_or(u64::MAX).min(allocated.saturating_sub(1)));
        // Without colours a letter says more than a height, and ASCII has none.
        let is_full = filled >= 8 || (row == 0 && !theme.color) || (filled >= 4 && !theme.unicode);
        match (is_full, theme.unicode) {
            (true, _) => Some((letter(class), theme.fill(class))),
            (false, true) => Some((eighth(filled), theme.class(class))),
            (false, false) => None,
        }
    }

    /// The class of a byte of the stack.
    fn class_at(&self, byte: u64) -> Class {
        let mut below = 0_u64;
        for (class, bytes) in Class::ALL.into_iter().zip(&self.column.classes) {
            below = below.saturating_add(*bytes);
            if byte < below {
                return class;
            }
        }
        Class::Unknown
    }
}

fn title(app: &App, buffer: &mut Buffer, area: Rect, limit: Option<u64>) {
    let theme = app.theme;
    let window = app.timeline.window;
    let all = window.ticks() > app.data.last;
    let over = if all {
        let events = text::counted(app.data.last.into(), "event");
        match app.data.since_start(app.data.last).filter(|&time| time > 0) {
            Some(time) => format!("Memory over {events}, {}", text::duration(time)),
            None => format!("Memory over {events}"),
        }
    } else {
        let event = |tick: u32| text::count(tick.saturating_sub(1).into());
        match window.from {
            0 => format!("Memory, start to event {}", event(window.to)),
            from => format!("Memory, after events {} to {}", event(from), event(window.to)),
        }
    };
    let mut legend = vec![Span::styled("─", theme.reserved()), Span::raw(" reserved")];
    match (limit, app.data.limit) {
        (Some(limit), _) => {
            legend.push(Span::styled("  ┈", theme.alarm()));
            legend.push(Span::raw(format!(" limit {}", Bytes::new(limit))));
        }
        (None, Some(limit)) => legend.push(Span::raw(format!("  limit {}, far above", Bytes::new(limit)))),
        _ => {}
    }
    let legend = Line::from(legend).right_aligned();
    let over = Line::styled(over, theme.strong());
    let fits = over.width() + legend.width() + 2 <= usize::from(area.width);
    paint(buffer, area, [over]);
    if fits {
        ratatui::widgets::Widget::render(legend, area, buffer);
    }
}

fn labels(app: &App, buffer: &mut Buffer, area: Rect, scale: Scale) {
    let room = usize::from(LABELS) - 2;
    let middle = scale.rows / 2;
    for row in 0..scale.rows {
        let part = u64::try_from(u128::from(scale.most) * u128::from(row + 1) / u128::from(scale.rows)).unwrap_or(0);
        let label = match row {
            _ if row + 1 == scale.rows => Bytes::new(scale.most).to_string(),
            _ if row + 1 == middle && scale.rows >= 8 => Bytes::new(part).to_string(),
            _ => String::new(),
        };
        let y = area.bottom() - 1 - row;
        buffer.set_stringn(area.x, y, format!("{label:>room$} │"), area.width.into(), app.theme.faint());
    }
}

/// The axis with the ends of steps, and the moments below it.
fn marks(app: &App, buffer: &mut Buffer, area: Rect, columns: &[Column]) {
    let State { window, cursor, .. } = app.timeline;
    let theme = app.theme;
    let mut axis = vec!['─'; columns.len()];
    let steps = &app.data.steps;
    let within = steps.partition_point(|&step| step < window.from)..steps.partition_point(|&step| step <= window.to);
    if within.len() * LEAST_STEP <= columns.len() {
        for &step in &steps[within] {
            if let Some(sign) = column_of(columns, step).and_then(|column| axis.get_mut(usize::from(column))) {
                *sign = '┴';
            }
        }
    }
    let room = usize::from(LABELS) - 2;
    let axis: String = axis.into_iter().collect();
    let mut names = Names { cells: vec![None; columns.len()] };
    names.set(column_of(columns, cursor), '▲', theme.strong(), "");
    for (name, sign, style) in [
        (MomentName::Oom, '×', theme.alarm()),
        (MomentName::Peak, '•', theme.strong()),
        (MomentName::PeakReserved, '•', theme.reserved()),
    ] {
        if let Some(tick) = app.data.tick_of(name).filter(|&tick| window.contains(tick)) {
            names.set(column_of(columns, tick), sign, style, data::title(name));
        }
    }
    if window.contains(app.moment) && app.data.name_of(app.moment).is_none() {
        names.set(column_of(columns, app.moment), '◆', theme.strong(), "chosen");
    }
    paint(buffer, area, [Line::styled(format!("{:>room$} └{axis}", "0 B"), theme.faint())]);
    for (x, cell) in (area.x + LABELS..).zip(names.cells) {
        if let (Some((sign, style)), Some(cell)) = (cell, buffer.cell_mut((x, area.y + 1)).filter(|_| area.height > 1))
        {
            cell.set_char(sign).set_style(style);
        }
    }
}

/// Signs with names beside them, each where there is room.
struct Names {
    cells: Vec<Option<(char, Style)>>,
}

impl Names {
    fn set(&mut self, column: Option<u16>, sign: char, style: Style, name: &str) {
        let Some(at) = column.map(usize::from).filter(|&at| at < self.cells.len()) else { return };
        if self.cells[at].is_none() {
            self.cells[at] = Some((sign, style));
        }
        if name.is_empty() {
            return;
        }
        let needed = name.chars().count() + 2;
        let right = at + 1..at + 1 + needed;
        let left = at.saturating_sub(needed)..at;
        let free = |range: &std::ops::Range<usize>| {
            range.len() == needed
                && self.cells.get(range.clone()).is_some_and(|cells| cells.iter().all(Option::is_none))
        };
        if let Some(range) = [right, left].into_iter().find(free) {
            let letters = std::iter::once(' ').chain(name.chars()).chain([' ']);
            for (cell, letter) in self.cells[range].iter_mut().zip(letters) {
                *cell = Some((letter, Style::new()));
            }
        }
    }
}
