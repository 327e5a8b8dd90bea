//! The values of the chart.

use gpuheap_explain::{Analysis, Class, accumulated};

/// A range of ticks, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl Window {
    pub(crate) fn ticks(self) -> u32 {
        self.to.saturating_sub(self.from).saturating_add(1)
    }

    pub(crate) fn contains(self, tick: u32) -> bool {
        (self.from..=self.to).contains(&tick)
    }
}

/// Exact values at enough ticks of a window that every column has its extremes.
#[derive(Debug)]
pub(crate) struct Series {
    window: Window,
    width: u16,
    ticks: Vec<u32>,
    reserved: Vec<u64>,
    allocated: Vec<u64>,
    classes: Vec<Vec<u64>>,
}

/// What a column of the chart shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Column {
    /// The first tick that it stands for.
    pub(crate) start: u32,
    /// The tick of most allocated bytes.
    pub(crate) tick: u32,
    /// The most reserved bytes.
    pub(crate) reserved: u64,
    /// Bytes by class at the tick of most allocated bytes.
    pub(crate) classes: Vec<u64>,
}

impl Series {
    pub(crate) fn of(analysis: &Analysis, window: Window, width: u16) -> Self {
        let timeline = analysis.timeline(window.from, window.to, usize::from(width) * 3);
        let values = |column: &[i64]| -> Vec<u64> {
            accumulated(column).into_iter().map(|value| value.max(0).unsigned_abs()).collect()
        };
        let ticks: Vec<u32> =
            values(&timeline.ticks_delta).into_iter().map(|tick| u32::try_from(tick).unwrap_or(u32::MAX)).collect();
        let classes: Vec<Vec<u64>> = timeline.classes_delta.iter().map(|column| values(column)).collect();
        let sum = |row: usize| classes.iter().fold(0_u64, |sum, class| sum.saturating_add(class[row]));
        let allocated = (0..ticks.len()).map(sum).collect();
        Self { window, width, reserved: values(&timeline.reserved_delta), allocated, ticks, classes }
    }

    pub(crate) fn is_for(&self, window: Window, width: u16) -> bool {
        self.window == window && self.width == width
    }

    /// The most that is reserved or allocated.
    pub(crate) fn most(&self) -> u64 {
        self.reserved.iter().chain(&self.allocated).copied().max().unwrap_or(0)
    }

    /// What each of `width` columns shows of a window.
    pub(crate) fn columns(&self, window: Window, width: u16) -> Vec<Column> {
        let ticks = u64::from(window.ticks());
        let width = u64::from(width.max(1));
        let start = |column: u64| u64::from(window.from) + column * ticks / width;
        (0..width)
            .map(|column| {
                let (from, to) = (start(column), start(column + 1).max(start(column) + 1));
                let first = self.ticks.partition_point(|&tick| u64::from(tick) < from);
                let end = self.ticks.partition_point(|&tick| u64::from(tick) < to);
                // Where nothing is known of the column, what was before it still holds.
                let range = if first < end { first..end } else { first.saturating_sub(1)..first.max(1) };
                let range = range.start..range.end.min(self.ticks.len());
                let shown = range.clone().max_by_key(|&row| (self.allocated[row], std::cmp::Reverse(row)));
                let start = u32::try_from(from).unwrap_or(u32::MAX);
                let Some(shown) = shown else { return Column { start, tick: start, ..Column::default() } };
                Column {
                    start,
                    tick: self.ticks[shown].max(start),
                    reserved: range.map(|row| self.reserved[row]).max().unwrap_or(0),
                    classes: self.classes.iter().map(|class| class[shown]).collect(),
                }
            })
            .collect()
    }
}

/// Bytes by class at one tick, in the order of [`Class::ALL`].
pub(crate) fn classes_at(analysis: &Analysis, tick: u32) -> Vec<u64> {
    let timeline = analysis.timeline(tick, tick, 3);
    let value = |column: &Vec<i64>| column.first().map_or(0, |&value| value.max(0).unsigned_abs());
    let mut values: Vec<u64> = timeline.classes_delta.iter().map(value).collect();
    values.resize(Class::ALL.len(), 0);
    values
}
