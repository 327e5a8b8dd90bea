//! The list of overridden functions that have bodies of their own; what passes the gate and no more is in `submissions`.
//! From the two come the exports, the pointers to the driver's functions, and the names that tests compare with the list of
//! all symbols.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_cuda::raw::{
    AccessDesc, AllocNodeParams, AllocationHandle, AllocationProp, Array, Array3dDesc, ArrayDesc, Code, Context,
    DeviceId, DevicePtr, ExternalMemory, Graph, GraphExec, GraphNode, IpcHandle, MemoryPool, MipmappedArray, PoolProps,
    Stream,
};

use crate::around::around;
use crate::{
    contexts, graphs, ipc, linear, ordered, others, paging, pins, pointers, real, resolve, sizes, submissions,
};

/// All functions of this library that stand for one of the driver, by the symbols that are exported. A function's place
/// here is its number.
pub const NAMES: &[&str] = &joined();

/// The number of the first submission.
pub(crate) const SUBMISSIONS: usize = BODIES.len();

const fn joined() -> [&'static str; BODIES.len() + submissions::NAMES.len()] {
    let mut all = [""; BODIES.len() + submissions::NAMES.len()];
    let mut number = 0;
    while number < all.len() {
        all[number] = if number < SUBMISSIONS { BODIES[number] } else { submissions::NAMES[number - SUBMISSIONS] };
        number += 1;
    }
    all
}

/// The function of this library of that number in [`NAMES`].
pub(crate) fn own(number: usize) -> Option<*const c_void> {
    match number.checked_sub(SUBMISSIONS) {
        Some(number) => submissions::own(number),
        None => with_body(number),
    }
}

macro_rules! overrides {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?) => $body:path;)*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names, reason = "the names are the driver's")]
        #[derive(Clone, Copy)]
        enum Number { $($name,)* }

        const BODIES: &[&str] = &[$(stringify!($name),)*];

        fn with_body(number: usize) -> Option<*const c_void> {
            let all: &[*const c_void] = &[$($name as *const c_void,)*];
            all.get(number).copied()
        }

        $(
            #[allow(non_snake_case, reason = "the name is the driver's")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $ty),*) -> Code {
                let Some(driver) = real::overridden(Number::$name as usize) else { return Code::NOT_FOUND };
                // SAFETY: the driver's function of that name has that signature.
                let driver = unsafe {
                    std::mem::transmute::<*const c_void, unsafe extern "C" fn($($ty),*) -> Code>(driver)
                };
                // SAFETY: with the caller's own arguments, which are what the driver asks for.
                around(|| unsafe { driver($($arg),*) }, |call| $body(call $(, $arg)*))
            }
        )*
    };
}

overrides! {
    cuInit(flags: c_uint) => sizes::start;
    cuGetProcAddress(symbol: *const c_char, function: *mut *const c_void, version: c_int, flags: u64)
        => resolve::with_flags;
    cuGetProcAddress_v2(
        symbol: *const c_char, function: *mut *const c_void, version: c_int, flags: u64, status: *mut c_int,
    ) => resolve::with_status;

    cuMemAlloc(address: *mut u32, bytes: c_uint) => linear::allocate_32;
    cuMemAlloc_v2(address: *mut DevicePtr, bytes: usize) => linear::allocate;
    cuMemAllocPitch(address: *mut u32, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint)
        => linear::allocate_pitch_32;
    cuMemAllocPitch_v2(address: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: c_uint)
        => linear::allocate_pitch;
    cuMemAllocManaged(address: *mut DevicePtr, bytes: usize, flags: c_uint) => linear::allocate_managed;
    cuMemFree(address: u32) => linear::free_32;
    cuMemFree_v2(address: DevicePtr) => linear::free;
    cuMemAllocHost(start: *mut *mut c_void, bytes: c_uint) => linear::allocate_host_32;
    cuMemAllocHost_v2(start: *mut *mut c_void, bytes: usize) => linear::allocate_host;
    cuMemHostAlloc(start: *mut *mut c_void, bytes: usize, flags: c_uint) => linear::allocate_host_flags;
    cuMemFreeHost(start: *mut c_void) => linear::free_host;
    cuMemHostRegister(start: *mut c_void, bytes: usize, flags: c_uint) => linear::register_host;
    cuMemHostRegister_v2(start: *mut c_void, bytes: usize, flags: c_uint) => linear::register_host;
    cuMemHostUnregister(start: *mut c_void) => linear::free_host;

    cuMemAllocAsync(address: *mut DevicePtr, bytes: usize, stream: Stream) => ordered::allocate;
    cuMemAllocAsync_ptsz(address: *mut DevicePtr, bytes: usize, stream: Stream) => ordered::allocate;
    cuMemAllocFromPoolAsync(address: *mut DevicePtr, bytes: usize, pool: MemoryPool, stream: Stream)
        => ordered::allocate_from;
    cuMemAllocFromPoolAsync_ptsz(address: *mut DevicePtr, bytes: usize, pool: MemoryPool, stream: Stream)
        => ordered::allocate_from;
    cuMemFreeAsync(address: DevicePtr, stream: Stream) => ordered::free;
    cuMemFreeAsync_ptsz(address: DevicePtr, stream: Stream) => ordered::free;
    cuMemPoolCreate(pool: *mut MemoryPool, props: *const PoolProps) => ordered::create_pool;
    cuMemPoolDestroy(pool: MemoryPool) => ordered::change_pool;
    cuMemPoolTrimTo(pool: MemoryPool, keep: usize) => ordered::trim_pool;

    cuMemCreate(handle: *mut AllocationHandle, bytes: usize, prop: *const AllocationProp, flags: u64)
        => paging::create;
    cuMemRelease(handle: AllocationHandle) => paging::release;
    cuMemMap(address: DevicePtr, bytes: usize, offset: usize, handle: AllocationHandle, flags: u64) => paging::map;
    cuMemUnmap(address: DevicePtr, bytes: usize) => paging::unmap;
    cuMemSetAccess(address: DevicePtr, bytes: usize, wanted: *const AccessDesc, count: usize) => paging::set_access;
    cuMemExportToShareableHandle(shared: *mut c_void, handle: AllocationHandle, kind: c_uint, flags: u64)
        => paging::export;
    cuMemGetAllocationPropertiesFromHandle(prop: *mut AllocationProp, handle: AllocationHandle) => paging::properties;
    cuMulticastBindMem(
        multicast: AllocationHandle, multicast_offset: usize, memory: AllocationHandle, offset: usize, bytes: usize,
        flags: u64,
    ) => paging::bind_multicast;
    cuMulticastBindMem_v2(
        multicast: AllocationHandle, device: DeviceId, multicast_offset: usize, memory: AllocationHandle, offset: usize,
        bytes: usize, flags: u64,
    ) => paging::bind_multicast_on;
    cuMemRetainAllocationHandle(handle: *mut AllocationHandle, address: *mut c_void) => paging::retain;
    cuMemImportFromShareableHandle(handle: *mut AllocationHandle, shared: *mut c_void, kind: c_uint) => paging::import;

    cuIpcGetMemHandle(handle: *mut IpcHandle, address: DevicePtr) => ipc::get;
    cuIpcOpenMemHandle(address: *mut DevicePtr, handle: IpcHandle, flags: c_uint) => ipc::open;
    cuIpcOpenMemHandle_v2(address: *mut DevicePtr, handle: IpcHandle, flags: c_uint) => ipc::open;
    cuIpcCloseMemHandle(address: DevicePtr) => ipc::close;
    cuMemGetAddressRange_v2(start: *mut DevicePtr, bytes: *mut usize, address: DevicePtr) => pointers::range;
    cuMemGetHandleForAddressRange(handle: *mut c_void, address: DevicePtr, bytes: usize, kind: c_uint, flags: u64)
        => pins::handle_of_range;
    cuPointerSetAttribute(value: *const c_void, attribute: c_uint, address: DevicePtr) => pins::set_attribute;
    cuPointerGetAttribute(value: *mut c_void, attribute: c_uint, address: DevicePtr) => pointers::attribute;
    cuPointerGetAttributes(
        count: c_uint, attributes: *const c_uint, values: *const *mut c_void, address: DevicePtr,
    ) => pointers::attributes;
    cuCtxEnablePeerAccess(context: Context, flags: c_uint) => contexts::enable_peer;
    cuArrayCreate_v2(array: *mut Array, wanted: *const ArrayDesc) => others::create_array;
    cuArray3DCreate_v2(array: *mut Array, wanted: *const Array3dDesc) => others::create_array_3d;
    cuArrayDestroy(array: Array) => others::destroy_array;
    cuMipmappedArrayCreate(array: *mut MipmappedArray, wanted: *const Array3dDesc, levels: c_uint)
        => others::create_mipmapped;
    cuMipmappedArrayDestroy(array: MipmappedArray) => others::destroy_mipmapped;
    cuGraphAddMemAllocNode(
        node: *mut GraphNode, graph: Graph, after: *const GraphNode, count: usize, params: *mut AllocNodeParams,
    ) => others::add_node;
    cuGraphInstantiate(
        exec: *mut GraphExec, graph: Graph, failed: *mut GraphNode, log: *mut c_char, bytes: usize,
    ) => graphs::instantiate;
    cuGraphInstantiate_v2(
        exec: *mut GraphExec, graph: Graph, failed: *mut GraphNode, log: *mut c_char, bytes: usize,
    ) => graphs::instantiate;
    cuGraphInstantiateWithFlags(exec: *mut GraphExec, graph: Graph, flags: u64) => graphs::instantiate_with_flags;
    cuGraphInstantiateWithParams(exec: *mut GraphExec, graph: Graph, params: *mut c_void)
        => graphs::instantiate_with_params;
    cuGraphInstantiateWithParams_ptsz(exec: *mut GraphExec, graph: Graph, params: *mut c_void)
        => graphs::instantiate_with_params;
    cuGraphExecUpdate(exec: GraphExec, graph: Graph, node: *mut GraphNode, told: *mut c_uint) => graphs::update;
    cuGraphExecUpdate_v2(exec: GraphExec, graph: Graph, info: *mut c_void) => graphs::update_with_info;
    cuGraphExecKernelNodeSetParams(exec: GraphExec, node: GraphNode, params: *const c_void) => graphs::set_kernel;
    cuGraphExecKernelNodeSetParams_v2(exec: GraphExec, node: GraphNode, params: *const c_void) => graphs::set_kernel;
    cuGraphExecChildGraphNodeSetParams(exec: GraphExec, node: GraphNode, child: Graph) => graphs::set_child;
    cuGraphExecDestroy(exec: GraphExec) => graphs::destroy;
    cuDeviceGraphMemTrim(device: DeviceId) => others::trim_graphs;
    cuImportExternalMemory(memory: *mut ExternalMemory, wanted: *const c_void) => others::import_external;
    cuDestroyExternalMemory(memory: ExternalMemory) => others::destroy_external;

    cuDevicePrimaryCtxRetain(context: *mut Context, device: DeviceId) => contexts::retain;
    cuDevicePrimaryCtxRelease(device: DeviceId) => contexts::release;
    cuDevicePrimaryCtxRelease_v2(device: DeviceId) => contexts::release;
    cuDevicePrimaryCtxReset(device: DeviceId) => contexts::reset;
    cuDevicePrimaryCtxReset_v2(device: DeviceId) => contexts::reset;
    cuCtxCreate(context: *mut Context, flags: c_uint, device: DeviceId) => contexts::create;
    cuCtxCreate_v2(context: *mut Context, flags: c_uint, device: DeviceId) => contexts::create;
    cuCtxCreate_v3(
        context: *mut Context, affinity: *mut c_void, count: c_int, flags: c_uint, device: DeviceId,
    ) => contexts::create_with_affinity;
    cuCtxCreate_v4(context: *mut Context, params: *mut c_void, flags: c_uint, device: DeviceId)
        => contexts::create_with_params;
    cuCtxFromGreenCtx(context: *mut Context, part: *mut c_void) => contexts::of_part;
    cuCtxDestroy(context: Context) => contexts::destroy;
    cuCtxDestroy_v2(context: Context) => contexts::destroy;

    cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) => sizes::info_32;
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => sizes::info;
    cuDeviceTotalMem(bytes: *mut c_uint, device: DeviceId) => sizes::total_32;
    cuDeviceTotalMem_v2(bytes: *mut usize, device: DeviceId) => sizes::total;
}

#[cfg(test)]
mod tests {
    use gpuheap_cuda::symbols;

    use super::NAMES;

    #[test]
    fn every_override_is_a_symbol_of_the_driver_and_there_once() {
        let mut names = NAMES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NAMES.len());
        for name in names {
            assert!(symbols::all().iter().any(|symbol| symbol.name == name), "{name}");
        }
    }

    /// Forms that nothing could call on a 64-bit system, or that take nothing.
    const LEFT_OUT: &[&str] = &["cuArrayCreate", "cuArray3DCreate", "cuMemGetAddressRange"];

    /// Whoever overrides a function overrides all of its forms: a program gets whichever its version says.
    #[test]
    fn all_forms_of_an_overridden_function_are_overridden() {
        let base = |name: &str| symbols::all().iter().find(|symbol| symbol.name == name).map(|symbol| symbol.base);
        for overridden in NAMES.iter().filter_map(|name| base(name)) {
            for symbol in symbols::all().iter().filter(|symbol| symbol.base == overridden) {
                let there = NAMES.contains(&symbol.name) || LEFT_OUT.contains(&symbol.name);
                assert!(there, "{} is overridden and {} is not", overridden, symbol.name);
            }
        }
    }
}
