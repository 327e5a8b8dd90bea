//! The figures of the moment under the cursor; they are the legend of the chart as well.

use gpuheap_explain::Class;
use gpuheap_record::{Bytes, Event, EventId, EventKind};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use crate::app::App;
use crate::screen::{moment, paint};
use crate::text;
use crate::theme::letter;

pub(super) fn draw(app: &App, buffer: &mut Buffer, area: Rect) {
    let width = usize::from(area.width);
    let theme = app.theme;
    let cursor = app.timeline.cursor;
    let mut lines = vec![Line::from(vec![
        Span::styled("▲ ", theme.strong()),
        Span::styled(moment(app, cursor, width.saturating_sub(2)), theme.strong()),
    ])];
    if area.height > 2 {
        lines.push(Line::styled(text::cut_end(&change(app, cursor, width), width), theme.code()));
    }
    if let Some((_, classes)) = &app.timeline.here {
        lines.extend(legend(app, classes, width));
    }
    paint(buffer, area, lines);
}

/// The classes with their letters, those that have most first.
fn legend(app: &App, bytes: &[u64], width: usize) -> Vec<Line<'static>> {
    let mut classes: Vec<(Class, u64)> = Class::ALL.into_iter().zip(bytes.iter().copied()).collect();
    classes.retain(|&(_, bytes)| bytes > 0);
    classes.sort_by_key(|&(class, bytes)| (std::cmp::Reverse(bytes), class));
    let mut lines = vec![Line::default()];
    let mut used = 0;
    for (class, bytes) in classes {
        let figure = format!(" {} {}   ", class.title(), Bytes::new(bytes));
        let needed = 1 + text::width(figure.trim_end());
        if used > 0 && used + needed > width {
            lines.push(Line::default());
            used = 0;
        }
        used += 1 + text::width(&figure);
        if let Some(line) = lines.last_mut() {
            line.push_span(Span::styled(letter(class).to_string(), app.theme.fill(class)));
            line.push_span(Span::raw(figure));
        }
    }
    lines
}

/// What the event before a tick did.
fn change(app: &App, tick: u32, room: usize) -> String {
    let analysis = app.data.analysis();
    let device = app.data.report.source.device;
    let events = analysis.recording().devices.iter().find(|of| of.device.get() == device).map(|of| &of.events);
    let (Some(row), Some(events)) = (tick.checked_sub(1), events) else {
        return "before the first event".to_owned();
    };
    if row as usize >= events.len() {
        return String::new();
    }
    let event: Event = events.get(EventId::from_index(row as usize));
    let bytes = Bytes::new(event.size);
    let what = match event.kind {
        EventKind::Alloc => format!("alloc {bytes}"),
        EventKind::FreeRequested => format!("free {bytes}"),
        EventKind::FreeCompleted => format!("free completed {bytes}"),
        EventKind::SegmentAlloc => format!("new segment {bytes}"),
        EventKind::SegmentFree => format!("segment released {bytes}"),
        EventKind::SegmentMap => format!("mapped {bytes}"),
        EventKind::SegmentUnmap => format!("unmapped {bytes}"),
        EventKind::OutOfMemory => format!("out of memory: {bytes} asked for"),
        EventKind::Snapshot => "snapshot taken".to_owned(),
        EventKind::Other => "other".to_owned(),
    };
    let what = format!("Last event: {what}");
    match analysis.site(event.stack) {
        Some(site) => {
            let room = room.saturating_sub(text::width(&what) + 4);
            format!("{what} at {}", text::place(&site.file, site.line, &site.function, room))
        }
        None => what,
    }
}
