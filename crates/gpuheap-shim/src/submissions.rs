//! The list of functions that give the device work, or that begin and end captures. Each of them passes the gate: while
//! memory is moved nothing new may start that could reach it.
//!
//! All forms of a function are here, those before addresses had 64 bits included: they take numbers of 32 bits. Not here,
//! for they reach no memory of chunks: events, external semaphores, graphics, `cuMemAdvise`, `cuStreamAttachMemAsync`
//! (managed memory alone), the making of graphs. What allocates and frees in a stream's order is in `overrides`.

use std::ffi::{c_int, c_uint, c_void};

use gpuheap_cuda::raw::{
    Array, ArrayMapInfo, BatchMemOp, CigCaptureParams, Code, Context, DecompressParams, DeviceId, DevicePtr, Event,
    Function, Graph, GraphEdge, GraphExec, GraphNode, HostFn, LaunchConfig, LaunchParams, Library, MemLocation,
    Memcpy2d, Memcpy2d32, Memcpy3d, Memcpy3d32, Memcpy3dPeer, MemcpyAttributes, MemcpyBatch3d, Module, Stream,
    StreamCallback,
};

use crate::depth::Inside;
use crate::passes::PASSES;
use crate::touched::Arguments;
use crate::{converted, ipc, moving, overrides, parameters, placement, real, state, swap};

/// A call of the driver that has passed the gate. One from within another function of ours goes straight to the driver:
/// what moves memory calls the driver itself, and would wait for itself.
///
/// The pass lasts as long as the call. A copy that returns when it is done may last as long as the work before it on the
/// device, and that may wait for what another thread is yet to submit: whoever closes the gate must not wait for passes
/// without end.
#[inline]
fn passes(driver: impl Fn() -> Code) -> Code {
    passes_then(driver, |_| ())
}

/// The same, and something after it that still belongs to the call.
#[inline]
fn passes_then(driver: impl Fn() -> Code, after: impl FnOnce(Code)) -> Code {
    let Some(_inside) = Inside::enter() else { return driver() };
    let _pass = state::get().gate.enter();
    let code = driver();
    after(code);
    code
}

/// A kernel is launched: which chunks it names is noted.
#[inline]
fn launches(
    driver: impl Fn() -> Code,
    (function, grid, parameters, extra): (Function, impl FnOnce() -> [u32; 3], *mut *mut c_void, *mut *mut c_void),
) -> Code {
    let Some(_inside) = Inside::enter() else { return driver() };
    let state = state::get();
    let _pass = state.gate.enter();
    if let Some(due) = placement::launched(Arguments { function, parameters, extra }, grid) {
        state.gate.outside(|| swap::carry_out(state, &due));
    }
    driver()
}

/// A graph is launched, with all of its kernels.
fn launches_graph(driver: impl Fn() -> Code, (graph,): (GraphExec,)) -> Code {
    let Some(_inside) = Inside::enter() else { return driver() };
    let state = state::get();
    let _pass = state.gate.enter();
    if let Some(due) = placement::graph_launched(graph) {
        state.gate.outside(|| swap::carry_out(state, &due));
    }
    driver()
}

/// The grid of a launch with attributes.
fn grid_of(config: *const LaunchConfig) -> [u32; 3] {
    // SAFETY: null, which the driver refuses, or the program's own description, which the driver reads next.
    unsafe { config.as_ref() }.map_or([0; 3], |config| config.grid)
}

/// The recording of a graph begins.
fn begins(driver: impl Fn() -> Code, (stream,): (Stream,)) -> Code {
    passes_then(driver, |code| {
        if code.is_success() {
            state::get().capture_began(stream.0);
        }
    })
}

/// And ends, even if what was recorded is of no use. Of a stream that records nothing, or by a thread that may not, it
/// does not.
fn ends(driver: impl Fn() -> Code, (stream,): (Stream,)) -> Code {
    /// Errors of recordings, from that one on; they end them, but for the one of the wrong thread.
    const FIRST: u32 = 900;
    const LAST: u32 = 907;
    passes_then(driver, |code| {
        if code.is_success() || (FIRST..=LAST).contains(&code.0) {
            after_capture(stream);
        }
    })
}

/// A stream goes, and what it records with it.
fn destroys(driver: impl Fn() -> Code, (stream,): (Stream,)) -> Code {
    passes_then(driver, |code| {
        if code.is_success() {
            after_capture(stream);
        }
    })
}

/// What had to wait for the end of recordings.
fn after_capture(stream: Stream) {
    if state::get().capture_ended(stream.0)
        && let Some(moving) = moving::get()
    {
        converted::free_late(moving);
        ipc::close_late(moving);
    }
}

/// The program waits for the device: a moment when memory can move at no cost.
fn waits(driver: impl Fn() -> Code) -> Code {
    let Some(_inside) = Inside::enter() else { return driver() };
    let code = driver();
    if code.is_success() {
        placement::at_rest();
    }
    code
}

/// Kernels go: others may get their handles.
fn unloads(driver: impl Fn() -> Code) -> Code {
    let Some(_inside) = Inside::enter() else { return driver() };
    parameters::forget_all();
    PASSES.forget_all();
    driver()
}

macro_rules! submissions {
    ($([$($name:ident)+] $arguments:tt => $body:ident $(of $of:tt)?;)*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names, reason = "the names are the driver's")]
        #[derive(Clone, Copy)]
        enum Number { $($($name,)+)* }

        /// These functions, by the symbols that are exported.
        pub(crate) const NAMES: &[&str] = &[$($(stringify!($name),)+)*];

        /// The function of this library of that number in [`NAMES`].
        pub(crate) fn own(number: usize) -> Option<*const c_void> {
            let all: &[*const c_void] = &[$($($name as *const c_void,)+)*];
            all.get(number).copied()
        }

        $(submission_forms!([$($name)+] $arguments $body [$($of)?]);)*
    };
}

macro_rules! submission_forms {
    ([$($name:ident)+] $arguments:tt $body:ident $of:tt) => { $(submission!($name $arguments $body $of);)+ };
}

macro_rules! submission {
    ($name:ident ($($arg:ident: $ty:ty),* $(,)?) $body:ident [$($of:tt)?]) => {
        #[allow(non_snake_case, reason = "the name is the driver's")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> Code {
            let number = overrides::SUBMISSIONS + Number::$name as usize;
            let Some(driver) = real::overridden(number) else { return Code::NOT_FOUND };
            // SAFETY: the driver's function of that name has that signature.
            let driver = unsafe {
                std::mem::transmute::<*const c_void, unsafe extern "C" fn($($ty),*) -> Code>(driver)
            };
            // SAFETY: with the caller's own arguments, which are what the driver asks for.
            $body(|| unsafe { driver($($arg),*) } $(, $of)?)
        }
    };
}

submissions! {
    // Kernels, functions of the host, graphs.
    [cuGraphLaunch cuGraphLaunch_ptsz](graph: GraphExec, stream: Stream) => launches_graph of (graph,);
    [cuGraphUpload cuGraphUpload_ptsz](graph: GraphExec, stream: Stream) => passes;
    [cuLaunch](function: Function) => passes;
    [cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz](
        function: Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: Stream, parameters: *mut *mut c_void,
    ) => launches of (function, || [grid_x, grid_y, grid_z], parameters, std::ptr::null_mut());
    [cuLaunchCooperativeKernelMultiDevice](launches: *mut LaunchParams, count: c_uint, flags: c_uint) => passes;
    [cuLaunchGrid](function: Function, width: c_int, height: c_int) => passes;
    [cuLaunchGridAsync](function: Function, width: c_int, height: c_int, stream: Stream) => passes;
    [cuLaunchHostFunc cuLaunchHostFunc_ptsz](stream: Stream, callback: HostFn, data: *mut c_void) => passes;
    [cuLaunchHostFunc_v2 cuLaunchHostFunc_v2_ptsz](
        stream: Stream, callback: HostFn, data: *mut c_void, mode: c_uint,
    ) => passes;
    [cuLaunchKernel cuLaunchKernel_ptsz](
        function: Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: Stream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) => launches of (function, || [grid_x, grid_y, grid_z], parameters, extra);
    [cuLaunchKernelEx cuLaunchKernelEx_ptsz](
        config: *const LaunchConfig, function: Function, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) => launches of (function, || grid_of(config), parameters, extra);
    [cuStreamAddCallback cuStreamAddCallback_ptsz](
        stream: Stream, callback: StreamCallback, data: *mut c_void, flags: c_uint,
    ) => passes;

    // Copies.
    [cuMemcpy cuMemcpy_ptds](target: DevicePtr, source: DevicePtr, bytes: usize) => passes;
    [cuMemcpy2D](copy: *const Memcpy2d32) => passes;
    [cuMemcpy2D_v2 cuMemcpy2D_v2_ptds](copy: *const Memcpy2d) => passes;
    [cuMemcpy2DAsync](copy: *const Memcpy2d32, stream: Stream) => passes;
    [cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz](copy: *const Memcpy2d, stream: Stream) => passes;
    [cuMemcpy2DUnaligned](copy: *const Memcpy2d32) => passes;
    [cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds](copy: *const Memcpy2d) => passes;
    [cuMemcpy3D](copy: *const Memcpy3d32) => passes;
    [cuMemcpy3D_v2 cuMemcpy3D_v2_ptds](copy: *const Memcpy3d) => passes;
    [cuMemcpy3DAsync](copy: *const Memcpy3d32, stream: Stream) => passes;
    [cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz](copy: *const Memcpy3d, stream: Stream) => passes;
    [cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz](
        count: usize, copies: *mut MemcpyBatch3d, failed: *mut usize, flags: u64, stream: Stream,
    ) => passes;
    [cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz](
        count: usize, copies: *mut MemcpyBatch3d, flags: u64, stream: Stream,
    ) => passes;
    [cuMemcpy3DPeer cuMemcpy3DPeer_ptds](copy: *const Memcpy3dPeer) => passes;
    [cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz](copy: *const Memcpy3dPeer, stream: Stream) => passes;
    [cuMemcpy3DWithAttributesAsync cuMemcpy3DWithAttributesAsync_ptsz](
        copy: *mut MemcpyBatch3d, flags: u64, stream: Stream,
    ) => passes;
    [cuMemcpyAsync cuMemcpyAsync_ptsz](target: DevicePtr, source: DevicePtr, bytes: usize, stream: Stream) => passes;
    [cuMemcpyAtoA](target: Array, target_offset: c_uint, source: Array, source_offset: c_uint, bytes: c_uint) => passes;
    [cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds](
        target: Array, target_offset: usize, source: Array, source_offset: usize, bytes: usize,
    ) => passes;
    [cuMemcpyAtoD](target: u32, source: Array, source_offset: c_uint, bytes: c_uint) => passes;
    [cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds](
        target: DevicePtr, source: Array, source_offset: usize, bytes: usize,
    ) => passes;
    [cuMemcpyAtoH](target: *mut c_void, source: Array, source_offset: c_uint, bytes: c_uint) => passes;
    [cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds](
        target: *mut c_void, source: Array, source_offset: usize, bytes: usize,
    ) => passes;
    [cuMemcpyAtoHAsync](
        target: *mut c_void, source: Array, source_offset: c_uint, bytes: c_uint, stream: Stream,
    ) => passes;
    [cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz](
        target: *mut c_void, source: Array, source_offset: usize, bytes: usize, stream: Stream,
    ) => passes;
    [cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz](
        targets: *mut DevicePtr, sources: *mut DevicePtr, sizes: *mut usize, count: usize,
        attributes: *mut MemcpyAttributes, indices: *mut usize, attribute_count: usize, failed: *mut usize,
        stream: Stream,
    ) => passes;
    [cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz](
        targets: *mut DevicePtr, sources: *mut DevicePtr, sizes: *mut usize, count: usize,
        attributes: *mut MemcpyAttributes, indices: *mut usize, attribute_count: usize, stream: Stream,
    ) => passes;
    [cuMemcpyDtoA](target: Array, target_offset: c_uint, source: u32, bytes: c_uint) => passes;
    [cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds](
        target: Array, target_offset: usize, source: DevicePtr, bytes: usize,
    ) => passes;
    [cuMemcpyDtoD](target: u32, source: u32, bytes: c_uint) => passes;
    [cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds](target: DevicePtr, source: DevicePtr, bytes: usize) => passes;
    [cuMemcpyDtoDAsync](target: u32, source: u32, bytes: c_uint, stream: Stream) => passes;
    [cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz](
        target: DevicePtr, source: DevicePtr, bytes: usize, stream: Stream,
    ) => passes;
    [cuMemcpyDtoH](target: *mut c_void, source: u32, bytes: c_uint) => passes;
    [cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds](target: *mut c_void, source: DevicePtr, bytes: usize) => passes;
    [cuMemcpyDtoHAsync](target: *mut c_void, source: u32, bytes: c_uint, stream: Stream) => passes;
    [cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz](
        target: *mut c_void, source: DevicePtr, bytes: usize, stream: Stream,
    ) => passes;
    [cuMemcpyHtoA](target: Array, target_offset: c_uint, source: *const c_void, bytes: c_uint) => passes;
    [cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds](
        target: Array, target_offset: usize, source: *const c_void, bytes: usize,
    ) => passes;
    [cuMemcpyHtoAAsync](
        target: Array, target_offset: c_uint, source: *const c_void, bytes: c_uint, stream: Stream,
    ) => passes;
    [cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz](
        target: Array, target_offset: usize, source: *const c_void, bytes: usize, stream: Stream,
    ) => passes;
    [cuMemcpyHtoD](target: u32, source: *const c_void, bytes: c_uint) => passes;
    [cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds](target: DevicePtr, source: *const c_void, bytes: usize) => passes;
    [cuMemcpyHtoDAsync](target: u32, source: *const c_void, bytes: c_uint, stream: Stream) => passes;
    [cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz](
        target: DevicePtr, source: *const c_void, bytes: usize, stream: Stream,
    ) => passes;
    [cuMemcpyPeer cuMemcpyPeer_ptds](
        target: DevicePtr, target_context: Context, source: DevicePtr, source_context: Context, bytes: usize,
    ) => passes;
    [cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz](
        target: DevicePtr, target_context: Context, source: DevicePtr, source_context: Context, bytes: usize,
        stream: Stream,
    ) => passes;
    [cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz](
        target: DevicePtr, source: DevicePtr, bytes: usize, attributes: *mut MemcpyAttributes, stream: Stream,
    ) => passes;

    // Fills.
    [cuMemsetD16](target: u32, value: u16, count: c_uint) => passes;
    [cuMemsetD16_v2 cuMemsetD16_v2_ptds](target: DevicePtr, value: u16, count: usize) => passes;
    [cuMemsetD16Async cuMemsetD16Async_ptsz](target: DevicePtr, value: u16, count: usize, stream: Stream) => passes;
    [cuMemsetD2D16](target: u32, pitch: c_uint, value: u16, width: c_uint, height: c_uint) => passes;
    [cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds](
        target: DevicePtr, pitch: usize, value: u16, width: usize, height: usize,
    ) => passes;
    [cuMemsetD2D16Async cuMemsetD2D16Async_ptsz](
        target: DevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: Stream,
    ) => passes;
    [cuMemsetD2D32](target: u32, pitch: c_uint, value: c_uint, width: c_uint, height: c_uint) => passes;
    [cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds](
        target: DevicePtr, pitch: usize, value: c_uint, width: usize, height: usize,
    ) => passes;
    [cuMemsetD2D32Async cuMemsetD2D32Async_ptsz](
        target: DevicePtr, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream,
    ) => passes;
    [cuMemsetD2D8](target: u32, pitch: c_uint, value: u8, width: c_uint, height: c_uint) => passes;
    [cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds](
        target: DevicePtr, pitch: usize, value: u8, width: usize, height: usize,
    ) => passes;
    [cuMemsetD2D8Async cuMemsetD2D8Async_ptsz](
        target: DevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: Stream,
    ) => passes;
    [cuMemsetD32](target: u32, value: c_uint, count: c_uint) => passes;
    [cuMemsetD32_v2 cuMemsetD32_v2_ptds](target: DevicePtr, value: c_uint, count: usize) => passes;
    [cuMemsetD32Async cuMemsetD32Async_ptsz](target: DevicePtr, value: c_uint, count: usize, stream: Stream) => passes;
    [cuMemsetD8](target: u32, value: u8, count: c_uint) => passes;
    [cuMemsetD8_v2 cuMemsetD8_v2_ptds](target: DevicePtr, value: u8, count: usize) => passes;
    [cuMemsetD8Async cuMemsetD8Async_ptsz](target: DevicePtr, value: u8, count: usize, stream: Stream) => passes;

    // Memory that moves, is given up or is unpacked in order.
    [cuMemBatchDecompressAsync cuMemBatchDecompressAsync_ptsz](
        operations: *mut DecompressParams, count: usize, flags: c_uint, failed: *mut usize, stream: Stream,
    ) => passes;
    [cuMemDiscardAndPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync_ptsz](
        addresses: *mut DevicePtr, sizes: *mut usize, count: usize, locations: *mut MemLocation, indices: *mut usize,
        location_count: usize, flags: u64, stream: Stream,
    ) => passes;
    [cuMemDiscardBatchAsync cuMemDiscardBatchAsync_ptsz](
        addresses: *mut DevicePtr, sizes: *mut usize, count: usize, flags: u64, stream: Stream,
    ) => passes;
    [cuMemMapArrayAsync cuMemMapArrayAsync_ptsz](mappings: *mut ArrayMapInfo, count: c_uint, stream: Stream) => passes;
    [cuMemPrefetchAsync cuMemPrefetchAsync_ptsz](
        address: DevicePtr, bytes: usize, device: DeviceId, stream: Stream,
    ) => passes;
    [cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz](
        address: DevicePtr, bytes: usize, location: MemLocation, flags: c_uint, stream: Stream,
    ) => passes;
    [cuMemPrefetchBatchAsync cuMemPrefetchBatchAsync_ptsz](
        addresses: *mut DevicePtr, sizes: *mut usize, count: usize, locations: *mut MemLocation, indices: *mut usize,
        location_count: usize, flags: u64, stream: Stream,
    ) => passes;

    // Values in memory.
    [cuStreamBatchMemOp cuStreamBatchMemOp_ptsz](
        stream: Stream, count: c_uint, operations: *mut BatchMemOp, flags: c_uint,
    ) => passes;
    [cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz](
        stream: Stream, count: c_uint, operations: *mut BatchMemOp, flags: c_uint,
    ) => passes;
    [cuStreamWaitValue32 cuStreamWaitValue32_ptsz](
        stream: Stream, address: DevicePtr, value: u32, flags: c_uint,
    ) => passes;
    [cuStreamWaitValue32_v2 cuStreamWaitValue32_v2_ptsz](
        stream: Stream, address: DevicePtr, value: u32, flags: c_uint,
    ) => passes;
    [cuStreamWaitValue64 cuStreamWaitValue64_ptsz](
        stream: Stream, address: DevicePtr, value: u64, flags: c_uint,
    ) => passes;
    [cuStreamWaitValue64_v2 cuStreamWaitValue64_v2_ptsz](
        stream: Stream, address: DevicePtr, value: u64, flags: c_uint,
    ) => passes;
    [cuStreamWriteValue32 cuStreamWriteValue32_ptsz](
        stream: Stream, address: DevicePtr, value: u32, flags: c_uint,
    ) => passes;
    [cuStreamWriteValue32_v2 cuStreamWriteValue32_v2_ptsz](
        stream: Stream, address: DevicePtr, value: u32, flags: c_uint,
    ) => passes;
    [cuStreamWriteValue64 cuStreamWriteValue64_ptsz](
        stream: Stream, address: DevicePtr, value: u64, flags: c_uint,
    ) => passes;
    [cuStreamWriteValue64_v2 cuStreamWriteValue64_v2_ptsz](
        stream: Stream, address: DevicePtr, value: u64, flags: c_uint,
    ) => passes;

    // Captures: what is submitted between them becomes a graph.
    [cuStreamBeginCapture cuStreamBeginCapture_ptsz](stream: Stream) => begins of (stream,);
    [cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz](stream: Stream, mode: c_uint) => begins of (stream,);
    [cuStreamBeginCaptureToCig cuStreamBeginCaptureToCig_ptsz](
        stream: Stream, parameters: *mut CigCaptureParams,
    ) => begins of (stream,);
    [cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz](
        stream: Stream, graph: Graph, dependencies: *const GraphNode, edges: *const GraphEdge, count: usize,
        mode: c_uint,
    ) => begins of (stream,);
    [cuStreamEndCapture cuStreamEndCapture_ptsz](stream: Stream, graph: *mut Graph) => ends of (stream,);
    [cuStreamEndCaptureToCig cuStreamEndCaptureToCig_ptsz](stream: Stream) => ends of (stream,);

    // The program waits for the device, and needs no gate for that.
    [cuCtxSynchronize]() => waits;
    [cuCtxSynchronize_v2](context: Context) => waits;
    [cuStreamSynchronize cuStreamSynchronize_ptsz](stream: Stream) => waits;
    [cuEventSynchronize](event: Event) => waits;

    // Streams go.
    [cuStreamDestroy cuStreamDestroy_v2](stream: Stream) => destroys of (stream,);

    // Kernels go.
    [cuModuleUnload](module: Module) => unloads;
    [cuLibraryUnload](library: Library) => unloads;
}
