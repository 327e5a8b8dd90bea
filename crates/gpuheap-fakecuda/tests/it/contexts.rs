//! Contexts: which is current, and what their end takes away.

use std::ffi::c_int;

use gpuheap_cuda::raw::{Code, Context, DevicePtr};

use crate::support::*;

#[test]
fn a_primary_context_goes_with_the_last_that_retained_it_and_takes_its_memory_along() {
    let fresh = fresh();
    let before = free();
    let address = allocate(4 << 20);
    let mut again = Context::NULL;
    // SAFETY: `again` outlives the call.
    good(unsafe { cuDevicePrimaryCtxRetain(&raw mut again, 0) });
    assert_eq!(again, fresh.context);
    // SAFETY: retained twice and more, as often as tests before did.
    while unsafe { cuDevicePrimaryCtxRelease_v2(0) }.is_success() {}
    // SAFETY: the context is gone: refused.
    assert_eq!(unsafe { cuMemFree_v2(address) }, Code::CONTEXT_IS_DESTROYED);
    // SAFETY: takes nothing.
    assert_eq!(unsafe { cuCtxSynchronize() }, Code::CONTEXT_IS_DESTROYED);
    // SAFETY: `again` outlives the call.
    good(unsafe { cuDevicePrimaryCtxRetain(&raw mut again, 0) });
    assert_eq!(free(), before);
    // SAFETY: from before the end: refused.
    assert_eq!(unsafe { cuMemFree_v2(address) }, Code::INVALID_VALUE);
}

#[test]
fn each_thread_has_its_own_stack_of_contexts() {
    let fresh = fresh();
    let mut other = Context::NULL;
    // SAFETY: `other` outlives the call.
    good(unsafe { cuCtxCreate_v2(&raw mut other, 0, 1) });
    let current = || {
        let mut current = Context::NULL;
        // SAFETY: `current` outlives the call.
        good(unsafe { cuCtxGetCurrent(&raw mut current) });
        current
    };
    assert_eq!(current(), other);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(current(), Context::NULL));
    });
    // SAFETY: created above.
    good(unsafe { cuCtxDestroy_v2(other) });
    assert_eq!(current(), fresh.context);
    // SAFETY: it is gone: refused.
    assert_eq!(unsafe { cuCtxPushCurrent_v2(other) }, Code::CONTEXT_IS_DESTROYED);
    let mut count: c_int = 0;
    // SAFETY: `count` outlives the call.
    good(unsafe { cuDeviceGetCount(&raw mut count) });
    assert_eq!(count, 2);
}

#[test]
fn a_child_of_the_process_has_no_driver() {
    let _fresh = fresh();
    // SAFETY: the child calls the driver, whose lock nobody holds, and ends at once.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let mut address = DevicePtr::NULL;
        // SAFETY: `address` outlives the call.
        let refused = unsafe { cuMemAlloc_v2(&raw mut address, 512) } == Code::NOT_INITIALIZED;
        // SAFETY: takes a number.
        let started = unsafe { cuInit(0) } == Code::NOT_INITIALIZED;
        // SAFETY: ends the child without running what the parent registered for its own end.
        unsafe { libc::_exit(i32::from(!(refused && started))) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    allocate(512);
}
