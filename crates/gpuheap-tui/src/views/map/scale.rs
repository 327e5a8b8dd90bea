//! How segments are laid out in rows of cells.

use gpuheap_explain::SegmentAt;

/// The least bytes of a cell: blocks are not smaller.
pub(super) const LEAST: u64 = 512;

/// Rows of cells, each segment from a row of its own on.
#[derive(Debug)]
pub(super) struct Scale {
    /// Bytes of a cell.
    cell: u64,
    /// Cells of a row.
    columns: u64,
    /// The row at which each segment begins, and after them the number of rows.
    starts: Vec<u64>,
}

impl Scale {
    /// The scale at which all segments fill `height` rows best, halved `zoom` times.
    pub(super) fn new(segments: &[SegmentAt], columns: u16, height: u16, zoom: u32) -> Self {
        let columns = u64::from(columns.max(1));
        let count = segments.len() as u64;
        // Where even one row each is too much, half a screen is left for those that take more.
        let room = u64::from(height).max(count + u64::from(height) / 2);
        let mut cell = LEAST;
        while cell < 1 << 60 && rows(segments, cell.saturating_mul(columns)) > room {
            cell *= 2;
        }
        cell = cell.checked_shr(zoom).unwrap_or(0).max(LEAST);
        let row = cell.saturating_mul(columns);
        let mut at = 0_u64;
        let mut starts = vec![0];
        for segment in segments {
            at = at.saturating_add(rows_of(segment, row));
            starts.push(at);
        }
        Self { cell, columns, starts }
    }

    pub(super) fn cell(&self) -> u64 {
        self.cell
    }

    /// Bytes of a row.
    pub(super) fn row_bytes(&self) -> u64 {
        self.cell.saturating_mul(self.columns)
    }

    pub(super) fn row_count(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The segment in a row, and the offset at which the row begins in it.
    pub(super) fn row(&self, row: u64) -> Option<(usize, u64)> {
        let segment = self.starts.partition_point(|&start| start <= row).checked_sub(1)?;
        (row < self.row_count()).then(|| (segment, (row - self.starts[segment]).saturating_mul(self.row_bytes())))
    }

    /// The row that has an address of a segment.
    pub(super) fn row_of(&self, segment: usize, offset: u64) -> u64 {
        self.starts.get(segment).map_or(0, |start| start + offset / self.row_bytes().max(1))
    }

    /// The address so many rows away, in the same column where that has one.
    pub(super) fn moved(&self, segments: &[SegmentAt], address: u64, by: i64) -> u64 {
        let Some(index) = segments.partition_point(|segment| segment.address <= address).checked_sub(1) else {
            return address;
        };
        let offset = (address - segments[index].address).min(segments[index].size.saturating_sub(1));
        let row = self.row_of(index, offset).saturating_add_signed(by).min(self.row_count().saturating_sub(1));
        let Some((index, start)) = self.row(row) else { return address };
        let segment = &segments[index];
        let offset = start.saturating_add(offset % self.row_bytes().max(1)).min(segment.size.saturating_sub(1));
        segment.address.saturating_add(offset)
    }
}

fn rows_of(segment: &SegmentAt, row: u64) -> u64 {
    segment.size.div_ceil(row.max(1)).max(1)
}

fn rows(segments: &[SegmentAt], row: u64) -> u64 {
    segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(rows_of(segment, row)))
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
        let scale = Scale::new(&segments, 64, 10, 0);
        assert_eq!((scale.cell(), scale.row_count()), (2 << 20, 9));
        assert_eq!(scale.row(8), Some((1, 0)));
        assert_eq!(scale.row(9), None);
        assert_eq!(Scale::new(&segments, 64, 10, 2).row_count(), 33);
        assert_eq!(Scale::new(&segments, 64, 10, 200).cell(), LEAST);
    }

    #[test]
    fn rows_lead_to_rows() {
        let segments = [segment(0, 1 << 30), segment(1 << 32, 2 << 20)];
        let scale = Scale::new(&segments, 64, 10, 0);
        let row = scale.row_bytes();
        assert_eq!(scale.moved(&segments, 5 << 20, 1), row + (5 << 20));
        assert_eq!(scale.moved(&segments, 5 << 20, 100), (1 << 32) + (2 << 20) - 1, "at the end of a short segment");
        assert_eq!(scale.moved(&segments, 1 << 32, -1), 7 * row);
        assert_eq!(scale.moved(&[], 7, 1), 7);
    }

    #[test]
    fn absurd_sizes_do_no_harm() {
        let segments = [segment(u64::MAX - 5, u64::MAX), segment(u64::MAX, 0)];
        for zoom in [0, 1, 63, 64, 1000] {
            let scale = Scale::new(&segments, 1, 1, zoom);
            assert!(scale.row_count() >= 2);
            let _ = scale.moved(&segments, u64::MAX, i64::MAX);
        }
    }
}
