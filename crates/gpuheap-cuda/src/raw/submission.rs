//! What functions that give the device work take besides: descriptions and call-backs.

use std::ffi::c_void;

use super::{Code, Function, Stream};

/// A function of the host that runs in a stream's order.
pub type HostFn = Option<unsafe extern "C" fn(*mut c_void)>;
/// The same, told what came of the work before it.
pub type StreamCallback = Option<unsafe extern "C" fn(Stream, Code, *mut c_void)>;

/// One launch of those that `cuLaunchCooperativeKernelMultiDevice` makes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchParams {
    /// What is launched.
    pub function: Function,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of shared memory beyond what the kernel declares.
    pub shared_bytes: u32,
    /// The stream.
    pub stream: Stream,
    /// Pointers to the values of the parameters.
    pub parameters: *mut *mut c_void,
}

macro_rules! opaque {
    ($($(#[doc = $doc:literal])* $name:ident;)*) => {$(
        $(#[doc = $doc])*
        /// Only pointers to it are passed on here.
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _contents: [u8; 0],
        }
    )*};
}

opaque! {
    /// A copy of a rectangle, as it was before addresses had 64 bits.
    Memcpy2d32;
    /// A copy of a cuboid, as it was before addresses had 64 bits.
    Memcpy3d32;
    /// A copy of a cuboid between contexts.
    Memcpy3dPeer;
    /// A copy of a cuboid, one of many.
    MemcpyBatch3d;
    /// What is known about the places of a copy.
    MemcpyAttributes;
    /// Data that the device unpacks.
    DecompressParams;
    /// Memory behind a part of a sparse array.
    ArrayMapInfo;
    /// A value to wait for or to write.
    BatchMemOp;
    /// A capture for graphics.
    CigCaptureParams;
    /// What an edge of a graph means.
    GraphEdge;
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// The sizes that a C compiler gives with the toolkit's `cuda.h` of 13.2 on 64-bit Linux.
    #[test]
    fn structures_have_the_layout_of_the_c_declarations() {
        assert_eq!(size_of::<LaunchParams>(), 56);
        assert_eq!((offset_of!(LaunchParams, stream), offset_of!(LaunchParams, parameters)), (40, 48));
    }
}
