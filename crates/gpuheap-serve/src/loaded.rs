//! A recording in memory, ready to be asked.

use std::sync::Arc;

use axum::body::Bytes;
use gpuheap_explain::{Analysis, Diff, Error as ExplainError, MomentView, Served, Timeline};

/// A recording in memory with the analysis of each of its devices.
pub(crate) struct Loaded {
    devices: Vec<Device>,
    /// About how many bytes it takes.
    cost: u64,
}

/// One device, analysed.
pub(crate) struct Device {
    pub(crate) served: Served,
    /// The page's data, compressed.
    pub(crate) page: Bytes,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Loaded").field("cost", &self.cost).finish_non_exhaustive()
    }
}

impl Loaded {
    pub(crate) fn new(devices: Vec<Device>, cost: u64) -> Self {
        let pages = devices.iter().map(|device| device.page.len() as u64).sum::<u64>();
        Self { devices, cost: cost + pages }
    }

    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    pub(crate) fn page(&self, device: usize) -> Bytes {
        self.devices[device].page.clone()
    }

    pub(crate) fn moment(&self, device: usize, tick: u32) -> Result<MomentView, ExplainError> {
        self.devices[device].served.moment(tick)
    }

    pub(crate) fn last_tick(&self, device: usize) -> u32 {
        self.analysis(device).last_tick()
    }

    pub(crate) fn timeline(&self, device: usize, from: u32, to: u32, points: usize) -> Timeline {
        self.analysis(device).timeline(from, to, points)
    }

    /// What changed from one device to another.
    pub(crate) fn diff(before: (&Self, usize), after: (&Self, usize)) -> Diff {
        before.0.analysis(before.1).diff(after.0.analysis(after.1))
    }

    pub(crate) fn analysis(&self, device: usize) -> &Arc<Analysis> {
        self.devices[device].served.analysis()
    }
}
