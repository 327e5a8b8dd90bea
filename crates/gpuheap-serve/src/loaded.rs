//! A recording in memory, ready to be asked.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use axum::body::Bytes;
use gpuheap_explain::{Diff, Error as ExplainError, MomentView, Options, Served, Timeline};
use gpuheap_record::Recording;

/// A recording in memory with the analysis of each of its devices.
pub(crate) struct Loaded {
    recording: Arc<Recording>,
    devices: Vec<Device>,
    /// About how many bytes it takes.
    cost: u64,
}

/// One device, analysed.
pub(crate) struct Device {
    pub(crate) options: Options,
    pub(crate) served: RwLock<Served>,
    /// The page's data, compressed.
    pub(crate) page: Bytes,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Loaded").field("cost", &self.cost).finish_non_exhaustive()
    }
}

impl Loaded {
    pub(crate) fn new(recording: Arc<Recording>, devices: Vec<Device>, cost: u64) -> Self {
        let pages = devices.iter().map(|device| device.page.len() as u64).sum::<u64>();
        Self { recording, devices, cost: cost + pages }
    }

    pub(crate) fn recording(&self) -> &Arc<Recording> {
        &self.recording
    }

    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    pub(crate) fn page(&self, device: usize) -> Bytes {
        self.devices[device].page.clone()
    }

    pub(crate) fn options_of(&self, device: usize) -> Options {
        self.devices[device].options.clone()
    }

    pub(crate) fn moment(&self, device: usize, tick: u32) -> Result<MomentView, ExplainError> {
        self.write(device).moment(tick)
    }

    pub(crate) fn last_tick(&self, device: usize) -> u32 {
        self.read(device).analysis().last_tick()
    }

    pub(crate) fn timeline(&self, device: usize, from: u32, to: u32, points: usize) -> Timeline {
        self.read(device).analysis().timeline(from, to, points)
    }

    /// What changed from one device to another.
    pub(crate) fn diff(before: (&Self, usize, u32), after: (&Self, usize, u32)) -> Diff {
        if before.2 == after.2 {
            let device = before.0.read(before.1);
            return device.analysis().diff(device.analysis());
        }
        // Always in the order of the ids: two that wait for each other would wait for ever.
        let (one, other);
        if before.2 < after.2 {
            one = before.0.read(before.1);
            other = after.0.read(after.1);
        } else {
            other = after.0.read(after.1);
            one = before.0.read(before.1);
        }
        one.analysis().diff(other.analysis())
    }

    fn read(&self, device: usize) -> RwLockReadGuard<'_, Served> {
        self.devices[device].served.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, device: usize) -> RwLockWriteGuard<'_, Served> {
        self.devices[device].served.write().unwrap_or_else(PoisonError::into_inner)
    }
}
