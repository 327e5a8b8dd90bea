//! The driver under test.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap_cuda::{Context, Device, DeviceBuffer, Driver};

/// A driver with a device, for one test at a time: figures of free memory are the device's.
pub(crate) struct Bench {
    pub(crate) driver: Driver,
    pub(crate) device: Device,
    pub(crate) context: Context,
    _alone: MutexGuard<'static, ()>,
}

/// Opens the driver under test.
pub(crate) fn bench() -> Bench {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = path();
    // SAFETY: it is this workspace's driver for tests, or what whoever runs the suite says is a driver.
    let driver = unsafe { Driver::load_from(&path) }.unwrap_or_else(|error| panic!("{error}"));
    let device = driver.devices().unwrap().into_iter().next().expect("the driver has a device");
    let context = device.context().unwrap();
    warm_up(&context);
    Bench { driver, device, context, _alone: alone }
}

/// What a driver brings along when a context first copies and fills takes memory, which is none of the tests' business.
fn warm_up(context: &Context) {
    let memory = DeviceBuffer::new(context, 4 << 20).unwrap();
    context.fill(&memory, 0, 2 << 20, 1).unwrap();
    context.copy((&memory, 2 << 20), (&memory, 0), 2 << 20).unwrap();
    context.read(&memory, 0, &mut [0]).unwrap();
}

/// Where the driver under test is.
pub(crate) fn path() -> PathBuf {
    std::env::var_os("GPUHEAP_DRIVER").map_or_else(fake, PathBuf::from)
}

/// Cargo puts the library of a dependency beside the test program.
fn fake() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.parent().unwrap().join("libgpuheap_fakecuda.so");
    assert!(library.exists(), "{} is not there: name a driver by GPUHEAP_DRIVER", library.display());
    library
}

/// Text that both drivers compile, the one for tests by the kernels' names.
///
/// `gpuheap_fill(address, count, value)` writes words, `gpuheap_add` adds to them, `gpuheap_wait(flag, address, count)`
/// reads words until the flag is not zero.
pub(crate) const KERNELS: &str = include_str!("kernels.ptx");
