//! The driver's types and numbers, as they are in memory.
//!
//! Handles are numbers of a pointer's size, so that they can be kept, compared and sent to other threads; only the
//! driver looks behind them. Structures have the layout of the C declarations for 64-bit systems, which the tests check.

mod code;
mod submission;

use std::ffi::c_void;

pub use code::Code;
pub use submission::{
    ArrayMapInfo, BatchMemOp, CigCaptureParams, DecompressParams, GraphEdge, HostFn, LaunchParams, Memcpy2d32,
    Memcpy3d32, Memcpy3dPeer, MemcpyAttributes, MemcpyBatch3d, StreamCallback,
};

macro_rules! handles {
    ($($(#[doc = $doc:literal])* $name:ident;)*) => {$(
        $(#[doc = $doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub usize);

        impl $name {
            /// No object.
            pub const NULL: Self = Self(0);

            /// Whether it names no object.
            #[must_use]
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }
        }
    )*};
}

handles! {
    /// An address in memory that the device reaches.
    DevicePtr;
    /// A context.
    Context;
    /// A stream; see [`Stream::LEGACY`] and [`Stream::PER_THREAD`].
    Stream;
    /// An event.
    Event;
    /// A module.
    Module;
    /// A function of a module.
    Function;
    /// A library of modules.
    Library;
    /// A function of a library.
    Kernel;
    /// A pool of stream-ordered memory.
    MemoryPool;
    /// An array.
    Array;
    /// An array with all its levels of detail.
    MipmappedArray;
    /// A graph.
    Graph;
    /// A node of a graph.
    GraphNode;
    /// A graph that can be launched.
    GraphExec;
    /// Memory that another interface gave.
    ExternalMemory;
}

impl Stream {
    /// The stream that waits for all others of its context, whatever "stream 0" means.
    pub const LEGACY: Self = Self(1);
    /// The calling thread's own default stream.
    pub const PER_THREAD: Self = Self(2);
}

/// A device: its ordinal.
pub type DeviceId = i32;

/// Physical memory, as `cuMemCreate` gives it.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct AllocationHandle(pub u64);

/// Where memory is: a [`location`] and an ordinal or a node.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MemLocation {
    /// One of [`location`].
    pub kind: u32,
    /// The device's ordinal or the host's node.
    pub id: i32,
}

/// Kinds of places.
pub mod location {
    /// Memory of a device.
    pub const DEVICE: u32 = 1;
    /// Memory of the host, wherever.
    pub const HOST: u32 = 2;
    /// Memory of one node of the host.
    pub const HOST_NUMA: u32 = 3;
    /// Memory of the calling thread's node.
    pub const HOST_NUMA_CURRENT: u32 = 4;
}

/// The kind of allocation that all physical memory here is: it stays where it is.
pub const ALLOCATION_PINNED: u32 = 1;
/// A handle that can be passed on as a file descriptor.
pub const HANDLE_FILE_DESCRIPTOR: u32 = 1;
/// A handle that can be passed on to other machines.
pub const HANDLE_FABRIC: u32 = 8;
/// A stream that does not wait for the default stream.
pub const STREAM_NON_BLOCKING: u32 = 1;
/// An event without a time, which costs less.
pub const EVENT_NO_TIMES: u32 = 2;
/// No access.
pub const ACCESS_NONE: u32 = 0;
/// Reading.
pub const ACCESS_READ: u32 = 1;
/// Reading and writing.
pub const ACCESS_READ_WRITE: u32 = 3;
/// The smallest granularity rather than the recommended one.
pub const GRANULARITY_MINIMUM: u32 = 0;
/// `cuGetProcAddress`: functions that mean the calling thread's default stream.
pub const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// What physical memory is asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    /// [`ALLOCATION_PINNED`].
    pub kind: u32,
    /// As what the handle may be passed on.
    pub handle_types: u32,
    /// Where.
    pub location: MemLocation,
    /// Nothing but on Windows.
    pub security: *const c_void,
    /// Compression.
    pub compression: u8,
    /// Whether network cards shall reach it.
    pub rdma: u8,
    /// Use.
    pub usage: u16,
    /// Nothing yet.
    pub reserved: [u8; 4],
}

// SAFETY: a description; nothing here reaches through its pointer, which only Windows uses.
unsafe impl Send for AllocationProp {}
// SAFETY: as above.
unsafe impl Sync for AllocationProp {}

impl AllocationProp {
    /// Plain memory at `location`.
    #[must_use]
    pub const fn at(location: MemLocation) -> Self {
        Self {
            kind: ALLOCATION_PINNED,
            handle_types: 0,
            location,
            security: std::ptr::null(),
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// Who may do what with a mapping.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessDesc {
    /// Who.
    pub location: MemLocation,
    /// What: [`ACCESS_READ_WRITE`], for example.
    pub flags: u32,
}

/// What a pool is asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolProps {
    /// [`ALLOCATION_PINNED`].
    pub kind: u32,
    /// As what it may be passed on.
    pub handle_types: u32,
    /// Where.
    pub location: MemLocation,
    /// Nothing but on Windows.
    pub security: *const c_void,
    /// The most it may hold; 0 is a limit of the system's choice.
    pub max_size: usize,
    /// Use.
    pub usage: u16,
    /// Nothing yet.
    pub reserved: [u8; 54],
}

/// Attributes of a pool.
pub mod pool_attribute {
    /// Bytes to keep when a synchronisation could give memory back.
    pub const RELEASE_THRESHOLD: u32 = 4;
    /// Bytes that the pool holds.
    pub const RESERVED_CURRENT: u32 = 5;
    /// The most it ever held.
    pub const RESERVED_HIGH: u32 = 6;
    /// Bytes in use.
    pub const USED_CURRENT: u32 = 7;
    /// The most that ever were.
    pub const USED_HIGH: u32 = 8;
}

/// Attributes of a pointer.
pub mod pointer_attribute {
    /// The context that it belongs to.
    pub const CONTEXT: u32 = 1;
    /// Of the host or of a device: see [`super::memory_type`].
    pub const MEMORY_TYPE: u32 = 2;
    /// The address by which a device reaches it.
    pub const DEVICE_POINTER: u32 = 3;
    /// The address by which the host reaches it.
    pub const HOST_POINTER: u32 = 4;
    /// Tokens by which other drivers find the memory.
    pub const P2P_TOKENS: u32 = 5;
    /// Whether operations on it are synchronous.
    pub const SYNC_MEMOPS: u32 = 6;
    /// A number that no other allocation of the process has.
    pub const BUFFER_ID: u32 = 7;
    /// Whether it is managed memory.
    pub const IS_MANAGED: u32 = 8;
    /// The device that it belongs to.
    pub const DEVICE_ORDINAL: u32 = 9;
    /// Whether `cuIpcGetMemHandle` takes it.
    pub const IS_LEGACY_IPC: u32 = 10;
    /// Where its allocation begins.
    pub const RANGE_START: u32 = 11;
    /// The size of its allocation.
    pub const RANGE_SIZE: u32 = 12;
    /// Whether it is mapped to physical memory.
    pub const MAPPED: u32 = 13;
    /// The pool that it came from.
    pub const MEMPOOL_HANDLE: u32 = 17;
}

/// Kinds of memory in descriptions of copies and in pointer attributes.
pub mod memory_type {
    /// Of the host.
    pub const HOST: u32 = 1;
    /// Of a device.
    pub const DEVICE: u32 = 2;
    /// An array.
    pub const ARRAY: u32 = 3;
    /// Whatever the address says.
    pub const UNIFIED: u32 = 4;
}

/// A node of a graph that launches a kernel, as `cuGraphKernelNodeGetParams_v2` tells it. The older form of that function
/// fills what comes before `kernel`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelNodeParams {
    /// A function of a module; null if it is a kernel of a library.
    pub function: Function,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of shared memory beyond what the kernel declares.
    pub shared_bytes: u32,
    /// A pointer to the value of each parameter.
    pub parameters: *mut *mut c_void,
    /// Names and values in turn, if all parameters are together.
    pub extra: *mut *mut c_void,
    /// A kernel of a library; null if it is a function of a module.
    pub kernel: Kernel,
    /// The context.
    pub context: Context,
}

/// What nodes of graphs are, as far as somebody asks.
pub mod node {
    /// A kernel.
    pub const KERNEL: u32 = 0;
    /// A copy.
    pub const COPY: u32 = 1;
    /// A graph.
    pub const GRAPH: u32 = 4;
    /// Memory that is allocated.
    pub const ALLOC: u32 = 10;
    /// Memory that is freed.
    pub const FREE: u32 = 11;
}

/// How a kernel is launched by `cuLaunchKernelEx`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of shared memory beyond what the kernel declares.
    pub shared_bytes: u32,
    /// The stream.
    pub stream: Stream,
    /// Attributes.
    pub attributes: *const c_void,
    /// How many.
    pub attribute_count: u32,
}

/// A copy of a rectangle.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are the driver's")]
pub struct Memcpy2d {
    pub src_x_bytes: usize,
    pub src_y: usize,
    pub src_type: u32,
    pub src_host: *const c_void,
    pub src_device: DevicePtr,
    pub src_array: Array,
    pub src_pitch: usize,
    pub dst_x_bytes: usize,
    pub dst_y: usize,
    pub dst_type: u32,
    pub dst_host: *mut c_void,
    pub dst_device: DevicePtr,
    pub dst_array: Array,
    pub dst_pitch: usize,
    pub width_bytes: usize,
    pub height: usize,
}

/// A copy of a cuboid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are the driver's")]
pub struct Memcpy3d {
    pub src_x_bytes: usize,
    pub src_y: usize,
    pub src_z: usize,
    pub src_lod: usize,
    pub src_type: u32,
    pub src_host: *const c_void,
    pub src_device: DevicePtr,
    pub src_array: Array,
    pub reserved0: *const c_void,
    pub src_pitch: usize,
    pub src_height: usize,
    pub dst_x_bytes: usize,
    pub dst_y: usize,
    pub dst_z: usize,
    pub dst_lod: usize,
    pub dst_type: u32,
    pub dst_host: *mut c_void,
    pub dst_device: DevicePtr,
    pub dst_array: Array,
    pub reserved1: *const c_void,
    pub dst_pitch: usize,
    pub dst_height: usize,
    pub width_bytes: usize,
    pub height: usize,
    pub depth: usize,
}

/// What a one- or two-dimensional array is asked for.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArrayDesc {
    /// Elements in a row.
    pub width: usize,
    /// Rows; 0 for one dimension.
    pub height: usize,
    /// What an element is.
    pub format: u32,
    /// Values of an element.
    pub channels: u32,
}

/// What an array of up to three dimensions is asked for.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Array3dDesc {
    /// Elements in a row.
    pub width: usize,
    /// Rows; 0 for one dimension.
    pub height: usize,
    /// Slices; 0 for two dimensions.
    pub depth: usize,
    /// What an element is.
    pub format: u32,
    /// Values of an element.
    pub channels: u32,
    /// Layers, cubes, surfaces.
    pub flags: u32,
}

/// Memory as another process is told of it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpcHandle(pub [u8; 64]);

/// What a node of a graph allocates; the driver writes the address into it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocNodeParams {
    /// What it is asked for.
    pub pool: PoolProps,
    /// Who may do what.
    pub access: *const AccessDesc,
    /// How many.
    pub access_count: usize,
    /// How many bytes.
    pub bytes: usize,
    /// Where it will be.
    pub address: DevicePtr,
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// The sizes that a C compiler gives with the toolkit's `cuda.h` of 13.2 on 64-bit Linux.
    #[test]
    fn structures_have_the_layout_of_the_c_declarations() {
        assert_eq!(size_of::<AllocationProp>(), 32);
        assert_eq!((offset_of!(AllocationProp, security), offset_of!(AllocationProp, usage)), (16, 26));
        assert_eq!(size_of::<AccessDesc>(), 12);
        assert_eq!((size_of::<PoolProps>(), offset_of!(PoolProps, max_size)), (88, 24));
        assert_eq!((size_of::<LaunchConfig>(), offset_of!(LaunchConfig, stream)), (56, 32));
        assert_eq!((size_of::<Memcpy2d>(), offset_of!(Memcpy2d, dst_host)), (128, 80));
        assert_eq!((size_of::<Memcpy3d>(), offset_of!(Memcpy3d, dst_host)), (200, 128));
        assert_eq!((size_of::<ArrayDesc>(), size_of::<Array3dDesc>()), (24, 40));
        assert_eq!((size_of::<AllocNodeParams>(), offset_of!(AllocNodeParams, address)), (120, 112));
    }
}
