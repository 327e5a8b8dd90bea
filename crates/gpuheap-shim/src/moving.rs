//! What moving memory needs: the driver's functions as a table, the host's memory, and whether it is wanted at all.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use gpuheap_cuda::raw::DeviceId;
use gpuheap_cuda::{Api, Device, Driver, Error};

use crate::ahead::Ahead;
use crate::host::Mapped;
use crate::ledger::HOST;
use crate::locked::Locked;
use crate::moves::Kept;
use crate::pool::Pool;
use crate::state::lock;
use crate::{real, state};

/// See the head of the file.
pub(crate) struct Moving {
    driver: Driver,
    /// For what stands behind addresses.
    pub(crate) mapped: Pool<Mapped>,
    /// For what sleeps.
    pub(crate) locked: Pool<Locked>,
    pub(crate) numbers: Numbers,
    pub(crate) ahead: Ahead,
    /// Streams to move by.
    pub(crate) lanes: Kept,
    spills: bool,
}

/// Small numbers for chunks, used again.
#[derive(Default)]
pub(crate) struct Numbers {
    free: Mutex<Vec<u32>>,
    next: AtomicU32,
}

impl Numbers {
    pub(crate) fn take(&self) -> u32 {
        let free = lock(&self.free).pop();
        free.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn give(&self, number: u32) {
        lock(&self.free).push(number);
    }
}

/// Whether memory may move at all: in a run that does not forbid it.
pub(crate) fn is_wanted() -> bool {
    static WANTED: AtomicU8 = AtomicU8::new(2);
    match WANTED.load(Ordering::Relaxed) {
        2 => {
            let forbidden = std::env::var_os("GPUHEAP_MOVE").is_some_and(|value| value == "0");
            let wanted = run_folder().is_some() && !forbidden;
            WANTED.store(u8::from(wanted), Ordering::Relaxed);
            wanted
        }
        value => value == 1,
    }
}

/// The folder of the run.
pub(crate) fn run_folder() -> Option<PathBuf> {
    std::env::var_os("GPUHEAP_RUN").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// What there is of it in this process: nothing if it is not wanted, or if the driver cannot do it.
pub(crate) fn get() -> Option<&'static Moving> {
    static NONE: OnceLock<Option<Moving>> = OnceLock::new();
    #[cfg(test)]
    if let Some(own) = crate::rig::moving() {
        return Some(own);
    }
    if !is_wanted() {
        return NONE.get_or_init(|| None).as_ref();
    }
    state::get().moving.get_or_init(Moving::new).as_ref()
}

impl Moving {
    fn new() -> Option<Self> {
        // SAFETY: the driver's functions by its own names, from the handle of the driver, which stays.
        let driver = unsafe { Driver::attach(Path::new("libcuda-real.so"), real::find) }.ok()?;
        Some(Self::with(driver))
    }

    /// With a driver.
    pub(crate) fn with(driver: Driver) -> Self {
        Self {
            driver,
            mapped: Pool::default(),
            locked: Pool::default(),
            numbers: Numbers::default(),
            ahead: Ahead::default(),
            lanes: Kept::default(),
            spills: state::get().ledger.spill() > 0,
        }
    }

    /// The driver's functions.
    pub(crate) fn api(&self) -> &Api {
        self.driver.api()
    }

    /// A device.
    pub(crate) fn device(&self, device: DeviceId) -> Result<Device, Error> {
        self.driver.device(device)
    }

    /// Gives host memory back to the system that nobody uses and that the limit of spilled memory has no room for.
    pub(crate) fn keep_to_limit(&self) {
        self.mapped.trim(self.host_room());
    }

    /// What the limit of spilled memory has room for, with what is copied ahead.
    pub(crate) fn host_room(&self) -> u64 {
        let ledger = &state::get().ledger;
        ledger.spill().saturating_sub(ledger.used(HOST)).saturating_sub(self.ahead.host_bytes())
    }

    /// Whether the host may stand in for a device.
    pub(crate) fn spills(&self) -> bool {
        self.spills
    }
}
