//! The cells of the map.

use gpuheap_explain::{Class, SegmentAt};
use gpuheap_record::Bytes;
use ratatui::buffer::Buffer;
use ratatui::style::{Modifier, Style};

use super::scale::Scale;
use super::{LABELS, Layout, Range};
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
    for (y, row) in (area.y..area.bottom()).zip(first..) {
        let Some((index, offset)) = scale.row(row) else { break };
        let segment = &segments[index];
        if offset == 0 || y == area.y {
            let style =
                if at_cursor.is_some_and(|at| at.index == index) { app.theme.strong() } else { app.theme.faint() };
            let size = Bytes::new(segment.size).to_string();
            let label = if layout.labels == LABELS {
                format!("{:>14x} {size:>8}", segment.address)
            } else {
                format!("{size:>8}")
            };
            buffer.set_stringn(area.x - layout.labels, y, label, layout.labels.into(), style);
        }
        for (x, (sign, style)) in (area.x..area.right()).zip(row_of_cells(app.theme, segment, offset, scale, at_cursor))
        {
            if let Some(cell) = buffer.cell_mut((x, y)) {
                cell.set_char(sign).set_style(style);
            }
        }
    }
    if scale.row_count() > height {
        let shown = format!(
            " rows {} to {} of {} ",
            text::count(first + 1),
            text::count(first + height),
            text::count(scale.row_count())
        );
        let width = u16::try_from(shown.len()).unwrap_or(u16::MAX);
        let y = layout.details.y.saturating_sub(1);
        if width < area.width {
            buffer.set_string(area.right() - width, y, shown, app.theme.faint());
        }
    }
}

/// What a cell has.
#[derive(Clone, Copy, Default)]
struct Cell {
    bytes: [u64; WAITING + 1],
    starts: bool,
}

fn row_of_cells(
    theme: Theme,
    segment: &SegmentAt,
    offset: u64,
    scale: &Scale,
    at_cursor: Option<Range<'_>>,
) -> Vec<(char, Style)> {
    let size = scale.cell();
    let from = segment.address.saturating_add(offset);
    let to = from.saturating_add(scale.row_bytes()).min(segment.address.saturating_add(segment.size));
    let count = usize::try_from((to - from).div_ceil(size)).unwrap_or(0).max(1);
    let mut cells = vec![Cell::default(); count];
    let first = segment.blocks.partition_point(|block| block.address.saturating_add(block.size) <= from);
    for block in segment.blocks[first..].iter().take_while(|block| block.address < to) {
        let kind = if block.waits { WAITING } else { block.class as usize };
        let (start, end) = (block.address.max(from), block.address.saturating_add(block.size).min(to));
        let mut at = start;
        while at < end {
            let index = (at - from) / size;
            let next = from.saturating_add((index + 1).saturating_mul(size)).min(end);
            if let Some(cell) = usize::try_from(index).ok().and_then(|index| cells.get_mut(index)) {
                cell.bytes[kind] += next - at;
                cell.starts |= at == block.address;
            }
            if next <= at {
                break;
            }
            at = next;
        }
    }
    let is_chosen = |index: usize| {
        let start = from.saturating_add((index as u64).saturating_mul(size));
        let end = start.saturating_add(size).min(to);
        at_cursor.is_some_and(|at| at.start < end && start < at.end.max(at.start + 1))
    };
    let look = |(index, cell): (usize, &Cell)| {
        let room = size.min(to.saturating_sub(from.saturating_add((index as u64).saturating_mul(size))));
        let (sign, style) = look(theme, cell, room);
        (sign, if is_chosen(index) { style.add_modifier(Modifier::REVERSED) } else { style })
    };
    cells.iter().enumerate().map(look).collect()
}

/// The sign and the colours of a cell of so many bytes.
fn look(theme: Theme, cell: &Cell, room: u64) -> (char, Style) {
    let used: u64 = cell.bytes.iter().sum();
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
