//! How segments are laid out in cells: a line of cells that is broken into rows, with a gap after each segment.

use gpuheap_explain::SegmentAt;

/// The least bytes of a cell: blocks are not smaller.
pub(super) const LEAST: u64 = 512;

/// Where each segment lies in the line of cells.
#[derive(Debug)]
pub(super) struct Scale {
    /// Bytes of a cell.
    cell: u64,
    /// Cells of a row.
    columns: u64,
    /// The cell at which each segment begins.
    starts: Vec<u64>,
    /// All cells.
    count: u64,
}

/// A part of a segment in one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// The row of the segment.
    pub(super) segment: usize,
    /// The offset in it.
    pub(super) offset: u64,
    /// The first column.
    pub(super) column: u16,
    /// How many.
    pub(super) cells: u16,
}

impl Scale {
    /// The scale at which all segments fill `height` rows best, halved `zoom` times. Each segment begins a row if they
    /// are to be `apart`.
    pub(super) fn new(segments: &[SegmentAt], columns: u16, height: u16, zoom: u32, apart: bool) -> Self {
        let columns = u64::from(columns.max(1));
        let rows = |cell: u64| line(segments, cell, columns, apart).1.div_ceil(columns);
        // Where even the least is too much, half a screen is left for those that take more.
        let room = u64::from(height).max(rows(1 << 60) + u64::from(height) / 2);
        let mut cell = LEAST;
        while cell < 1 << 60 && rows(cell) > room {
            cell *= 2;
        }
        // Powers of two alone would leave up to half of the screen empty.
        if cell > LEAST && rows(cell / 4 * 3) <= room {
            cell = cell / 4 * 3;
        }
        cell = cell.checked_shr(zoom).unwrap_or(0).max(LEAST);
        let (starts, count) = line(segments, cell, columns, apart);
        Self { cell, columns, starts, count }
    }

    pub(super) fn cell(&self) -> u64 {
        self.cell
    }

    pub(super) fn row_count(&self) -> u64 {
        self.count.div_ceil(self.columns)
    }

    /// The row that has an offset of a segment.
    pub(super) fn row_of(&self, segment: usize, offset: u64) -> u64 {
        self.starts.get(segment).map_or(0, |start| start.saturating_add(offset / self.cell) / self.columns)
    }

    /// What a row shows, from left to right.
    pub(super) fn row(&self, segments: &[SegmentAt], row: u64) -> Vec<Piece> {
        let (from, to) = (row.saturating_mul(self.columns), row.saturating_add(1).saturating_mul(self.columns));
        let first = self.starts.partition_point(|&start| start <= from).saturating_sub(1);
        let mut pieces = Vec::new();
        for (segment, &start) in self.starts.iter().enumerate().skip(first).take_while(|&(_, &start)| start < to) {
            let end = start.saturating_add(cells_of(&segments[segment], self.cell)).min(to);
            let begin = start.max(from);
            if begin < end {
                pieces.push(Piece {
                    segment,
                    offset: (begin - start).saturating_mul(self.cell),
                    column: u16::try_from(begin - from).unwrap_or(u16::MAX),
                    cells: u16::try_from(end - begin).unwrap_or(u16::MAX),
                });
            }
        }
        pieces
    }

    /// The address so many rows away, in the same column where that has one.
    pub(super) fn moved(&self, segments: &[SegmentAt], address: u64, by: i64) -> u64 {
        let Some(index) = segments.partition_point(|segment| segment.address <= address).checked_sub(1) else {
            return address;
        };
        let offset = (address - segments[index].address).min(segments[index].size.saturating_sub(1));
        let cell = self.starts[index].saturating_add(offset / self.cell);
        let column = cell % self.columns;
        let row = (cell / self.columns).saturating_add_signed(by).min(self.row_count().saturating_sub(1));
        let target = row.saturating_mul(self.columns).saturating_add(column);
        let index = self.starts.partition_point(|&start| start <= target).saturating_sub(1);
        let segment = &segments[index];
        let offset = target.saturating_sub(self.starts[index]).saturating_mul(self.cell);
        segment.address.saturating_add(offset.min(segment.size.saturating_sub(1)))
    }
}

fn cells_of(segment: &SegmentAt, cell: u64) -> u64 {
    segment.size.div_ceil(cell).max(1)
}

/// The cell at which each segment begins, and the number of cells.
fn line(segments: &[SegmentAt], cell: u64, columns: u64, apart: bool) -> (Vec<u64>, u64) {
    let mut at = 0_u64;
    let mut starts = Vec::with_capacity(segments.len());
    for segment in segments {
        if apart {
            at = at.div_ceil(columns).saturating_mul(columns);
        } else if at > 0 {
            at = at.saturating_add(1);
        }
        starts.push(at);
        at = at.saturating_add(cells_of(segment, cell));
    }
    (starts, at)
}

#[cfg(test)]
mod tests {
    use gpuheap_record::SegmentKind;

    use super::*;

    fn segment(address: u64, size: u64) -> SegmentAt {
        SegmentAt {
            address,
            size,
            stream: 0,
            pool: (0, 0),
            kind: SegmentKind::Large,
            expandable: false,
            blocks: Vec::new(),
        }
    }

    #[test]
    fn segments_fill_the_screen_and_no_more() {
        let segments = [segment(0, 1 << 30), segment(1 << 32, 2 << 20)];
        let scale = Scale::new(&segments, 64, 10, 0, true);
        assert_eq!((scale.cell(), scale.row_count()), (2 << 20, 9));
        assert_eq!(scale.row(&segments, 8), [Piece { segment: 1, offset: 0, column: 0, cells: 1 }]);
        assert_eq!(scale.row(&segments, 7), [Piece { segment: 0, offset: 448 << 21, column: 0, cells: 64 }]);
        assert_eq!(scale.row(&segments, 9), []);
        assert_eq!(Scale::new(&segments, 64, 10, 2, true).row_count(), 33);
        assert_eq!(Scale::new(&segments, 64, 10, 200, true).cell(), LEAST);
    }

    #[test]
    fn small_segments_share_rows() {
        let segments: Vec<_> = (0..100).map(|index| segment(index << 32, 2 << 20)).collect();
        let scale = Scale::new(&segments, 40, 5, 0, false);
        assert_eq!((scale.cell(), scale.row_count()), (2 << 20, 5));
        assert_eq!(scale.row(&segments, 1)[0], Piece { segment: 20, offset: 0, column: 0, cells: 1 });
        assert_eq!(scale.moved(&segments, 3 << 32, 1), 23 << 32);
        assert_eq!(Scale::new(&segments, 40, 5, 0, true).row_count(), 100);
    }

    #[test]
    fn rows_lead_to_rows() {
        let segments = [segment(0, 1 << 30), segment(1 << 32, 2 << 20)];
        let scale = Scale::new(&segments, 64, 10, 0, true);
        let row = 64 * scale.cell();
        assert_eq!(scale.moved(&segments, 5 << 20, 1), row + (4 << 20));
        assert_eq!(scale.moved(&segments, 5 << 20, 100), (1 << 32) + (2 << 20) - 1, "at the end of a short segment");
        assert_eq!(scale.moved(&segments, 1 << 32, -1), 7 * row);
        assert_eq!(scale.moved(&[], 7, 1), 7);
    }

    #[test]
    fn absurd_sizes_do_no_harm() {
        let segments = [segment(u64::MAX - 5, u64::MAX), segment(u64::MAX, 0)];
        for (zoom, apart) in [(0, true), (1, false), (63, true), (64, false), (1000, true)] {
            let scale = Scale::new(&segments, 1, 1, zoom, apart);
            assert!(scale.row_count() >= 2);
            let _ = scale.moved(&segments, u64::MAX, i64::MAX);
            let _ = scale.row(&segments, u64::MAX);
        }
    }
}
