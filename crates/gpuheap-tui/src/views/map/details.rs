//! What is under the cursor of the map.

use gpuheap_explain::Class;
use gpuheap_record::{Bytes, SegmentKind};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::{Range, free_ranges};
use crate::app::App;
use crate::screen::paint;
use crate::text;
use crate::theme::letter;

pub(super) fn draw(app: &App, buffer: &mut Buffer, area: Rect) {
    let width = usize::from(area.width);
    let theme = app.theme;
    let Some(at) = app.map.at_cursor() else { return };
    let mut lines = block(app, &at, width);
    if area.height > 2 {
        lines.push(segment(app, &at, width));
        lines.extend(legend(app, width));
    }
    if let Some(message) = &app.map.message {
        let last = usize::from(area.height.saturating_sub(1)).min(lines.len() - 1);
        lines[last] = Line::styled(text::cut_end(message, width), theme.alarm());
    }
    paint(buffer, area, lines);
}

/// The range in two lines.
fn block(app: &App, at: &Range<'_>, width: usize) -> Vec<Line<'static>> {
    let theme = app.theme;
    let bytes = Bytes::new(at.size());
    let Some(block) = at.block else {
        let text = format!("{:#x}  {bytes} free", at.start);
        return vec![Line::styled(text, theme.strong()), Line::default()];
    };
    let mut about = vec![
        Span::styled(format!("{:#x}  {bytes}  ", at.start), theme.strong()),
        Span::styled(letter(block.class).to_string(), theme.fill(block.class)),
        Span::styled(format!(" {}", block.class.title()), theme.class(block.class)),
    ];
    if block.waits {
        about.push(Span::styled("  freed, waits for another stream", theme.alarm()));
    }
    let Some(allocation) = app.data.analysis().allocation(block.allocation) else { return vec![Line::from(about)] };
    let since = allocation.born.map_or_else(
        || ", there before the first event".to_owned(),
        |event| format!(", since event {}", text::count(u64::from(event))),
    );
    about.push(Span::raw(format!(", {} asked for{since}", allocation.requested)));
    let mut about = Line::from(about);
    let room = width.saturating_sub(about.width());
    about.push_span(Span::styled(text::cut_end(&format!(": {}", allocation.rule), room), theme.faint()));
    let place = match app.data.analysis().site(allocation.stack) {
        Some(site) => text::place(&site.file, site.line, &site.function, width),
        None => text::cut_end(&text::clean(&app.data.analysis().label(&allocation)), width),
    };
    vec![about, Line::styled(place, theme.code())]
}

fn segment(app: &App, at: &Range<'_>, width: usize) -> Line<'static> {
    let segment = at.segment;
    let (mut free, mut largest) = (0_u64, 0_u64);
    for (_, size) in free_ranges(segment) {
        free = free.saturating_add(size);
        largest = largest.max(size);
    }
    let kind = match (segment.expandable, segment.kind) {
        (true, _) => "expandable range",
        (_, SegmentKind::Small) => "segment for small blocks",
        (_, SegmentKind::Large) => "segment for large blocks",
    };
    let analysis = app.data.analysis();
    let mut text = format!(
        "in a {kind} of {}, {}, {} free",
        Bytes::new(segment.size),
        text::counted(segment.blocks.len() as u64, "block"),
        Bytes::new(free)
    );
    if largest < free {
        text = format!("{text}, at most {} in one piece", Bytes::new(largest));
    }
    let text = format!("{text}; {}, {}", analysis.stream_name(segment.stream), analysis.pool_name(segment.pool));
    Line::styled(text::cut_end(&text::clean(&text), width), app.theme.faint())
}

/// The classes that the map has.
fn legend(app: &App, width: usize) -> Vec<Line<'static>> {
    let blocks = || app.map.segments().iter().flat_map(|segment| &segment.blocks);
    let mut has = [false; Class::ALL.len()];
    for block in blocks() {
        has[block.class as usize] = true;
    }
    let mut signs = vec![("·".to_owned(), app.theme.faint(), "free")];
    for class in Class::ALL.into_iter().filter(|&class| has[class as usize]) {
        signs.push((letter(class).to_string(), app.theme.fill(class), class.title()));
    }
    if blocks().any(|block| block.waits) {
        signs.push(("~".to_owned(), app.theme.waiting(), "freed, waits"));
    }
    let mut lines = vec![Line::default()];
    for (sign, style, name) in signs {
        if lines.last().is_some_and(|line| line.width() + 2 + name.len() > width) {
            lines.push(Line::default());
        }
        if let Some(line) = lines.last_mut() {
            line.push_span(Span::styled(sign, style));
            line.push_span(Span::raw(format!(" {name}  ")));
        }
    }
    lines
}
