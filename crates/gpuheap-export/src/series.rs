//! Memory through time, for counters.

use gpuheap_explain::{Analysis, Class, accumulated};

/// Counters at some ticks.
pub(crate) struct Series {
    /// The ticks, ascending.
    pub(crate) ticks: Vec<u32>,
    pub(crate) allocated: Vec<u64>,
    pub(crate) reserved: Vec<u64>,
    /// The classes that ever have memory. Together they are the allocated bytes.
    pub(crate) classes: Vec<(Class, Vec<u64>)>,
}

impl Series {
    /// Every tick if there are no more than about `points`; else the least and the most of each part of the recording.
    pub(crate) fn new(analysis: &Analysis, points: usize) -> Self {
        let timeline = analysis.timeline(0, analysis.last_tick(), points);
        let values = |deltas: &[i64]| -> Vec<u64> {
            accumulated(deltas).into_iter().map(|value| u64::try_from(value).unwrap_or(0)).collect()
        };
        let ticks: Vec<u32> =
            values(&timeline.ticks_delta).into_iter().map(|tick| u32::try_from(tick).unwrap_or(u32::MAX)).collect();
        let (allocated, reserved) = ticks.iter().map(|&tick| analysis.counters(tick)).unzip();
        let classes = Class::ALL.into_iter().zip(&timeline.classes_delta);
        let classes = classes
            .filter(|(_, deltas)| deltas.iter().any(|&delta| delta != 0))
            .map(|(class, deltas)| (class, values(deltas)))
            .collect();
        Self { ticks, allocated, reserved, classes }
    }
}
