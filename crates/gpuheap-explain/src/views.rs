//! What people look at: memory through time and at one moment, by place, as columns of plain numbers.
//!
//! One file a view. A [`Page`] has all of them for one device; a server asks for [`Analysis::timeline`] and
//! [`Analysis::memory_at`] one by one. The names of the fields are those of the JSON (`gpuheap.page/1`): sizes are
//! bytes, times microseconds, ticks moments between events (tick 0 before the first, tick `n` after event `n - 1`).
//! A column whose name ends in `_delta` holds differences from the row before, the first from 0: they are short.
//!
//! [`Analysis::timeline`]: crate::Analysis::timeline
//! [`Analysis::memory_at`]: crate::Analysis::memory_at

mod allocations;
mod map;
mod memory;
mod page;
mod places;
mod sites;
mod timeline;
mod whatif;

pub use allocations::AllocationView;
pub use map::{BlockAt, SegmentAt};
pub use memory::{BlockColumns, Memory, SegmentColumns, SortColumns};
pub use page::{ClassName, Lane, MomentAt, MomentView, PAGE_SCHEMA, Page, RuleText, Served, ServedFrom, StepTicks};
pub use places::{FrameColumns, Places, TreeColumns};
pub use sites::SiteRow;
pub use timeline::Timeline;
pub use whatif::WhatIfCurve;

/// The differences between neighbours, the first from 0. Values beyond what a signed number holds are cut.
fn deltas(values: impl IntoIterator<Item = u64>) -> Vec<i64> {
    let mut before = 0_i64;
    let difference = |value: u64| {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        let difference = value - before;
        before = value;
        difference
    };
    values.into_iter().map(difference).collect()
}

/// The values of a column of differences.
#[must_use]
pub fn accumulated(deltas: &[i64]) -> Vec<i64> {
    let mut value = 0_i64;
    let mut add = |delta: &i64| {
        value = value.saturating_add(*delta);
        value
    };
    deltas.iter().map(&mut add).collect()
}

#[cfg(test)]
mod tests {
    use super::{accumulated, deltas};

    #[test]
    fn differences_add_up() {
        assert_eq!(deltas([5, 7, 0, u64::MAX]), [5, 2, -7, i64::MAX]);
        assert!(deltas([]).is_empty());
        assert_eq!(accumulated(&deltas([5, 7, 0, 1 << 62])), [5, 7, 0, 1 << 62]);
    }
}
