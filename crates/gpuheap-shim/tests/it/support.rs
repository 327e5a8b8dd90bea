//! The shim as the driver under test of the conformance suite.

use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use gpuheap_cuda::{Context, Device, Driver};

use crate::rig::{self, Rig};

/// A driver with a device, for one test at a time.
pub(crate) struct Bench {
    pub(crate) driver: Driver,
    pub(crate) device: Device,
    pub(crate) context: Context,
    _alone: MutexGuard<'static, ()>,
}

pub(crate) fn bench() -> Bench {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = LOADED.1.clone();
    let device = driver.devices().unwrap().remove(0);
    let context = device.context().unwrap();
    Bench { driver, device, context, _alone: alone }
}

/// The shim, loaded once: it stays in the process when its folder is gone, and the loader knows it by its path.
static LOADED: LazyLock<(PathBuf, Driver)> = LazyLock::new(|| {
    let rig = Rig::new();
    let path = rig.driver_folder(rig::Driver::Shim).join("libcuda.so.1");
    // SAFETY: it is this workspace's shim, with this workspace's driver for tests behind it.
    let driver = unsafe { Driver::load_from(&path) }.unwrap();
    (path, driver)
});

pub(crate) fn path() -> PathBuf {
    LOADED.0.clone()
}

pub(crate) const KERNELS: &str = include_str!("../../../gpuheap-cuda/tests/it/kernels.ptx");
