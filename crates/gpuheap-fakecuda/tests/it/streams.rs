//! Default streams, and streams that end.

use std::ffi::c_void;

use gpuheap_cuda::raw::{Code, DevicePtr, Event, Stream};

use crate::support::*;

const BLOCKING: u32 = 0;
const NON_BLOCKING: u32 = 1;

#[test]
fn the_default_stream_waits_for_blocking_streams_and_they_for_it() {
    let _fresh = fresh();
    let (first, second) = (stream(BLOCKING), stream(BLOCKING));
    let alone = stream(NON_BLOCKING);
    let memory = allocate(512);
    let gate = Gate::new();
    gate.stop(first);
    // SAFETY: the memory stays until the end.
    unsafe {
        good(cuMemsetD8Async(memory, 1, 512, Stream::NULL));
        good(cuMemsetD8Async(memory, 2, 512, second));
        good(cuMemsetD8Async(memory, 3, 512, alone));
        good(cuStreamSynchronize(alone));
        for waiting in [first, Stream::NULL, Stream::LEGACY, second] {
            assert_eq!(cuStreamQuery(waiting), Code::NOT_READY);
        }
        gate.open();
        good(cuStreamSynchronize(second));
    }
    assert_eq!(byte(memory), 2, "the last that was done");
}

#[test]
fn a_thread_s_own_default_stream_is_another_one() {
    let fresh = fresh();
    let memory = allocate(512);
    let gate = Gate::new();
    gate.stop(Stream::PER_THREAD);
    // SAFETY: the memory stays until the end.
    unsafe {
        good(cuMemsetD8Async_ptsz(memory, 1, 512, Stream::NULL));
        assert_eq!(cuStreamQuery_ptsz(Stream::NULL), Code::NOT_READY);
        assert_eq!(cuStreamQuery(Stream::PER_THREAD), Code::NOT_READY);
        // Another thread's is free.
        std::thread::scope(|scope| {
            let context = fresh.context;
            scope.spawn(move || {
                good(cuCtxSetCurrent(context));
                good(cuMemsetD8Async_ptsz(memory, 2, 512, Stream::NULL));
                good(cuStreamSynchronize_ptsz(Stream::NULL));
            });
        });
        // The context's waits for both.
        good(cuMemsetD8Async(memory, 3, 512, Stream::NULL));
        assert_eq!(cuStreamQuery(Stream::NULL), Code::NOT_READY);
        gate.open();
        good(cuStreamSynchronize(Stream::NULL));
    }
    assert_eq!(byte(memory), 3);
}

#[test]
fn a_destroyed_stream_still_does_what_it_was_given() {
    let _fresh = fresh();
    let (first, second) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    let memory = allocate(512);
    let gate = Gate::new();
    gate.stop(first);
    let mut event = Event::NULL;
    // SAFETY: the memory stays until the end.
    unsafe {
        good(cuEventCreate(&raw mut event, 2));
        good(cuMemsetD8Async(memory, 9, 512, first));
        good(cuEventRecord(event, first));
        good(cuStreamDestroy_v2(first));
        assert_eq!(cuStreamDestroy_v2(first), Code::INVALID_HANDLE);
        assert_eq!(cuStreamSynchronize(first), Code::INVALID_HANDLE);
        good(cuStreamWaitEvent(second, event, 0));
        assert_eq!(cuStreamQuery(second), Code::NOT_READY);
        gate.open();
        good(cuStreamSynchronize(second));
    }
    assert_eq!(byte(memory), 9);
}

#[test]
fn freeing_waits_for_what_may_use_the_memory() {
    let _fresh = fresh();
    let stream = stream(NON_BLOCKING);
    let memory = allocate(4 << 20);
    let mut found = [0_u8; 1];
    let gate = Gate::new();
    gate.stop(stream);
    std::thread::scope(|scope| {
        // SAFETY: the memory and the array stay until the work is done.
        unsafe {
            good(cuMemsetD8Async(memory, 4, 4 << 20, stream));
            scope.spawn(|| gate.open());
            good(cuMemFree_v2(memory));
            good(cuStreamQuery(stream));
        }
    });
    // SAFETY: it is gone: refused. A host array that is not locked is written before the call returns.
    let code = unsafe { cuMemcpyDtoHAsync_v2(found.as_mut_ptr().cast::<c_void>(), memory, 1, stream) };
    assert_eq!((code, found), (Code::INVALID_VALUE, [0]));
}

#[test]
fn a_pool_keeps_memory_until_a_synchronisation_and_memory_of_any_kind_may_be_freed_in_order() {
    let _fresh = fresh();
    let stream = stream(NON_BLOCKING);
    let before = free();
    let mut memory = DevicePtr::NULL;
    // SAFETY: `memory` outlives the call.
    good(unsafe { cuMemAllocAsync(&raw mut memory, 1000, stream) });
    assert_eq!(before - free(), 32 << 20);
    let linear = allocate(4 << 20);
    // SAFETY: both were allocated above.
    unsafe {
        good(cuMemFreeAsync(memory, stream));
        assert_eq!(cuMemFreeAsync(memory, stream), Code::INVALID_VALUE);
        good(cuMemFreeAsync(linear, stream));
        good(cuStreamSynchronize(stream));
    }
    assert_eq!(free(), before);
}
