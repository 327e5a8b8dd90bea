//! The driver's functions, as a C program declares them, and a fresh driver for each test.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap_cuda::raw::{
    AllocNodeParams, Code, Context, DevicePtr, Event, Function, Graph, GraphExec, GraphNode, IpcHandle, Module, Stream,
};
use gpuheap_fakecuda as _;

unsafe extern "C" {
    pub(crate) fn cuInit(flags: c_uint) -> Code;
    pub(crate) fn cuDeviceGetCount(count: *mut c_int) -> Code;
    pub(crate) fn cuDevicePrimaryCtxRetain(context: *mut Context, device: c_int) -> Code;
    pub(crate) fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code;
    pub(crate) fn cuDevicePrimaryCtxReset_v2(device: c_int) -> Code;
    pub(crate) fn cuCtxCreate_v2(context: *mut Context, flags: c_uint, device: c_int) -> Code;
    pub(crate) fn cuCtxDestroy_v2(context: Context) -> Code;
    pub(crate) fn cuCtxSetCurrent(context: Context) -> Code;
    pub(crate) fn cuCtxGetCurrent(context: *mut Context) -> Code;
    pub(crate) fn cuCtxPushCurrent_v2(context: Context) -> Code;
    pub(crate) fn cuCtxSynchronize() -> Code;
    pub(crate) fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code;
    pub(crate) fn cuMemAlloc_v2(address: *mut DevicePtr, bytes: usize) -> Code;
    pub(crate) fn cuMemFree_v2(address: DevicePtr) -> Code;
    pub(crate) fn cuMemAllocAsync(address: *mut DevicePtr, bytes: usize, stream: Stream) -> Code;
    pub(crate) fn cuMemFreeAsync(address: DevicePtr, stream: Stream) -> Code;
    pub(crate) fn cuMemcpyDtoH_v2(to: *mut c_void, from: DevicePtr, bytes: usize) -> Code;
    pub(crate) fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: DevicePtr, bytes: usize, stream: Stream) -> Code;
    pub(crate) fn cuMemsetD8_v2(to: DevicePtr, value: u8, count: usize) -> Code;
    pub(crate) fn cuMemsetD32_v2(to: DevicePtr, value: u32, count: usize) -> Code;
    pub(crate) fn cuMemsetD8Async(to: DevicePtr, value: u8, count: usize, stream: Stream) -> Code;
    pub(crate) fn cuMemsetD8Async_ptsz(to: DevicePtr, value: u8, count: usize, stream: Stream) -> Code;
    pub(crate) fn cuStreamCreate(stream: *mut Stream, flags: c_uint) -> Code;
    pub(crate) fn cuStreamDestroy_v2(stream: Stream) -> Code;
    pub(crate) fn cuStreamQuery(stream: Stream) -> Code;
    pub(crate) fn cuStreamQuery_ptsz(stream: Stream) -> Code;
    pub(crate) fn cuStreamSynchronize(stream: Stream) -> Code;
    pub(crate) fn cuStreamSynchronize_ptsz(stream: Stream) -> Code;
    pub(crate) fn cuStreamWaitEvent(stream: Stream, event: Event, flags: c_uint) -> Code;
    pub(crate) fn cuEventCreate(event: *mut Event, flags: c_uint) -> Code;
    pub(crate) fn cuEventRecord(event: Event, stream: Stream) -> Code;
    pub(crate) fn cuLaunchHostFunc(stream: Stream, function: extern "C" fn(*mut c_void), data: *mut c_void) -> Code;
    pub(crate) fn cuModuleLoadData(module: *mut Module, image: *const c_char) -> Code;
    pub(crate) fn cuModuleUnload(module: Module) -> Code;
    pub(crate) fn cuModuleGetFunction(function: *mut Function, module: Module, name: *const c_char) -> Code;
    pub(crate) fn cuLaunchKernel(
        function: Function,
        gx: c_uint,
        gy: c_uint,
        gz: c_uint,
        bx: c_uint,
        by: c_uint,
        bz: c_uint,
        shared: c_uint,
        stream: Stream,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Code;
    pub(crate) fn cuStreamBeginCapture_v2(stream: Stream, mode: c_uint) -> Code;
    pub(crate) fn cuStreamEndCapture(stream: Stream, graph: *mut Graph) -> Code;
    pub(crate) fn cuStreamIsCapturing(stream: Stream, status: *mut c_uint) -> Code;
    pub(crate) fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> Code;
    pub(crate) fn cuGraphCreate(graph: *mut Graph, flags: c_uint) -> Code;
    pub(crate) fn cuGraphDestroy(graph: Graph) -> Code;
    pub(crate) fn cuGraphInstantiateWithFlags(exec: *mut GraphExec, graph: Graph, flags: u64) -> Code;
    pub(crate) fn cuGraphExecDestroy(exec: GraphExec) -> Code;
    pub(crate) fn cuGraphLaunch(exec: GraphExec, stream: Stream) -> Code;
    pub(crate) fn cuGraphAddMemAllocNode(
        node: *mut GraphNode,
        graph: Graph,
        after: *const GraphNode,
        count: usize,
        params: *mut AllocNodeParams,
    ) -> Code;
    pub(crate) fn cuIpcGetMemHandle(handle: *mut IpcHandle, address: DevicePtr) -> Code;
    pub(crate) fn cuIpcOpenMemHandle_v2(address: *mut DevicePtr, handle: IpcHandle, flags: c_uint) -> Code;
    pub(crate) fn cuIpcCloseMemHandle(address: DevicePtr) -> Code;
    pub(crate) fn gpuheap_fake_control(commands: *const c_char) -> c_int;
    pub(crate) fn gpuheap_fake_calls(function: *const c_char) -> u64;
    pub(crate) fn gpuheap_fake_call_back(function: *const c_char, call_back: Option<extern "C" fn()>);
    pub(crate) fn gpuheap_fake_register_kernel(
        name: *const c_char,
        kernel: extern "C" fn(*const gpuheap_fakecuda::FakeLaunch),
    );
}

/// A driver with nothing in it, for one test at a time, its first device's primary context current.
pub(crate) struct Fresh {
    pub(crate) context: Context,
    _alone: MutexGuard<'static, ()>,
}

pub(crate) fn fresh() -> Fresh {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    control("devices 2; memory 256MiB; reset");
    let mut context = Context::NULL;
    // SAFETY: the pointers outlive the calls.
    unsafe {
        good(cuInit(0));
        for device in [0, 1] {
            good(cuDevicePrimaryCtxReset_v2(device));
        }
        good(cuDevicePrimaryCtxRetain(&raw mut context, 0));
        good(cuCtxSetCurrent(context));
    }
    Fresh { context, _alone: alone }
}

pub(crate) fn control(commands: &str) {
    let text = CString::new(commands).unwrap();
    // SAFETY: the text ends in a zero byte.
    assert_eq!(unsafe { gpuheap_fake_control(text.as_ptr()) }, 0, "{commands}");
}

pub(crate) fn calls(function: &str) -> u64 {
    let text = CString::new(function).unwrap();
    // SAFETY: the text ends in a zero byte.
    unsafe { gpuheap_fake_calls(text.as_ptr()) }
}

#[track_caller]
pub(crate) fn good(code: Code) {
    assert!(code.is_success(), "{code}");
}

#[track_caller]
pub(crate) fn allocate(bytes: usize) -> DevicePtr {
    let mut address = DevicePtr::NULL;
    // SAFETY: `address` outlives the call.
    good(unsafe { cuMemAlloc_v2(&raw mut address, bytes) });
    address
}

#[track_caller]
pub(crate) fn stream(flags: u32) -> Stream {
    let mut stream = Stream::NULL;
    // SAFETY: `stream` outlives the call.
    good(unsafe { cuStreamCreate(&raw mut stream, flags) });
    stream
}

#[track_caller]
pub(crate) fn free() -> usize {
    let mut free = 0;
    // SAFETY: `free` outlives the call.
    good(unsafe { cuMemGetInfo_v2(&raw mut free, std::ptr::null_mut()) });
    free
}

/// The first byte of device memory.
#[track_caller]
pub(crate) fn byte(address: DevicePtr) -> u8 {
    let mut byte = 0_u8;
    // SAFETY: `byte` outlives the call.
    good(unsafe { cuMemcpyDtoH_v2((&raw mut byte).cast(), address, 1) });
    byte
}

/// A gate that a stream stops at until it is opened.
pub(crate) struct Gate(&'static (Mutex<bool>, std::sync::Condvar));

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Box::leak(Box::default()))
    }

    pub(crate) fn stop(&self, at: Stream) {
        extern "C" fn wait(data: *mut c_void) {
            // SAFETY: the gate is leaked.
            let (open, changed) = unsafe { &*data.cast::<(Mutex<bool>, std::sync::Condvar)>() };
            let mut open = open.lock().unwrap();
            while !*open {
                open = changed.wait(open).unwrap();
            }
        }
        let data: *const _ = self.0;
        // SAFETY: the gate is leaked.
        good(unsafe { cuLaunchHostFunc(at, wait, data.cast_mut().cast()) });
    }

    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}
