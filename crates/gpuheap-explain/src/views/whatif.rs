//! Reserved memory through time under other settings.

use gpuheap_alloc::torch::{Config, parse_conf};
use gpuheap_record::Bytes;
use serde::Serialize;

use crate::analysis::Analysis;
use crate::error::Error;
use crate::report::{WhatIf, WhatIfRole};
use crate::search::{WhatIfOptions, in_parallel, search};
use crate::views::deltas;
use crate::whatif::{Change, Runner};

/// The parts of the recording that a curve has values for.
const PARTS: u64 = 400;

/// Reserved memory through time under some settings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct WhatIfCurve {
    /// The settings as in the environment variable; empty for stock settings.
    pub conf: String,
    /// Why they are here.
    pub role: WhatIfRole,
    /// The most that was reserved.
    pub peak_reserved_bytes: Bytes,
    /// The most that was allocated.
    pub peak_allocated_bytes: Bytes,
    /// Whether the program ran out of memory: the curve ends there.
    pub oom: bool,
    /// Whether the figures are exact; else they are estimates.
    pub exact: bool,
    /// Whether a change to these settings is recommended.
    pub best: bool,
    /// The ticks, ascending.
    pub ticks_delta: Vec<i64>,
    /// Reserved bytes.
    pub reserved_delta: Vec<i64>,
}

impl Analysis {
    /// What the search for other settings tries, and what each would have reserved through time: the recorded settings
    /// first. `progress` is told how many replays of how many are done; it is called from several threads.
    pub fn whatif_curves(&self, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Vec<WhatIfCurve>, Error> {
        let recording = self.recording();
        let device = self.basis.device(recording)?;
        if crate::frames::is_of_driver(recording) {
            return Ok(Vec::new());
        }
        let runner = Runner::new(recording, device, &self.basis.replay);
        let found = search(&runner, &self.basis.marks, &WhatIfOptions::default(), false, progress)?;
        let best = found.best.as_deref();
        Ok(in_parallel(&found.rows, &|_, _| {}, |row| {
            let is_best = row.role != WhatIfRole::Recorded && best == Some(row.conf.as_str());
            self.curve(&runner, row, is_best)
        }))
    }

    fn curve(&self, runner: &Runner<'_>, row: &WhatIf, best: bool) -> WhatIfCurve {
        let mut thinned = Thinned::new(self.last_tick());
        if row.role == WhatIfRole::Recorded {
            for (tick, &reserved) in self.basis.replay.reserved.iter().enumerate() {
                thinned.add(tick as u64, reserved);
            }
        } else {
            let config = parse_conf(&row.conf).unwrap_or_else(|_| Config::default());
            runner.run_watched(&config, row.limit_bytes.map(Bytes::get), Change::default(), &mut |event, reserved| {
                thinned.add(event.map_or(0, |event| u64::from(event.get()) + 1), reserved);
            });
        }
        let points = thinned.finish();
        WhatIfCurve {
            conf: row.conf.clone(),
            role: row.role,
            peak_reserved_bytes: row.peak_reserved_bytes,
            peak_allocated_bytes: row.peak_allocated_bytes,
            oom: row.oom,
            exact: row.exact,
            best,
            ticks_delta: deltas(points.iter().map(|&(tick, _)| tick)),
            reserved_delta: deltas(points.iter().map(|&(_, reserved)| reserved)),
        }
    }
}

/// A curve of which each part of the recording keeps its most and its last value.
struct Thinned {
    ticks: u64,
    part: u64,
    most: Option<(u64, u64)>,
    last: Option<(u64, u64)>,
    points: Vec<(u64, u64)>,
}

impl Thinned {
    fn new(last_tick: u32) -> Self {
        Self { ticks: u64::from(last_tick) + 1, part: 0, most: None, last: None, points: Vec::new() }
    }

    /// A value; ticks never fall.
    fn add(&mut self, tick: u64, value: u64) {
        let part = tick * PARTS / self.ticks;
        if part != self.part {
            self.flush();
            self.part = part;
        }
        if self.most.is_none_or(|(_, most)| value > most) {
            self.most = Some((tick, value));
        }
        self.last = Some((tick, value));
    }

    fn flush(&mut self) {
        let most = self.most.take();
        let last = self.last.take();
        self.points.extend(most);
        if last != most {
            self.points.extend(last);
        }
    }

    fn finish(mut self) -> Vec<(u64, u64)> {
        self.flush();
        self.points
    }
}

#[cfg(test)]
mod tests {
    use super::Thinned;

    #[test]
    fn the_peak_and_the_end_of_each_part_are_kept() {
        let mut thinned = Thinned::new(40_000);
        for tick in 0..=40_000 {
            thinned.add(tick, if tick == 12_345 { 900 } else { tick / 100 });
        }
        let points = thinned.finish();
        assert!(points.contains(&(12_345, 900)) && points.contains(&(40_000, 400)), "{points:?}");
        assert!(points.len() < 1000 && points.is_sorted_by_key(|point| point.0));
    }
}
