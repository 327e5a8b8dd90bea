//! The segments of the chosen moment to scale, with their blocks and what is free between them.

mod cells;
mod details;
mod scale;

use gpuheap_explain::{BlockAt, SegmentAt};
use gpuheap_record::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

use crate::app::App;
use crate::key::Key;
use crate::screen::{paint, rows};
use crate::text;
use scale::Scale;

/// Columns before the cells for an address, and for the size of a segment.
const ADDRESS: u16 = 15;
const SIZE: u16 = 9;
/// Narrower screens have no room for addresses.
const LEAST_FOR_ADDRESS: u16 = 64;

/// What is shown, and where the cursor is.
#[derive(Debug, Default)]
pub(crate) struct State {
    segments: Option<(u32, Vec<SegmentAt>)>,
    /// An address within a block or a free range.
    cursor: u64,
    /// How many times a cell is halved, from what fits on the screen.
    zoom: u32,
    /// Whether each segment begins a row; `None` if they do as long as there are few.
    apart: Option<bool>,
    typed: String,
    typing: bool,
    message: Option<String>,
}

impl State {
    /// What is being typed, if anything is.
    pub(crate) fn typed(&self) -> Option<&str> {
        self.typing.then_some(self.typed.as_str())
    }

    fn segments(&self) -> &[SegmentAt] {
        self.segments.as_ref().map_or(&[], |(_, segments)| segments)
    }

    fn at_cursor(&self) -> Option<Range<'_>> {
        Range::at(self.segments(), self.cursor)
    }
}

/// A block, or what is free between two.
#[derive(Clone, Copy, Debug)]
struct Range<'a> {
    /// The row of its segment.
    index: usize,
    segment: &'a SegmentAt,
    start: u64,
    end: u64,
    block: Option<BlockAt>,
}

impl<'a> Range<'a> {
    /// The range that has this address, or the one nearest to it.
    fn at(segments: &'a [SegmentAt], address: u64) -> Option<Self> {
        let index = segments.partition_point(|segment| segment.address <= address).saturating_sub(1);
        let segment = segments.get(index)?;
        let segment_end = segment.address.saturating_add(segment.size);
        let address = address.clamp(segment.address, segment_end.saturating_sub(1).max(segment.address));
        let after = segment.blocks.partition_point(|block| block.address <= address);
        let before = after.checked_sub(1).and_then(|row| segment.blocks.get(row));
        let end_of = |block: &BlockAt| block.address.saturating_add(block.size).min(segment_end);
        if let Some(block) = before.filter(|block| end_of(block) > address) {
            let (start, end) = (block.address, end_of(block));
            return Some(Self { index, segment, start, end, block: Some(*block) });
        }
        let start = before.map_or(segment.address, end_of);
        let end = segment.blocks.get(after).map_or(segment_end, |block| block.address).max(start);
        Some(Self { index, segment, start, end, block: None })
    }

    fn size(&self) -> u64 {
        self.end - self.start
    }
}

struct Layout {
    title: Rect,
    /// Whether each segment begins a row.
    apart: bool,
    labels: u16,
    cells: Rect,
    details: Rect,
}

fn layout(app: &App, body: Rect) -> Layout {
    let details = match body.height {
        0..14 => 2,
        14..18 => 4,
        _ => 5,
    };
    let cells = rows(body, 1, body.height.saturating_sub(details + 2).max(1));
    let apart = app.map.apart.unwrap_or(app.map.segments().len() <= usize::from(cells.height));
    let has_address = body.width >= LEAST_FOR_ADDRESS;
    let labels = if has_address { ADDRESS } else { 0 } + if apart || !has_address { SIZE } else { 0 };
    Layout {
        title: rows(body, 0, 1),
        apart,
        labels,
        cells: Rect { x: cells.x + labels, width: cells.width.saturating_sub(labels).max(1), ..cells },
        details: rows(body, body.height.saturating_sub(details), details),
    }
}

fn scale(app: &App, body: Rect) -> Scale {
    let Layout { cells, apart, .. } = layout(app, body);
    Scale::new(app.map.segments(), cells.width, cells.height, app.map.zoom, apart)
}

pub(crate) fn update(app: &mut App, key: Key) -> bool {
    if app.map.typing {
        return type_address(app, key);
    }
    let body = app.body();
    let page = i64::from(layout(app, body).cells.height.max(2) - 1);
    let message = app.map.message.take();
    match key {
        // The message is closed, and nothing beneath it.
        Key::Esc if message.is_some() => {}
        Key::Esc if app.map.zoom > 0 => app.map.zoom = 0,
        Key::Left => step(app, false),
        Key::Right => step(app, true),
        Key::Up => rows_on(app, -1),
        Key::Down => rows_on(app, 1),
        Key::PageUp => rows_on(app, -page),
        Key::PageDown => rows_on(app, page),
        Key::Home => app.map.cursor = 0,
        Key::End => app.map.cursor = app.map.segments().last().map_or(0, |segment| segment.address),
        Key::Char('+' | '=') => {
            if scale(app, body).cell() > scale::LEAST {
                app.map.zoom += 1;
            }
        }
        Key::Char('-' | '_') => app.map.zoom = app.map.zoom.saturating_sub(1),
        Key::Char('0') => app.map.zoom = 0,
        Key::Char('t') => app.map.apart = Some(!layout(app, body).apart),
        Key::Char('f') => next_free(app),
        Key::Char('/') => {
            app.map.typing = true;
            app.map.typed.clear();
        }
        _ => return false,
    }
    true
}

/// To the neighbour of the range under the cursor.
fn step(app: &mut App, forward: bool) {
    let segments = app.map.segments();
    let Some(at) = Range::at(segments, app.map.cursor) else { return };
    let segment_end = at.segment.address.saturating_add(at.segment.size);
    app.map.cursor = if forward {
        if at.end < segment_end {
            at.end
        } else {
            segments.get(at.index + 1).map_or(at.start, |segment| segment.address)
        }
    } else if at.start > at.segment.address {
        Range::at(segments, at.start - 1).map_or(at.start, |range| range.start)
    } else {
        let before = at.index.checked_sub(1).and_then(|before| segments.get(before));
        let last = |segment: &SegmentAt| segment.address.saturating_add(segment.size).saturating_sub(1);
        before.and_then(|segment| Range::at(segments, last(segment))).map_or(at.start, |range| range.start)
    };
}

/// So many rows of the screen down, or up.
fn rows_on(app: &mut App, by: i64) {
    let scale = scale(app, app.body());
    app.map.cursor = scale.moved(app.map.segments(), app.map.cursor, by);
}

/// To the next free range that is at least as large as the one under the cursor; from a block, to any.
fn next_free(app: &mut App) {
    let segments = app.map.segments();
    let Some(at) = app.map.at_cursor() else { return };
    let least = if at.block.is_none() { at.size() } else { 1 };
    let found =
        segments[at.index..].iter().flat_map(free_ranges).find(|&(start, size)| start > at.start && size >= least);
    match found {
        Some((start, _)) => app.map.cursor = start,
        None => app.map.message = Some("no free range of this size comes after this one".to_owned()),
    }
}

/// Address and size of what is free in a segment.
fn free_ranges(segment: &SegmentAt) -> impl Iterator<Item = (u64, u64)> + '_ {
    let end = segment.address.saturating_add(segment.size);
    let mut at = segment.address;
    let blocks = segment.blocks.iter().map(|block| (block.address, block.address.saturating_add(block.size)));
    blocks.chain([(end, end)]).filter_map(move |(start, after)| {
        let free = (at, start.saturating_sub(at));
        at = at.max(after);
        (free.1 > 0).then_some(free)
    })
}

fn type_address(app: &mut App, key: Key) -> bool {
    let map = &mut app.map;
    match key {
        Key::Esc => map.typing = false,
        Key::Enter => {
            map.typing = false;
            let typed = map.typed.trim().to_lowercase();
            let digits = typed.strip_prefix("0x").unwrap_or(&typed).replace('_', "");
            let Ok(address) = u64::from_str_radix(&digits, 16) else {
                map.message =
                    Some(format!("`{typed}` is not an address: write it in hexadecimal, such as 7f2a40000000"));
                return true;
            };
            let has = |segment: &&SegmentAt| address >= segment.address && address - segment.address < segment.size;
            if map.segments().iter().any(|segment| has(&segment)) {
                map.cursor = address;
            } else {
                map.message = Some(format!("no segment has {address:#x} at this moment"));
            }
        }
        Key::Backspace => {
            map.typed.pop();
        }
        Key::Char(character) if map.typed.len() < 20 && character.is_ascii_alphanumeric() => map.typed.push(character),
        _ => {}
    }
    true
}

pub(crate) fn prepare(app: &mut App) {
    if app.map.segments.as_ref().is_none_or(|&(tick, _)| tick != app.moment) {
        app.map.segments = Some((app.moment, app.data.analysis().segments_at(app.moment)));
    }
    // The cursor stands at the start of what it names, so that neighbours are told from it.
    let at = app.map.at_cursor().map(|range| if range.size() == 0 { app.map.cursor } else { range.start });
    let inside = app.map.at_cursor().is_some_and(|range| range.start <= app.map.cursor && app.map.cursor < range.end);
    if !inside {
        app.map.cursor = at.unwrap_or(0);
    }
}

pub(crate) fn draw(app: &App, buffer: &mut Buffer, body: Rect) {
    let segments = app.map.segments();
    let layout = layout(app, body);
    if segments.is_empty() {
        paint(buffer, rows(body, 1, 1), [Line::from("No memory is reserved at this moment")]);
        return;
    }
    let scale = scale(app, body);
    let reserved: Bytes = segments.iter().map(|segment| Bytes::new(segment.size)).sum();
    let used: Bytes = segments.iter().flat_map(|segment| &segment.blocks).map(|block| Bytes::new(block.size)).sum();
    let title = format!(
        "{}, {reserved}, in use {used}; a cell is {}",
        text::counted(segments.len() as u64, "segment"),
        Bytes::new(scale.cell())
    );
    paint(buffer, layout.title, [Line::styled(title, app.theme.strong())]);
    cells::draw(app, buffer, &layout, &scale);
    details::draw(app, buffer, layout.details);
}
