//! Errors: of opening a driver, and of calls that ask for what is not there.

use std::ffi::c_void;
use std::path::Path;

use gpuheap_cuda::raw::{self, Code, DevicePtr};
use gpuheap_cuda::{DeviceBuffer, DeviceMemory, Driver, Error};

use crate::support::bench;

#[test]
fn a_library_that_is_not_there_or_no_driver_is_told() {
    // SAFETY: there is no such library.
    let missing = unsafe { Driver::load_from(Path::new("/nowhere/libcuda.so.1")) }.unwrap_err();
    assert!(missing.to_string().starts_with("Failed to open the CUDA driver `/nowhere/libcuda.so.1`: "), "{missing}");
    assert!(missing.hint().unwrap().contains("driver"));
    // SAFETY: this library's constructors do no harm, and no function of it is called: it has none of the driver's.
    let other = unsafe { Driver::load_from(Path::new("libm.so.6")) }.unwrap_err();
    assert_eq!(other, Error::Function { path: "libm.so.6".into(), function: "cuInit" });
    // SAFETY: no library can be meant.
    assert_eq!(unsafe { Driver::load_from(Path::new("lib\0cuda")) }.unwrap_err(), Error::Text);
}

#[test]
fn freeing_what_is_not_there_is_an_error_and_harms_nothing() {
    let bench = bench();
    let api = bench.driver.api();
    let memory = DeviceBuffer::new(&bench.context, 4 << 20).unwrap();
    let inside = DevicePtr(memory.address().0 + 512);
    let mut popped = raw::Context::NULL;
    // SAFETY: the context is retained.
    assert!(unsafe { (api.cuCtxPushCurrent_v2)(bench.context.handle()) }.is_success());
    // SAFETY: no start of an allocation: the driver refuses.
    assert_eq!(unsafe { (api.cuMemFree_v2)(inside) }, Code::INVALID_VALUE);
    // SAFETY: as above.
    assert_eq!(unsafe { (api.cuMemFree_v2)(DevicePtr(0x1234_5000)) }, Code::INVALID_VALUE);
    // SAFETY: freeing nothing is nothing.
    assert!(unsafe { (api.cuMemFree_v2)(DevicePtr::NULL) }.is_success());
    // SAFETY: `popped` outlives the call.
    assert!(unsafe { (api.cuCtxPopCurrent_v2)(&raw mut popped) }.is_success());
    assert_eq!(popped, bench.context.handle());
    bench.context.fill(&memory, 0, 4 << 20, 1).unwrap();
}

#[test]
fn without_a_context_there_is_no_memory() {
    let bench = bench();
    let api = bench.driver.api();
    let mut address = DevicePtr::NULL;
    // SAFETY: `address` outlives the call; this thread has no context.
    assert_eq!(unsafe { (api.cuMemAlloc_v2)(&raw mut address, 512) }, Code::INVALID_CONTEXT);
    let (mut free, mut total) = (0, 0);
    // SAFETY: both outlive the call.
    assert_eq!(unsafe { (api.cuMemGetInfo_v2)(&raw mut free, &raw mut total) }, Code::INVALID_CONTEXT);
}

#[test]
fn results_that_nobody_wants_are_left_out() {
    let bench = bench();
    let api = bench.driver.api();
    let memory = DeviceBuffer::new(&bench.context, 3000).unwrap();
    // Addresses are asked about in a context.
    let _current = bench.context.enter().unwrap();
    let none: *mut c_void = std::ptr::null_mut();
    let (mut base, mut bytes) = (DevicePtr::NULL, 0);
    let inside = DevicePtr(memory.address().0 + 100);
    // SAFETY: `base` outlives the call; the other result may be left out.
    assert!(unsafe { (api.cuMemGetAddressRange_v2)(&raw mut base, none.cast(), inside) }.is_success());
    // SAFETY: as above.
    assert!(unsafe { (api.cuMemGetAddressRange_v2)(none.cast(), &raw mut bytes, inside) }.is_success());
    assert_eq!((base, bytes), (memory.address(), 3000));
    let mut kind = 0_u32;
    let place: *mut c_void = (&raw mut kind).cast();
    // SAFETY: the attribute has 32 bits.
    let code = unsafe { (api.cuPointerGetAttribute)(place, raw::pointer_attribute::MEMORY_TYPE, inside) };
    assert!(code.is_success());
    assert_eq!(kind, raw::memory_type::DEVICE);
}
