//! Counts, faults and limits.

use gpuheap_cuda::raw::{Code, DevicePtr};

use crate::support::*;

#[test]
fn a_call_fails_when_it_is_told_to_and_goes_well_again() {
    let _fresh = fresh();
    control("fail cuMemAlloc_v2 2 2; fail cuMemGetInfo_v2 1 999 2");
    let first = allocate(512);
    let mut address = DevicePtr(7);
    // SAFETY: `address` outlives the call.
    assert_eq!(unsafe { cuMemAlloc_v2(&raw mut address, 512) }, Code::OUT_OF_MEMORY);
    assert_eq!(address, DevicePtr(7), "a call that fails writes nothing");
    let third = allocate(512);
    assert_ne!(first, third);
    for code in [Code::UNKNOWN, Code::UNKNOWN, Code::SUCCESS] {
        // SAFETY: neither result is wanted.
        assert_eq!(unsafe { cuMemGetInfo_v2(std::ptr::null_mut(), std::ptr::null_mut()) }, code);
    }
    assert_eq!(calls("cuMemAlloc_v2"), 3);
    assert_eq!(calls("cuMemFree_v2"), 0);
}

#[test]
fn a_device_is_full_at_its_limit() {
    let _fresh = fresh();
    control("limit 0 8MiB");
    let first = allocate(6 << 20);
    let mut address = DevicePtr::NULL;
    // SAFETY: `address` outlives the call.
    assert_eq!(unsafe { cuMemAlloc_v2(&raw mut address, 4 << 20) }, Code::OUT_OF_MEMORY);
    let second = allocate(2 << 20);
    // SAFETY: both were allocated above.
    unsafe {
        good(cuMemFree_v2(first));
        good(cuMemFree_v2(second));
    }
    allocate(8 << 20);
}

#[test]
fn small_allocations_share_a_chunk_and_large_ones_have_their_own() {
    let _fresh = fresh();
    let before = free();
    let small: Vec<_> = (0..100).map(|_| allocate(1000)).collect();
    assert_eq!(before - free(), 2 << 20);
    let large = allocate((2 << 20) + 1);
    assert_eq!(before - free(), 6 << 20);
    // SAFETY: all were allocated above.
    unsafe {
        good(cuMemFree_v2(large));
        for address in small {
            good(cuMemFree_v2(address));
        }
    }
    assert_eq!(free(), before);
}

#[test]
fn a_function_calls_back_before_its_work() {
    extern "C" fn call_back() {
        // SAFETY: neither result is wanted.
        good(unsafe { cuMemGetInfo_v2(std::ptr::null_mut(), std::ptr::null_mut()) });
    }
    let _fresh = fresh();
    // SAFETY: the name ends in a zero byte.
    unsafe { gpuheap_fake_call_back(c"cuMemAlloc_v2".as_ptr(), Some(call_back)) };
    allocate(512);
    allocate(512);
    assert_eq!(calls("cuMemGetInfo_v2"), 2);
    // SAFETY: as above.
    unsafe { gpuheap_fake_call_back(c"cuMemAlloc_v2".as_ptr(), None) };
    allocate(512);
    assert_eq!(calls("cuMemGetInfo_v2"), 2);
}

#[test]
fn a_command_that_is_none_is_refused() {
    let _fresh = fresh();
    // SAFETY: the text ends in a zero byte.
    assert_eq!(unsafe { gpuheap_fake_control(c"explode".as_ptr()) }, 1);
}
