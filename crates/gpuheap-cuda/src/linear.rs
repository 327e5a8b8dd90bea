//! Memory as `cuMemAlloc` gives it, and page-locked memory of the host.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::context::{Context, DeviceMemory};
use crate::error::Error;
use crate::library::check;
use crate::raw::DevicePtr;

/// Memory of a device by `cuMemAlloc`.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Context,
    address: DevicePtr,
    bytes: usize,
}

impl DeviceBuffer {
    /// `bytes` bytes, with whatever is in them.
    pub fn new(context: &Context, bytes: usize) -> Result<Self, Error> {
        let _current = context.enter()?;
        let mut address = DevicePtr::NULL;
        // SAFETY: `address` outlives the call.
        check("cuMemAlloc_v2", unsafe { (context.api().cuMemAlloc_v2)(&raw mut address, bytes) })?;
        Ok(Self { context: context.clone(), address, bytes })
    }
}

impl DeviceMemory for DeviceBuffer {
    fn address(&self) -> DevicePtr {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: allocated when this was made, and freed here alone. A context that failed frees nothing.
        unsafe { (self.context.api().cuMemFree_v2)(self.address) };
    }
}

/// Page-locked memory of the host, which copies reach without a detour and kernels at its own address.
///
/// A kernel may write it at any time, so it is read and written through `read` and `write` only, never borrowed.
#[derive(Debug)]
pub struct HostBuffer {
    context: Context,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the process, not to a thread, and is reached by volatile accesses alone.
unsafe impl Send for HostBuffer {}
// SAFETY: as above; accesses through a shared reference are volatile and of single words.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// `bytes` bytes, all zero.
    pub fn new(context: &Context, bytes: usize) -> Result<Self, Error> {
        let _current = context.enter()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: `start` outlives the call.
        check("cuMemAllocHost_v2", unsafe { (context.api().cuMemAllocHost_v2)(&raw mut start, bytes) })?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Error::Range { offset: 0, length: bytes, size: 0 })?;
        // SAFETY: the driver gave `bytes` bytes there.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self { context: context.clone(), start, bytes })
    }

    /// The 32-bit word at byte `offset`.
    pub fn read(&self, offset: usize) -> Result<u32, Error> {
        // SAFETY: the word is within this memory and aligned; a device may write it, hence volatile.
        Ok(unsafe { self.word(offset)?.read_volatile() })
    }

    /// Writes the 32-bit word at byte `offset`.
    pub fn write(&self, offset: usize, value: u32) -> Result<(), Error> {
        let word = self.word(offset)?;
        // SAFETY: the word is within this memory and aligned; a device may read it, hence volatile.
        unsafe { word.write_volatile(value) };
        Ok(())
    }

    fn word(&self, offset: usize) -> Result<NonNull<u32>, Error> {
        self.range(offset, 4)?;
        if !offset.is_multiple_of(4) {
            return Err(Error::Range { offset, length: 4, size: self.bytes });
        }
        // SAFETY: `offset` is within the allocation.
        Ok(unsafe { self.start.add(offset) }.cast())
    }
}

/// By unified addressing the device knows it by the same address.
impl DeviceMemory for HostBuffer {
    fn address(&self) -> DevicePtr {
        DevicePtr(self.start.as_ptr().expose_provenance())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: allocated when this was made, and freed here alone.
        unsafe { (self.context.api().cuMemFreeHost)(self.start.as_ptr().cast()) };
    }
}
