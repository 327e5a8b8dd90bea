//! Calls through the shim and calls of the driver behind it, in turn.

use std::ffi::{CString, c_uint, c_void};
use std::path::Path;

use gpuheap_cuda::raw::{Code, DevicePtr, Function, Stream};
use gpuheap_cuda::{Driver, Module};

use crate::clock::{pair, pair_of_caller, say};

type Launch = unsafe extern "C" fn(
    Function,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Stream,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;
type Copy = unsafe extern "C" fn(DevicePtr, *const c_void, usize, Stream) -> Code;
type Take = unsafe extern "C" fn(*mut DevicePtr, usize) -> Code;
type Give = unsafe extern "C" fn(DevicePtr) -> Code;
type Fill = unsafe extern "C" fn(DevicePtr, u8, usize, Stream) -> Code;

/// With a driver that does nothing: nanoseconds of what the shim adds.
pub(crate) fn of_nothing(shim: &str, driver: &str) -> Result<(), String> {
    let (shim, driver) = (Library::open(shim)?, Library::open(driver)?);
    let mut values = [0_u64; 12];
    let mut parameters: Vec<*mut c_void> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
    let (parameters, none) = (parameters.as_mut_ptr(), std::ptr::null_mut());

    let launch = |library: &Library| -> Result<_, String> {
        // SAFETY: the function of that name has that signature.
        let call = unsafe { std::mem::transmute::<*mut c_void, Launch>(library.find("cuLaunchKernel")?) };
        Ok(move |count| {
            for number in 0..count as usize {
                let function = Function(0x5555_0000_0000 + number % 64 * 0x150);
                // SAFETY: a kernel of that driver, which reads nothing, with as many parameters as it says.
                let code = unsafe { call(function, 1, 1, 1, 32, 1, 1, 0, Stream::NULL, parameters, none) };
                assert!(code.is_success());
            }
        })
    };
    tell("cuLaunchKernel, 12 parameters", launch(&shim)?, launch(&driver)?);
    let copy = |library: &Library| -> Result<_, String> {
        // SAFETY: as above.
        let call = unsafe { std::mem::transmute::<*mut c_void, Copy>(library.find("cuMemcpyHtoDAsync_v2")?) };
        Ok(move |count| {
            for _ in 0..count {
                // SAFETY: nothing is copied.
                assert!(unsafe { call(DevicePtr(0), none.cast_const().cast(), 0, Stream::NULL) }.is_success());
            }
        })
    };
    tell("cuMemcpyHtoDAsync", copy(&shim)?, copy(&driver)?);
    let fill = |library: &Library| -> Result<_, String> {
        // SAFETY: as above.
        let call = unsafe { std::mem::transmute::<*mut c_void, Fill>(library.find("cuMemsetD8Async")?) };
        Ok(move |count| {
            for _ in 0..count {
                // SAFETY: nothing is written.
                assert!(unsafe { call(DevicePtr(0), 0, 0, Stream::NULL) }.is_success());
            }
        })
    };
    tell("cuMemsetD8Async", fill(&shim)?, fill(&driver)?);
    Ok(())
}

/// With a driver that does nothing: nanoseconds that the shim adds to taking memory and giving it back.
pub(crate) fn of_allocations(shim: &str, driver: &str) -> Result<(), String> {
    const CALLS: u32 = 1 << 16;
    let (shim, driver) = (Library::open(shim)?, Library::open(driver)?);
    let both = |library: &Library| -> Result<_, String> {
        // SAFETY: the function of that name has that signature.
        let take = unsafe { std::mem::transmute::<*mut c_void, Take>(library.find("cuMemAlloc_v2")?) };
        // SAFETY: as above.
        let give = unsafe { std::mem::transmute::<*mut c_void, Give>(library.find("cuMemFree_v2")?) };
        Ok(move |count| {
            for _ in 0..count {
                let mut address = DevicePtr(0);
                // SAFETY: a number is written to `address`.
                assert!(unsafe { take(&raw mut address, 4096) }.is_success());
                // SAFETY: nothing is there, and nobody uses it.
                assert!(unsafe { give(address) }.is_success());
            }
        })
    };
    let (with, without) = pair(both(&shim)?, both(&driver)?, CALLS);
    say("cuMemAlloc and cuMemFree: the shim adds", with - without);
    Ok(())
}

fn tell(name: &str, shim: impl FnMut(u32), driver: impl FnMut(u32)) {
    const CALLS: u32 = 1 << 20;
    let (with, without) = pair(shim, driver, CALLS);
    say(&format!("{name}: with the shim"), with);
    say(&format!("{name}: the shim adds"), with - without);
}

/// With the driver for tests: launches of a kernel that does nothing much, with the shim in times of those without.
pub(crate) fn of_tests(shim: &str, driver: &str) -> Result<(), String> {
    let (with, without) = on_the_driver_for_tests(shim, driver, 0)?;
    say("launches on the driver for tests: without the shim", without);
    say("launches on the driver for tests: with / without", with / without);
    Ok(())
}

/// The same in a run within a budget, while other memory is on the host: nanoseconds that the shim adds to a launch that
/// names a piece, the search for the program's period included.
pub(crate) fn of_spilled(shim: &str, driver: &str) -> Result<(), String> {
    let (with, without) = on_the_driver_for_tests(shim, driver, 12)?;
    say("launches while some memory is on the host: the shim adds", with - without);
    Ok(())
}

/// Nanoseconds of a launch with the shim and without, of a kernel that names one of so many pieces of 8 MiB.
fn on_the_driver_for_tests(shim: &str, driver: &str, pieces: usize) -> Result<(f64, f64), String> {
    const LAUNCHES: u32 = 2_000;
    let bare = Library::open(driver)?;
    // SAFETY: this workspace's shim, with this workspace's driver for tests behind it.
    let through = unsafe { Driver::load_from(Path::new(shim)) }.map_err(|error| error.to_string())?;
    let failed = |error: gpuheap_cuda::Error| error.to_string();
    let device = through.devices().map_err(failed)?.remove(0);
    let context = device.context().map_err(failed)?;
    let module =
        Module::from_ptx(&context, include_str!("../../../gpuheap-cuda/tests/it/kernels.ptx")).map_err(failed)?;
    let kernel = module.kernel("gpuheap_fill").map_err(failed)?;
    let stream = gpuheap_cuda::Stream::new(&context).map_err(failed)?;
    let _current = context.enter().map_err(failed)?;
    let mut taken = Vec::with_capacity(pieces);
    for _ in 0..pieces {
        let mut address = DevicePtr(0);
        // SAFETY: a number is written to `address`.
        let code = unsafe { (through.api().cuMemAlloc_v2)(&raw mut address, 8 << 20) };
        taken.push(code.is_success().then_some(address.0 as u64).ok_or("A piece was refused")?);
    }
    // The first half is on the device whatever the budget: what is on the host would come when it is named.
    taken.truncate(pieces.div_ceil(2));
    let addresses = if taken.is_empty() { vec![0] } else { taken };
    let (mut count, mut value) = (0_u64, 0_u32);
    let (function, handle) = (kernel.handle(), stream.handle());
    let mut launch = |call: Launch| {
        let (stream, addresses) = (&stream, &addresses);
        let (count_at, value_at): (*mut c_void, *mut c_void) = ((&raw mut count).cast(), (&raw mut value).cast());
        move |launches| {
            for number in 0..launches as usize {
                let mut address = addresses[number % addresses.len()];
                let mut parameters = [(&raw mut address).cast(), count_at, value_at];
                let (parameters, none) = (parameters.as_mut_ptr(), std::ptr::null_mut());
                // SAFETY: the kernel's own parameters; it writes no words.
                let code = unsafe { call(function, 1, 1, 1, 32, 1, 1, 0, handle, parameters, none) };
                assert!(code.is_success());
            }
            assert!(stream.synchronize().is_ok());
        }
    };
    // SAFETY: the function of that name has that signature.
    let without = unsafe { std::mem::transmute::<*mut c_void, Launch>(bare.find("cuLaunchKernel")?) };
    // The threads of the driver for tests run the kernels, and one of the shim plans: what a launch costs is the caller's.
    Ok(pair_of_caller(launch(through.api().cuLaunchKernel), launch(without), LAUNCHES))
}

/// An opened library, which stays open.
struct Library(*mut c_void);

impl Library {
    fn open(path: &str) -> Result<Self, String> {
        let name = CString::new(path).map_err(|error| error.to_string())?;
        // SAFETY: a driver or the shim, whose constructors run in every program that uses them.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() { Err(format!("Failed to open `{path}`")) } else { Ok(Self(handle)) }
    }

    fn find(&self, name: &str) -> Result<*mut c_void, String> {
        let text = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: the library is open, and the name ends in a zero byte.
        let found = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        if found.is_null() { Err(format!("There is no `{name}`")) } else { Ok(found) }
    }
}
