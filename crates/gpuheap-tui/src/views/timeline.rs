//! Memory through time, stacked by class, and the figures of the moment under the cursor.

mod chart;
mod figures;
mod series;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::App;
use crate::key::Key;
use crate::screen::rows;
use series::{Series, Window};

pub(crate) use series::classes_at;

/// Columns of the labels of the axis, the axis included.
const LABELS: u16 = 10;
/// The least number of ticks that are shown.
const LEAST: u32 = 16;

/// What is shown, and where the cursor is.
#[derive(Debug)]
pub(crate) struct State {
    window: Window,
    last: u32,
    cursor: u32,
    series: Option<Series>,
    /// Bytes by class under the cursor.
    here: Option<(u32, Vec<u64>)>,
}

impl State {
    /// The whole recording.
    pub(crate) fn new(cursor: u32, last: u32) -> Self {
        Self { window: Window { from: 0, to: last }, last, cursor: cursor.min(last), series: None, here: None }
    }

    /// Moves the cursor to a tick, and the window with it.
    pub(crate) fn go_to(&mut self, tick: u32) {
        self.cursor = tick.min(self.last);
        if !self.window.contains(self.cursor) {
            self.show(self.window.ticks(), self.cursor.saturating_sub(self.window.ticks() / 2));
        }
    }

    /// Shows so many ticks from one on, as far as there are as many.
    fn show(&mut self, ticks: u32, from: u32) {
        let ticks = ticks.clamp(1, self.last.saturating_add(1).max(1));
        let from = from.min(self.last - (ticks - 1));
        self.window = Window { from, to: from + (ticks - 1) };
    }

    /// Shows half or twice as much; the cursor stays where it is on the screen.
    fn zoom(&mut self, inwards: bool) {
        let ticks = self.window.ticks();
        let zoomed = if inwards { (ticks / 2).max(LEAST) } else { ticks.saturating_mul(2) };
        if inwards && zoomed >= ticks {
            return;
        }
        let before = u64::from(self.cursor.saturating_sub(self.window.from));
        let before = u32::try_from(before * u64::from(zoomed) / u64::from(ticks)).unwrap_or(u32::MAX);
        self.show(zoomed, self.cursor.saturating_sub(before));
        self.go_to(self.cursor);
    }

    /// Moves the cursor by columns, or by ticks where each has a column of its own.
    fn shift(&mut self, columns: i64, width: u16) {
        let ticks = self.window.ticks();
        let shown = self.series.as_ref().map(|series| series.columns(self.window, width)).unwrap_or_default();
        let by_column = ticks > u32::from(width).max(1);
        let target = by_column.then(|| {
            let at = i64::try_from(shown.iter().rposition(|column| column.start <= self.cursor)?).ok()?;
            let next = usize::try_from(at + columns).ok()?;
            shown.get(next).map(|column| column.tick)
        });
        let stride = if by_column { i64::from(ticks / u32::from(width).max(1)) } else { 1 };
        let stepped = (i64::from(self.cursor) + columns * stride).clamp(0, i64::from(self.last));
        let tick = target.flatten().unwrap_or_else(|| u32::try_from(stepped).unwrap_or(0));
        self.cursor = tick;
        if !self.window.contains(tick) {
            // Half a window on, so that one sees where one comes from.
            self.show(ticks, tick.saturating_sub(ticks / 2));
        }
    }
}

/// The parts of the view.
struct Layout {
    title: Rect,
    /// The chart with the labels at its left.
    chart: Rect,
    /// The axis and the marks below it.
    marks: Rect,
    figures: Rect,
}

fn layout(body: Rect) -> Layout {
    let figures = match body.height {
        0..10 => 2,
        10..16 => 4,
        16..30 => 6,
        _ => 8,
    };
    let chart = body.height.saturating_sub(1 + 2 + figures).max(1);
    Layout {
        title: rows(body, 0, 1),
        chart: rows(body, 1, chart),
        marks: rows(body, 1 + chart, 2),
        figures: rows(body, 3 + chart, figures),
    }
}

/// Columns of the chart itself.
fn columns(body: Rect) -> u16 {
    body.width.saturating_sub(LABELS + 1).max(1)
}

pub(crate) fn update(app: &mut App, key: Key) -> bool {
    let width = columns(app.body());
    let page = i64::from(width / 5).max(2);
    if let Some(tick) = app.jump(key, app.timeline.cursor) {
        app.timeline.go_to(tick);
        return true;
    }
    let state = &mut app.timeline;
    match key {
        Key::Left => state.shift(-1, width),
        Key::Right => state.shift(1, width),
        Key::PageUp => state.shift(-page, width),
        Key::PageDown => state.shift(page, width),
        Key::Home => state.go_to(0),
        Key::End => state.go_to(u32::MAX),
        Key::Char('+' | '=') | Key::Up => state.zoom(true),
        Key::Char('-' | '_') | Key::Down => state.zoom(false),
        Key::Char('0') => state.window = Window { from: 0, to: state.last },
        Key::Enter => app.choose(app.timeline.cursor),
        Key::Esc if state.window.ticks() <= state.last => state.window = Window { from: 0, to: state.last },
        // Names a moment that this recording does not have.
        Key::Char('p' | 'r' | 'o' | 'e' | 'n' | 'N') => app.message = app.no_moment(key),
        _ => return false,
    }
    true
}

pub(crate) fn prepare(app: &mut App) {
    let width = columns(app.body());
    let (state, analysis) = (&mut app.timeline, app.data.analysis());
    if state.series.as_ref().is_none_or(|series| !series.is_for(state.window, width)) {
        state.series = Some(Series::of(analysis, state.window, width));
    }
    if state.here.as_ref().is_none_or(|&(tick, _)| tick != state.cursor) {
        state.here = Some((state.cursor, series::classes_at(analysis, state.cursor)));
    }
}

pub(crate) fn draw(app: &App, buffer: &mut Buffer, body: Rect) {
    let layout = layout(body);
    chart::draw(app, buffer, &layout, columns(body));
    figures::draw(app, buffer, layout.figures);
}
