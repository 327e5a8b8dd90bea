//! The frame around the views: tabs, the chosen moment, the keys.

use gpuheap_record::Bytes;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use crate::app::{App, View};
use crate::views::{findings, map, sites, timeline};
use crate::{help, text, theme};

/// Below this, nothing can be read.
const LEAST: (u16, u16) = (32, 8);

/// Paints the whole screen.
pub fn draw(app: &App, frame: &mut Frame<'_>) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let lines = text::wrap(&format!("too small: {} × {} needed", LEAST.0, LEAST.1), area.width.into());
        paint(buffer, area, lines.into_iter().map(Line::from));
    } else {
        tabs(app, buffer, Rect { height: 1, ..area });
        let body = body(area);
        match app.view {
            View::Findings => findings::draw(app, buffer, body),
            View::Sites => sites::draw(app, buffer, body),
            View::Timeline => timeline::draw(app, buffer, body),
            View::Map => map::draw(app, buffer, body),
        }
        status(app, buffer, Rect { y: area.bottom() - 2, height: 1, ..area });
        keys(app, buffer, Rect { y: area.bottom() - 1, height: 1, ..area });
        if let Some(scroll) = app.help {
            help::draw(app, buffer, area, scroll);
        }
    }
    if !app.theme.unicode {
        theme::fold(buffer);
    }
}

/// The part of the screen that belongs to the view.
pub(crate) fn body(area: Rect) -> Rect {
    Rect { y: area.y + area.height.min(1), height: area.height.saturating_sub(3), ..area }
}

/// Paints lines from the top of an area; what does not fit is cut.
pub(crate) fn paint<'a>(buffer: &mut Buffer, area: Rect, lines: impl IntoIterator<Item = Line<'a>>) {
    for (y, line) in (area.y..area.bottom()).zip(lines) {
        buffer.set_line(area.x, y, &line, area.width);
    }
}

/// The rows of an area from `top` on, at most `height`.
pub(crate) fn rows(area: Rect, top: u16, height: u16) -> Rect {
    let top = top.min(area.height);
    Rect { y: area.y + top, height: height.min(area.height - top), ..area }
}

/// The first of `count` rows to show so that the chosen one is in the middle, if there are more than fit.
pub(crate) fn scrolled(chosen: usize, count: usize, height: usize) -> usize {
    chosen.saturating_sub(height / 2).min(count.saturating_sub(height))
}

fn tabs(app: &App, buffer: &mut Buffer, area: Rect) {
    let narrow = area.width < 60;
    let mut spans = Vec::new();
    for (number, view) in (1..).zip(View::ALL) {
        let title = if narrow { format!("{number} {}", view.title()) } else { format!(" {number} {} ", view.title()) };
        let style = if view == app.view { app.theme.chosen().patch(app.theme.strong()) } else { app.theme.faint() };
        spans.push(Span::styled(title, style));
        spans.push(Span::raw(" "));
    }
    let line = Line::from(spans);
    let used = u16::try_from(line.width()).unwrap_or(u16::MAX).min(area.width);
    buffer.set_line(area.x, area.y, &line, area.width);
    let source = &app.data.report.source;
    let mut name = text::clean(if source.path == "-" { "standard input" } else { &source.path });
    if source.devices > 1 {
        name = format!("{name}, device {}", source.device);
    }
    let name = text::cut_path(&name, usize::from(area.width - used).saturating_sub(1));
    if text::width(&name) >= 8 {
        let line = Line::styled(name, app.theme.faint()).right_aligned();
        let room = Rect { x: area.x + used, width: area.width - used, ..area };
        ratatui::widgets::Widget::render(line, room, buffer);
    }
}

/// Which event a tick comes after, by its number in the report.
pub(crate) fn after(tick: u32) -> String {
    match tick.checked_sub(1) {
        Some(event) => format!("after event {}", text::count(event.into())),
        None => "before the first event".to_owned(),
    }
}

/// A tick in words, shorter ones where the room is small.
pub(crate) fn moment(app: &App, tick: u32, room: usize) -> String {
    let data = &app.data;
    let (allocated, reserved) = data.analysis().counters(tick);
    let (allocated, reserved) = (Bytes::new(allocated), Bytes::new(reserved));
    let name = data.name_of(tick).map(|name| format!("{name}, ")).unwrap_or_default();
    let at = after(tick);
    let time = data.since_start(tick).map(|time| format!(" at {}", text::duration(time))).unwrap_or_default();
    let step = step(app, tick).map(|step| format!(", {step}")).unwrap_or_default();
    let forms = [
        format!("{name}{at}{time}{step} │ allocated {allocated} │ reserved {reserved}"),
        format!("{name}{at}{time} │ {allocated} allocated │ {reserved} reserved"),
        format!("{name}{at} │ {allocated} allocated │ {reserved} reserved"),
        format!("{name}{at} │ {allocated} of {reserved}"),
        format!("{} │ {allocated} of {reserved}", data.name_of(tick).unwrap_or(&at)),
        format!("{at} │ {allocated}"),
    ];
    let shortest = forms.len() - 1;
    forms
        .into_iter()
        .enumerate()
        .find(|(index, form)| *index == shortest || text::width(form) <= room)
        .map_or_else(String::new, |(_, form)| form)
}

/// Which step a tick is in.
pub(crate) fn step(app: &App, tick: u32) -> Option<String> {
    let steps = &app.data.steps;
    let over = steps.partition_point(|&step| step < tick);
    match (steps.is_empty(), over < steps.len()) {
        (true, _) => None,
        (_, true) => Some(format!("step {} of {}", text::count(over as u64 + 1), text::count(steps.len() as u64))),
        _ => Some("after the last step".to_owned()),
    }
}

fn status(app: &App, buffer: &mut Buffer, area: Rect) {
    let room = usize::from(area.width).saturating_sub(2);
    let line = format!(" {} ", text::padded(&moment(app, app.moment, room), room));
    buffer.set_stringn(area.x, area.y, line, area.width.into(), app.theme.chosen());
}

fn keys(app: &App, buffer: &mut Buffer, area: Rect) {
    if let Some((label, typed)) = typed(app) {
        let line = Line::from(vec![
            Span::styled(format!(" {label}: "), app.theme.strong()),
            Span::raw(text::clean(typed)),
            Span::styled(" ", app.theme.chosen()),
            Span::styled("  Enter keeps, Esc drops it", app.theme.faint()),
        ]);
        buffer.set_line(area.x, area.y, &line, area.width);
        return;
    }
    if let Some(message) = &app.message {
        let message = text::cut_end(&format!(" {message}"), area.width.into());
        buffer.set_line(area.x, area.y, &Line::styled(message, app.theme.alarm()), area.width);
        return;
    }
    let mut spans = vec![Span::raw(" ")];
    let mut room = usize::from(area.width).saturating_sub(1);
    for &(key, does) in help::short(app.view) {
        let needed = text::width(key) + 1 + text::width(does) + 2;
        if needed > room + 2 {
            continue;
        }
        room = room.saturating_sub(needed);
        spans.push(Span::styled(key, app.theme.strong()));
        spans.push(Span::styled(format!(" {does}  "), app.theme.faint()));
    }
    buffer.set_line(area.x, area.y, &Line::from(spans), area.width);
}

/// What is being typed, and what it is for.
fn typed(app: &App) -> Option<(&'static str, &str)> {
    match app.view {
        View::Sites => app.sites.typed().map(|typed| ("Filter", typed)),
        View::Map => app.map.typed().map(|typed| ("Address", typed)),
        _ => None,
    }
}
