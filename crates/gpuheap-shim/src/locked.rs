//! Page-locked memory of the host, for the content of a process that sleeps. It stands behind no address of a device, and
//! so it can be made ten times as fast as memory that does: huge pages, which several threads clear, locked once.

use std::ffi::c_void;
use std::ptr::NonNull;

use gpuheap_cuda::raw::Code;
use gpuheap_cuda::{Device, Driver, Error, check};

use crate::pool::Piece;

/// The size of a huge page.
const HUGE: usize = 2 << 20;
/// Locked for all contexts.
const PORTABLE: u32 = 1;

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Locked {
    driver: Driver,
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: memory of the process; nothing here reads or writes it but the driver's copies.
unsafe impl Send for Locked {}
// SAFETY: as above.
unsafe impl Sync for Locked {}

impl Locked {
    /// Where it begins.
    pub(crate) fn start(&self) -> *mut c_void {
        self.start.as_ptr()
    }
}

impl Piece for Locked {
    fn make(device: &Device, bytes: usize) -> Result<Self, Error> {
        let refused = || Error::Call { call: "mmap", code: Code::OUT_OF_MEMORY };
        // Huge pages begin at multiples of their size, so there has to be room to begin at one.
        let (room, access) = (bytes.checked_add(HUGE).ok_or_else(refused)?, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new memory, wherever there is room.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), room, access, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(refused());
        }
        let before = mapped.addr().next_multiple_of(HUGE) - mapped.addr();
        // SAFETY: within the mapping, which has room for it.
        let start = unsafe { mapped.byte_add(before) };
        if before > 0 {
            // SAFETY: the part of the mapping that nobody uses.
            unsafe { libc::munmap(mapped, before) };
        }
        // SAFETY: the end of what is used, within the mapping.
        let end = unsafe { start.byte_add(bytes) };
        if HUGE > before {
            // SAFETY: the part of the mapping behind it.
            unsafe { libc::munmap(end, HUGE - before) };
        }
        // SAFETY: advice about this memory; a system without huge pages refuses it, and that is no matter.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        for offset in (0..bytes).step_by(HUGE) {
            // SAFETY: within the memory, which nobody else has.
            let page = unsafe { start.byte_add(offset) };
            // SAFETY: as above.
            unsafe { page.cast::<u8>().write_volatile(0) };
        }
        let locked = Self { driver: device.driver().clone(), start: NonNull::new(start).ok_or_else(refused)?, bytes };
        let context = device.context()?;
        let _current = context.enter()?;
        // SAFETY: memory of the process that stays mapped until it is unlocked.
        let code = unsafe { (device.driver().api().cuMemHostRegister_v2)(start, bytes, PORTABLE) };
        check("cuMemHostRegister_v2", code)?;
        Ok(locked)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_reached(&self, _: &Device) -> bool {
        true
    }

    fn reach(&self, _: &Device) -> Result<(), Error> {
        // It is locked for all.
        Ok(())
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: locked when it was made, if it was; what was not is refused.
        unsafe { (self.driver.api().cuMemHostUnregister)(self.start()) };
        // SAFETY: mapped when it was made, and nobody has it any more.
        unsafe { libc::munmap(self.start(), self.bytes) };
    }
}
