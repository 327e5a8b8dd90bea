//! The driver behind: its functions by pointers of our own, never by exported names, which lead here again.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use gpuheap_cuda::raw::{self, AllocationHandle, Code, DeviceId, DevicePtr, MemoryPool};
use gpuheap_ledger::Uuid;

use crate::overrides::NAMES;
use crate::parameters::Answer;

struct Real {
    handle: usize,
    /// Addresses of the functions in [`NAMES`]; 0 for what the driver lacks.
    overridden: Box<[usize]>,
}

fn real() -> &'static Real {
    static REAL: OnceLock<Real> = OnceLock::new();
    REAL.get_or_init(|| {
        // SAFETY: the loader loaded it with this library, which needs it: this only asks for its handle.
        let handle = unsafe { libc::dlopen(c"libcuda-real.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        let handle = handle.expose_provenance();
        Real { handle, overridden: NAMES.iter().map(|name| look_up(handle, name)).collect() }
    })
}

fn look_up(handle: usize, name: &str) -> usize {
    let Ok(name) = CString::new(name) else { return 0 };
    if handle == 0 {
        return 0;
    }
    // SAFETY: a handle of the driver, which stays as long as this library; the name ends in a zero byte.
    unsafe { libc::dlsym(std::ptr::with_exposed_provenance_mut(handle), name.as_ptr()) }.expose_provenance()
}

/// The driver's function of that name, exported or not overridden here.
pub(crate) fn find(name: &'static str) -> Option<*const c_void> {
    let address = look_up(real().handle, name);
    (address != 0).then(|| std::ptr::with_exposed_provenance(address))
}

/// The driver's function of that number in [`NAMES`].
pub(crate) fn overridden(number: usize) -> Option<*const c_void> {
    let address = real().overridden.get(number).copied().unwrap_or(0);
    (address != 0).then(|| std::ptr::with_exposed_provenance(address))
}

/// The number in [`NAMES`] of the driver's function at that address.
pub(crate) fn number_of(address: *const c_void) -> Option<usize> {
    let address = address.addr();
    real().overridden.iter().position(|found| *found == address && address != 0)
}

macro_rules! questions {
    ($($name:ident: fn($($ty:ty),*);)*) => {
        /// Functions of the driver that the bodies of overrides ask.
        #[allow(non_snake_case, reason = "the names are the driver's")]
        struct Questions { $($name: Option<unsafe extern "C" fn($($ty),*) -> Code>,)* }

        fn questions() -> &'static Questions {
            static QUESTIONS: OnceLock<Questions> = OnceLock::new();
            QUESTIONS.get_or_init(|| {
                let handle = real().handle;
                Questions { $($name: {
                    let address = look_up(handle, stringify!($name));
                    (address != 0).then(|| {
                        let address: *const c_void = std::ptr::with_exposed_provenance(address);
                        // SAFETY: the driver's function of that name has that signature.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($ty),*) -> Code>(address) }
                    })
                },)* }
            })
        }
    };
}

questions! {
    cuDeviceGetCount: fn(*mut c_int);
    cuDeviceGetUuid: fn(*mut [u8; 16], DeviceId);
    cuDeviceGetUuid_v2: fn(*mut [u8; 16], DeviceId);
    cuCtxGetCurrent: fn(*mut raw::Context);
    cuCtxGetDevice: fn(*mut DeviceId);
    cuDevicePrimaryCtxGetState: fn(DeviceId, *mut c_uint, *mut c_int);
    cuPointerGetAttribute: fn(*mut c_void, c_uint, DevicePtr);
    cuDeviceGetMemPool: fn(*mut MemoryPool, DeviceId);
    cuMemPoolGetAttribute: fn(MemoryPool, c_uint, *mut c_void);
    cuDeviceGetGraphMemAttribute: fn(DeviceId, c_uint, *mut c_void);
    cuMemGetInfo_v2: fn(*mut usize, *mut usize);
    cuMemGetAddressRange_v2: fn(*mut DevicePtr, *mut usize, DevicePtr);
    cuMemExportToShareableHandle: fn(*mut c_void, AllocationHandle, c_uint, u64);
    cuMemImportFromShareableHandle: fn(*mut AllocationHandle, *mut c_void, c_uint);
    cuMulticastBindMem: fn(AllocationHandle, usize, AllocationHandle, usize, usize, u64);
    cuMulticastBindMem_v2: fn(AllocationHandle, DeviceId, usize, AllocationHandle, usize, usize, u64);
    cuCtxPushCurrent_v2: fn(raw::Context);
    cuCtxPopCurrent_v2: fn(*mut raw::Context);
    cuGraphGetNodes: fn(raw::Graph, *mut raw::GraphNode, *mut usize);
    cuGraphNodeGetType: fn(raw::GraphNode, *mut c_uint);
    cuGraphKernelNodeGetParams: fn(raw::GraphNode, *mut raw::KernelNodeParams);
    cuGraphKernelNodeGetParams_v2: fn(raw::GraphNode, *mut raw::KernelNodeParams);
    cuGraphChildGraphNodeGetGraph: fn(raw::GraphNode, *mut raw::Graph);
    cuFuncGetName: fn(*mut *const c_char, raw::Function);
    cuKernelGetName: fn(*mut *const c_char, raw::Kernel);
    cuFuncGetParamInfo: fn(raw::Function, usize, *mut usize, *mut usize);
    cuKernelGetParamInfo: fn(raw::Kernel, usize, *mut usize, *mut usize);
}

/// How many devices the process may use.
pub(crate) fn device_count() -> DeviceId {
    let mut count = 0;
    let Some(ask) = questions().cuDeviceGetCount else { return 0 };
    // SAFETY: `count` outlives the call.
    if unsafe { ask(&raw mut count) }.is_success() { count } else { 0 }
}

/// A device's UUID, of the part if it is one of a device that is cut into parts.
pub(crate) fn uuid(device: DeviceId) -> Option<Uuid> {
    let mut bytes = [0; 16];
    // The older form does not tell parts.
    let ask = questions().cuDeviceGetUuid_v2.or(questions().cuDeviceGetUuid)?;
    // SAFETY: `bytes` outlives the call.
    unsafe { ask(&raw mut bytes, device) }.is_success().then(|| Uuid::from_bytes(bytes))
}

/// The calling thread's context and its device, if it has one.
pub(crate) fn current() -> Option<(usize, DeviceId)> {
    let (mut context, mut device) = (raw::Context::NULL, -1);
    let ask = questions().cuCtxGetCurrent?;
    // SAFETY: `context` outlives the call.
    let found = unsafe { ask(&raw mut context) };
    if !found.is_success() || context.is_null() {
        return None;
    }
    let ask = questions().cuCtxGetDevice?;
    // SAFETY: `device` outlives the call.
    unsafe { ask(&raw mut device) }.is_success().then_some((context.0, device))
}

/// Whether a device's primary context is there.
pub(crate) fn has_primary(device: DeviceId) -> Option<bool> {
    let (mut flags, mut active) = (0, 0);
    let ask = questions().cuDevicePrimaryCtxGetState?;
    // SAFETY: both outlive the call.
    unsafe { ask(device, &raw mut flags, &raw mut active) }.is_success().then_some(active != 0)
}

/// The pool that an address came from, and its device; nothing for other memory.
pub(crate) fn pool_of(address: DevicePtr) -> Option<(MemoryPool, DeviceId)> {
    let (mut pool, mut device): (MemoryPool, DeviceId) = (MemoryPool::NULL, -1);
    let ask = questions().cuPointerGetAttribute?;
    // SAFETY: the attribute is a handle, and `pool` outlives the call.
    let found = unsafe { ask((&raw mut pool).cast(), raw::pointer_attribute::MEMPOOL_HANDLE, address) };
    if !found.is_success() || pool.is_null() {
        return None;
    }
    // SAFETY: the attribute has 32 bits, and `device` outlives the call.
    let found = unsafe { ask((&raw mut device).cast(), raw::pointer_attribute::DEVICE_ORDINAL, address) };
    found.is_success().then_some((pool, device))
}

/// The pool of allocations that name none.
pub(crate) fn current_pool(device: DeviceId) -> Option<MemoryPool> {
    let mut pool = MemoryPool::NULL;
    let ask = questions().cuDeviceGetMemPool?;
    // SAFETY: `pool` outlives the call.
    unsafe { ask(&raw mut pool, device) }.is_success().then_some(pool)
}

/// Bytes that a pool holds, and that are in use; nothing if there is no such pool any more.
pub(crate) fn pool_bytes(pool: MemoryPool) -> Option<(u64, u64)> {
    let ask = questions().cuMemPoolGetAttribute?;
    let read = |attribute| {
        let mut bytes = 0_u64;
        // SAFETY: the attribute has 64 bits, and `bytes` outlives the call.
        unsafe { ask(pool, attribute, (&raw mut bytes).cast()) }.is_success().then_some(bytes)
    };
    Some((read(raw::pool_attribute::RESERVED_CURRENT)?, read(raw::pool_attribute::USED_CURRENT)?))
}

/// Bytes that a device holds for graphs.
pub(crate) fn graph_bytes(device: DeviceId) -> Option<u64> {
    const RESERVED_CURRENT: c_uint = 2;
    let mut bytes = 0_u64;
    let ask = questions().cuDeviceGetGraphMemAttribute?;
    // SAFETY: the attribute has 64 bits, and `bytes` outlives the call.
    unsafe { ask(device, RESERVED_CURRENT, (&raw mut bytes).cast()) }.is_success().then_some(bytes)
}

/// The size of the allocation at an address.
pub(crate) fn range_bytes(address: DevicePtr) -> Option<usize> {
    let mut bytes = 0;
    let ask = questions().cuMemGetAddressRange_v2?;
    // SAFETY: `bytes` outlives the call; where it begins is not asked.
    unsafe { ask(std::ptr::null_mut(), &raw mut bytes, address) }.is_success().then_some(bytes)
}

/// Free and total bytes of the calling thread's device.
pub(crate) fn device_bytes() -> Result<(usize, usize), Code> {
    let (mut free, mut total) = (0, 0);
    let ask = questions().cuMemGetInfo_v2.ok_or(Code::NOT_FOUND)?;
    // SAFETY: both outlive the call.
    let code = unsafe { ask(&raw mut free, &raw mut total) };
    if code.is_success() { Ok((free, total)) } else { Err(code) }
}

/// Passes memory on.
pub(crate) fn export(shared: *mut c_void, handle: AllocationHandle, kind: c_uint, flags: u64) -> Code {
    let Some(ask) = questions().cuMemExportToShareableHandle else { return Code::NOT_FOUND };
    // SAFETY: the program's own call, but for the handle.
    unsafe { ask(shared, handle, kind, flags) }
}

/// Takes memory that was passed on as a descriptor of a file.
pub(crate) fn import(descriptor: c_int) -> Result<AllocationHandle, Code> {
    let mut handle = AllocationHandle(0);
    let Some(ask) = questions().cuMemImportFromShareableHandle else { return Err(Code::NOT_FOUND) };
    let shared = std::ptr::without_provenance_mut(usize::try_from(descriptor).map_err(|_| Code::INVALID_VALUE)?);
    // SAFETY: `handle` outlives the call; where a descriptor is wanted, it stands for the pointer itself.
    let code = unsafe { ask(&raw mut handle, shared, raw::HANDLE_FILE_DESCRIPTOR) };
    if code.is_success() { Ok(handle) } else { Err(code) }
}

/// Binds memory to a multicast object.
pub(crate) fn bind_multicast(
    multicast: AllocationHandle,
    multicast_offset: usize,
    memory: AllocationHandle,
    offset: usize,
    bytes: usize,
    flags: u64,
) -> Code {
    let Some(ask) = questions().cuMulticastBindMem else { return Code::NOT_FOUND };
    // SAFETY: the program's own call, but for the handle.
    unsafe { ask(multicast, multicast_offset, memory, offset, bytes, flags) }
}

/// The same, for one device.
pub(crate) fn bind_multicast_on(
    multicast: AllocationHandle,
    device: DeviceId,
    multicast_offset: usize,
    memory: AllocationHandle,
    offset: usize,
    bytes: usize,
    flags: u64,
) -> Code {
    let Some(ask) = questions().cuMulticastBindMem_v2 else { return Code::NOT_FOUND };
    // SAFETY: the program's own call, but for the handle.
    unsafe { ask(multicast, device, multicast_offset, memory, offset, bytes, flags) }
}

/// The device of a context.
pub(crate) fn device_of(context: raw::Context) -> Option<DeviceId> {
    let (push, pop) = (questions().cuCtxPushCurrent_v2?, questions().cuCtxPopCurrent_v2?);
    // SAFETY: a context of the program's.
    if !unsafe { push(context) }.is_success() {
        return None;
    }
    let device = current().map(|(_, device)| device);
    let mut popped = raw::Context::NULL;
    // SAFETY: pushed above; `popped` outlives the call.
    unsafe { pop(&raw mut popped) };
    device
}

/// All nodes of a graph.
pub(crate) fn nodes(graph: raw::Graph) -> Vec<raw::GraphNode> {
    let Some(ask) = questions().cuGraphGetNodes else { return Vec::new() };
    let mut count = 0;
    // SAFETY: a graph of the program's; `count` outlives the call, and without a place for nodes they are counted.
    if !unsafe { ask(graph, std::ptr::null_mut(), &raw mut count) }.is_success() {
        return Vec::new();
    }
    let mut nodes = vec![raw::GraphNode(0); count];
    // SAFETY: as above, with a place for so many.
    let code = unsafe { ask(graph, nodes.as_mut_ptr(), &raw mut count) };
    nodes.truncate(if code.is_success() { count } else { 0 });
    nodes
}

/// What a node is: [`raw::node`].
pub(crate) fn node_kind(node: raw::GraphNode) -> Option<c_uint> {
    let mut kind = 0;
    let ask = questions().cuGraphNodeGetType?;
    // SAFETY: a node of the program's; `kind` outlives the call.
    unsafe { ask(node, &raw mut kind) }.is_success().then_some(kind)
}

/// What a node that is a kernel launches.
pub(crate) fn kernel_node(node: raw::GraphNode) -> Option<raw::KernelNodeParams> {
    let mut params = std::mem::MaybeUninit::<raw::KernelNodeParams>::zeroed();
    let ask = questions().cuGraphKernelNodeGetParams_v2.or(questions().cuGraphKernelNodeGetParams)?;
    // SAFETY: a node of the program's; `params` outlives the call and has room for either form.
    let code = unsafe { ask(node, params.as_mut_ptr()) };
    // SAFETY: zeroes are a value of it, and what the driver writes is.
    code.is_success().then(|| unsafe { params.assume_init() })
}

/// The graph that a node is.
pub(crate) fn child_graph(node: raw::GraphNode) -> Option<raw::Graph> {
    let mut graph = raw::Graph::NULL;
    let ask = questions().cuGraphChildGraphNodeGetGraph?;
    // SAFETY: a node of the program's; `graph` outlives the call.
    unsafe { ask(node, &raw mut graph) }.is_success().then_some(graph)
}

/// Asks something about the name of a kernel; false if it has none.
pub(crate) fn name_is(function: raw::Function, what: impl FnOnce(&[u8]) -> bool) -> bool {
    let mut name = std::ptr::null();
    // SAFETY: the handle is the program's, which launches it; `name` outlives the call.
    let of_module = questions().cuFuncGetName.map(|ask| unsafe { ask(&raw mut name, function) });
    if !of_module.is_some_and(Code::is_success) {
        let Some(ask) = questions().cuKernelGetName else { return false };
        // SAFETY: as above.
        if !unsafe { ask(&raw mut name, raw::Kernel(function.0)) }.is_success() {
            return false;
        }
    }
    if name.is_null() {
        return false;
    }
    // SAFETY: the driver's own text, there as long as the kernel is.
    what(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// A parameter of a kernel. What is launched may be a function of a module or, called one, a kernel of a library: the
/// driver has a question for each sort and refuses the other.
pub(crate) fn parameter(function: raw::Function, number: usize) -> Answer {
    let (mut offset, mut bytes) = (0, 0);
    // SAFETY: the handle is the program's, which launches it; both numbers outlive the call.
    let of_module =
        questions().cuFuncGetParamInfo.map(|ask| unsafe { ask(function, number, &raw mut offset, &raw mut bytes) });
    if of_module.is_some_and(Code::is_success) {
        return Answer::Parameter { offset, bytes };
    }
    let kernel = raw::Kernel(function.0);
    // SAFETY: as above.
    let of_library =
        questions().cuKernelGetParamInfo.map(|ask| unsafe { ask(kernel, number, &raw mut offset, &raw mut bytes) });
    if of_library.is_some_and(Code::is_success) {
        return Answer::Parameter { offset, bytes };
    }
    // That is what either says of a number beyond the last.
    let end = [of_module, of_library].contains(&Some(Code::INVALID_VALUE));
    if end { Answer::End } else { Answer::Unknown }
}
