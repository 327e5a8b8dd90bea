//! Errors that stay, and kernels of tests.

use std::ffi::{CString, c_void};

use gpuheap_cuda::raw::{Code, DevicePtr, Function, Module, Stream};
use gpuheap_fakecuda::FakeLaunch;

use crate::support::*;

fn kernel(text: &str, name: &str) -> Function {
    let (mut module, mut function) = (Module::NULL, Function::NULL);
    let (text, name) = (CString::new(text).unwrap(), CString::new(name).unwrap());
    // SAFETY: all outlive the calls, the texts end in zero bytes.
    unsafe {
        good(cuModuleLoadData(&raw mut module, text.as_ptr()));
        good(cuModuleGetFunction(&raw mut function, module, name.as_ptr()));
    }
    function
}

fn launch(function: Function, mut arguments: Vec<*mut c_void>) -> Code {
    let none = std::ptr::null_mut();
    // SAFETY: the arguments are the kernel's.
    unsafe { cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, Stream::NULL, arguments.as_mut_ptr(), none) }
}

#[test]
fn a_kernel_that_reaches_for_what_is_not_there_spoils_its_context_and_no_other() {
    let fresh = fresh();
    let fill = kernel(
        ".version 7.0\n.visible .entry gpuheap_fill(.param .u64 a, .param .u64 b, .param .u32 c) { ret; }",
        "gpuheap_fill",
    );
    let memory = allocate(4 << 20);
    let (mut address, mut count, mut value) = (memory.0, 1 << 21, 5_u32);
    let arguments: Vec<*mut c_void> = vec![(&raw mut address).cast(), (&raw mut count).cast(), (&raw mut value).cast()];
    good(launch(fill, arguments));
    // SAFETY: takes nothing.
    assert_eq!(unsafe { cuCtxSynchronize() }, Code::ILLEGAL_ADDRESS);
    let mut other = DevicePtr::NULL;
    // SAFETY: refused, like all else in this context from now on.
    unsafe {
        assert_eq!(cuMemAlloc_v2(&raw mut other, 512), Code::ILLEGAL_ADDRESS);
        assert_eq!(cuMemFree_v2(memory), Code::ILLEGAL_ADDRESS);
        assert_eq!(cuStreamQuery(Stream::NULL), Code::ILLEGAL_ADDRESS);
    }
    let mut context = gpuheap_cuda::raw::Context::NULL;
    // SAFETY: `context` outlives the calls.
    unsafe {
        good(cuDevicePrimaryCtxRetain(&raw mut context, 1));
        good(cuCtxSetCurrent(context));
        allocate(512);
        good(cuDevicePrimaryCtxReset_v2(0));
        good(cuCtxSetCurrent(fresh.context));
    }
    allocate(512);
}

#[test]
fn memory_that_is_freed_before_the_stream_comes_to_it_is_an_illegal_address() {
    let _fresh = fresh();
    let stream = stream(1);
    let gate = Gate::new();
    let mut memory = DevicePtr::NULL;
    // SAFETY: `memory` outlives the call.
    good(unsafe { cuMemAllocAsync(&raw mut memory, 4 << 20, stream) });
    let other = crate::support::stream(1);
    gate.stop(other);
    // SAFETY: wrong on purpose: the other stream comes to it after the memory is gone.
    unsafe {
        good(cuMemsetD8Async(memory, 1, 4 << 20, other));
        good(cuMemFreeAsync(memory, stream));
        good(cuStreamSynchronize(stream));
        gate.open();
        assert_eq!(cuStreamSynchronize(other), Code::ILLEGAL_ADDRESS);
    }
}

#[test]
fn a_kernel_of_a_test_gets_its_size_and_its_arguments() {
    extern "C" fn store(launch: *const FakeLaunch) {
        // SAFETY: the driver gives a launch of two arguments, as the head below says.
        unsafe {
            let launch = &*launch;
            let address: *mut u32 = std::ptr::with_exposed_provenance_mut(*(*launch.arguments).cast::<usize>());
            let value = *(*launch.arguments.add(1)).cast::<u16>();
            *address = u32::from(value) + launch.grid[0] * launch.block[0];
        }
    }
    let _fresh = fresh();
    // SAFETY: the name ends in a zero byte.
    unsafe { gpuheap_fake_register_kernel(c"store".as_ptr(), store) };
    let function = kernel(".version 7.0\n.visible .entry store(.param .u64 a, .param .u16 b) { ret; }", "store");
    let memory = allocate(512);
    let (mut address, mut value) = (memory.0, 7_u16);
    good(launch(function, vec![(&raw mut address).cast(), (&raw mut value).cast()]));
    let mut found = 0_u32;
    // SAFETY: `found` outlives the call.
    good(unsafe { cuMemcpyDtoH_v2((&raw mut found).cast(), memory, 4) });
    assert_eq!(found, 7 + 4 * 32);
}

#[test]
fn a_kernel_of_a_module_that_is_gone_is_no_kernel() {
    let _fresh = fresh();
    let (mut module, mut function) = (Module::NULL, Function::NULL);
    // SAFETY: all outlive the calls, the texts end in zero bytes.
    unsafe {
        good(cuModuleLoadData(&raw mut module, c".version 7.0\n.entry gpuheap_fill { ret; }".as_ptr()));
        good(cuModuleGetFunction(&raw mut function, module, c"gpuheap_fill".as_ptr()));
        good(cuModuleUnload(module));
        assert_eq!(cuModuleUnload(module), Code::INVALID_HANDLE);
    }
    assert_eq!(launch(function, Vec::new()), Code::INVALID_HANDLE);
}

#[test]
fn freeing_twice_is_an_error() {
    let _fresh = fresh();
    let memory = allocate(4 << 20);
    // SAFETY: allocated above; the second is refused.
    unsafe {
        good(cuMemFree_v2(memory));
        assert_eq!(cuMemFree_v2(memory), Code::INVALID_VALUE);
        assert_eq!(cuMemsetD8_v2(memory, 0, 1), Code::INVALID_VALUE);
        assert_eq!(cuMemFreeAsync(memory, Stream::NULL), Code::INVALID_VALUE);
    }
}
