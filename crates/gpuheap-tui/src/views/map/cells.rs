//! The cells of the map.

use gpuheap_explain::{Class, SegmentAt};
use gpuheap_record::Bytes;
use ratatui::buffer::Buffer;
use ratatui::style::{Modifier, Style};

use super::scale::{Piece, Scale};
use super::{ADDRESS, Layout, Range};
use crate::app::App;
use crate::text;
use crate::theme::{Theme, letter};

/// Memory that is not of a class: it waits for another stream.
const WAITING: usize = Class::ALL.len();

pub(super) fn draw(app: &App, buffer: &mut Buffer, layout: &Layout, scale: &Scale) {
    let segments = app.map.segments();
    let area = layout.cells;
    let at_cursor = app.map.at_cursor();
    let chosen = at_cursor.map_or(0, |at| scale.row_of(at.index, app.map.cursor.saturating_sub(at.segment.address)));
    let height = u64::from(area.height);
    let first = chosen.saturating_sub(height / 2).min(scale.row_count().saturating_sub(height));
    for (y, row) in (area.y..area.bottom()).zip(first..scale.row_count()) {
        let pieces = scale.row(segments, row);
        if let Some(label) = pieces.first().and_then(|piece| label(segments, piece, layout.labels, y == area.y)) {
            let style = if row == chosen { app.theme.strong() } else { app.theme.faint() };
            buffer.set_stringn(area.x - layout.labels, y, label, layout.labels.into(), style);
        }
        for piece in pieces {
            let look = looks(app.theme, &segments[piece.segment], &piece, scale.cell(), at_cursor);
            for (x, (sign, style)) in (area.x.saturating_add(piece.column)..area.right()).zip(look) {
                if let Some(cell) = buffer.cell_mut((x, y)) {
                    cell.set_char(sign).set_style(style);
                }
            }
        }
    }
    if scale.row_count() > height {
        let last = text::count(first + height);
        let shown = format!(" rows {} to {last} of {} ", text::count(first + 1), text::count(scale.row_count()));
        let width = u16::try_from(shown.len()).unwrap_or(u16::MAX);
        let y = layout.details.y.saturating_sub(1);
        if width < area.width {
            buffer.set_string(area.right() - width, y, shown, app.theme.faint());
        }
    }
}

/// Where a row begins: the address, and the size of a segment that begins there, as far as there is room.
fn label(segments: &[SegmentAt], piece: &Piece, columns: u16, is_first: bool) -> Option<String> {
    let segment = &segments[piece.segment];
    let address = segment.address.saturating_add(piece.offset);
    let begins = piece.offset == 0 && piece.column == 0;
    let size = if begins || is_first { Bytes::new(segment.size).to_string() } else { String::new() };
    match columns {
        0..ADDRESS => begins.then(|| format!("{size:>8}")),
        ADDRESS => Some(format!("{address:>14x}")),
        _ => Some(format!("{address:>14x} {size:>8}")),
    }
}

/// What a cell has.
#[derive(Clone, Copy, Default)]
struct Cell {
    bytes: [u64; WAITING + 1],
    starts: bool,
}

/// The signs and colours of a piece.
fn looks(
    theme: Theme,
    segment: &SegmentAt,
    piece: &Piece,
    size: u64,
    at_cursor: Option<Range<'_>>,
) -> Vec<(char, Style)> {
    let from = segment.address.saturating_add(piece.offset);
    let end_of = |index: u64| from.saturating_add(index.saturating_mul(size));
    let to = end_of(piece.cells.into()).min(segment.address.saturating_add(segment.size)).max(from);
    let mut cells = vec![Cell::default(); piece.cells.into()];
    let first = segment.blocks.partition_point(|block| block.address.saturating_add(block.size) <= from);
    for block in segment.blocks[first..].iter().take_while(|block| block.address < to) {
        let kind = if block.waits { WAITING } else { block.class as usize };
        let end = block.address.saturating_add(block.size).min(to);
        let mut at = block.address.max(from);
        while at < end {
            let index = (at - from) / size;
            let next = end_of(index + 1).min(end);
            if let Some(cell) = usize::try_from(index).ok().and_then(|index| cells.get_mut(index)) {
                cell.bytes[kind] = cell.bytes[kind].saturating_add(next - at);
                cell.starts |= at == block.address;
            }
            if next <= at {
                break;
            }
            at = next;
        }
    }
    let look = |(index, cell): (u64, &Cell)| {
        let (start, end) = (end_of(index), end_of(index + 1).min(to));
        let is_chosen = at_cursor.is_some_and(|at| at.start < end && start < at.end.max(at.start + 1));
        let (sign, style) = look(theme, cell, end.saturating_sub(start));
        (sign, if is_chosen { style.add_modifier(Modifier::REVERSED) } else { style })
    };
    (0..).zip(&cells).map(look).collect()
}

/// The sign and the colours of a cell of so many bytes.
fn look(theme: Theme, cell: &Cell, room: u64) -> (char, Style) {
    let used = cell.bytes.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let most = (0..cell.bytes.len()).max_by_key(|&kind| (cell.bytes[kind], std::cmp::Reverse(kind))).unwrap_or(WAITING);
    if used == 0 {
        return ('·', theme.faint());
    }
    let Some(&class) = Class::ALL.get(most) else { return ('~', theme.waiting()) };
    // A capital where a block begins, small letters where it goes on.
    let sign = if cell.starts { letter(class) } else { letter(class).to_ascii_lowercase() };
    // Cells that are mostly free have the letter alone: a small block in the way is seen all the same.
    (sign, if used >= room / 2 { theme.fill(class) } else { theme.class(class) })
}
