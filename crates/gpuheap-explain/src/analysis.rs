//! One device of a recording, analysed once, to be asked again and again.

use std::sync::Arc;

use gpuheap_record::{DeviceRecording, EventId, Recording};

use crate::error::Error;
use crate::explain::{Basis, Options, report};
use crate::lifetimes::Tick;
use crate::report::{Moment, MomentName, Report};

/// One device of a recording with all that is known of it: what pages, servers and exports ask.
///
/// [`explain`](crate::explain) gives the report alone and keeps nothing.
pub struct Analysis {
    pub(crate) recording: Arc<Recording>,
    pub(crate) basis: Basis,
    pub(crate) report: Report,
}

impl std::fmt::Debug for Analysis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Analysis").field("source", &self.report.source).finish_non_exhaustive()
    }
}

impl Analysis {
    /// Analyses one device of a recording.
    pub fn new(recording: Arc<Recording>, options: &Options) -> Result<Self, Error> {
        let basis = Basis::of(&recording, options.device)?;
        let report = report(&recording, &basis, options)?;
        Ok(Self { recording, basis, report })
    }

    /// The recording.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// The report.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The last tick: the number of events. Tick 0 is before the first event, tick `n` directly after event `n - 1`.
    #[must_use]
    pub fn last_tick(&self) -> u32 {
        self.basis.replay.last_tick().0
    }

    /// The moments that have a name, in the order of their ticks.
    #[must_use]
    pub fn moments(&self) -> Vec<(MomentName, u32)> {
        let tick = |moment: &Moment| {
            let event = moment.event.map_or(0, |event| event.saturating_add(1));
            u32::try_from(event).unwrap_or(u32::MAX).min(self.last_tick())
        };
        let mut moments = vec![
            (MomentName::Peak, tick(&self.report.peak)),
            (MomentName::PeakReserved, tick(&self.report.peak_reserved)),
        ];
        // Of moments at the same tick, the one that says more comes first.
        moments.extend(self.report.oom.as_ref().map(|oom| (MomentName::Oom, tick(&oom.moment))));
        moments.push((MomentName::End, self.last_tick()));
        moments.sort_by_key(|&(_, tick)| tick);
        moments
    }

    /// The tick of a named moment; `None` for an OOM that never was.
    #[must_use]
    pub fn tick_of(&self, name: MomentName) -> Option<u32> {
        self.moments().into_iter().find(|&(of, _)| of == name).map(|(_, tick)| tick)
    }

    /// The ends of the steps, as ticks.
    #[must_use]
    pub fn step_ticks(&self) -> Vec<u32> {
        self.basis.steps.ticks.iter().map(|tick| tick.0.min(self.last_tick())).collect()
    }

    /// Microseconds of Unix time at a tick; 0 where the recording has no times.
    #[must_use]
    pub fn time_us(&self, tick: u32) -> u64 {
        let times_us = self.device().map(|device| device.events.times_us()).unwrap_or_default();
        let event = Tick(tick).event().map_or(0, EventId::index);
        times_us.get(event.min(times_us.len().saturating_sub(1))).copied().unwrap_or(0)
    }

    /// Allocated and reserved bytes at a tick.
    #[must_use]
    pub fn counters(&self, tick: u32) -> (u64, u64) {
        let at = |column: &[u64]| column.get(Tick(tick).index()).or(column.last()).copied().unwrap_or(0);
        (at(&self.basis.replay.allocated), at(&self.basis.replay.reserved))
    }

    pub(crate) fn device(&self) -> Option<&DeviceRecording> {
        self.basis.device(&self.recording).ok()
    }
}
