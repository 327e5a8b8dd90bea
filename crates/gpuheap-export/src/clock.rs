//! When every tick is, in nanoseconds.

use gpuheap_explain::Analysis;

/// Times further from the start than this are cut (52 days): beyond, the numbers of JSON do not hold nanoseconds.
const MOST_NS: u64 = 1 << 52;
/// A start after this is cut, so that sums stay within what signed numbers hold.
const LAST_START_NS: u64 = 1 << 62;

/// The times of all ticks of a device.
///
/// Recordings count microseconds, and neighbours may carry the same one: each tick is at least a nanosecond after the
/// one before, so that no viewer changes their order. Where a recording has no times, event `n` is `n` microseconds
/// after the start.
pub(crate) struct Clock {
    /// Whether the recording has times.
    pub(crate) is_timed: bool,
    /// Nanoseconds of Unix time of tick 0; 0 where the recording has no times.
    pub(crate) start_ns: u64,
    /// Nanoseconds since tick 0, one a tick.
    offsets_ns: Vec<u64>,
}

impl Clock {
    pub(crate) fn new(analysis: &Analysis) -> Self {
        let start_us = analysis.time_us(0);
        let is_timed = start_us > 0;
        let mut latest = None;
        let offsets_ns = (0..=analysis.last_tick())
            .map(|tick| {
                let us = if is_timed { analysis.time_us(tick).saturating_sub(start_us) } else { u64::from(tick) };
                let ns = us.saturating_mul(1000).min(MOST_NS).max(latest.map_or(0, |latest: u64| latest + 1));
                latest = Some(ns);
                ns
            })
            .collect();
        Self { is_timed, start_ns: start_us.saturating_mul(1000).min(LAST_START_NS), offsets_ns }
    }

    /// Nanoseconds since tick 0.
    pub(crate) fn offset_ns(&self, tick: u32) -> u64 {
        self.offsets_ns.get(tick as usize).or(self.offsets_ns.last()).copied().unwrap_or(0)
    }

    /// Milliseconds since tick 0.
    pub(crate) fn offset_ms(&self, tick: u32) -> f64 {
        self.offset_ns(tick) as f64 / 1e6
    }

    /// Nanoseconds since tick 0 of the last tick.
    pub(crate) fn duration_ns(&self) -> u64 {
        self.offsets_ns.last().copied().unwrap_or(0)
    }

    /// What to add to a name where the times are none.
    pub(crate) fn note(&self) -> &'static str {
        if self.is_timed { "" } else { " (no times recorded: event n is shown at n µs)" }
    }
}
