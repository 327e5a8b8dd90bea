//! Host memory under a device's addresses: files in memory, mapped where they are wanted, so that what is freed or
//! unmapped is not there any more for anyone who still reaches for it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use gpuheap_cuda::raw::Code;

/// The granularity of physical memory and of reservations.
pub(crate) const GRANULARITY: usize = 2 << 20;
/// The host's own.
pub(crate) const PAGE: usize = 4096;

/// `bytes` rounded up to a multiple of `unit`.
pub(crate) fn round_up(bytes: usize, unit: usize) -> Result<usize, Code> {
    bytes.checked_next_multiple_of(unit).ok_or(Code::OUT_OF_MEMORY)
}

/// Memory that can be mapped, by this process and by others.
#[derive(Clone, Debug)]
pub(crate) struct Backing {
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) bytes: usize,
}

impl Backing {
    /// `bytes` bytes, all zero. Nothing is taken from the host before it is written.
    pub(crate) fn new(bytes: usize) -> Result<Self, Code> {
        // SAFETY: the name is a text that ends in a zero byte.
        let number = unsafe { libc::memfd_create(c"gpuheap-fakecuda".as_ptr(), libc::MFD_CLOEXEC) };
        if number < 0 {
            return Err(Code::OPERATING_SYSTEM);
        }
        // SAFETY: the call above made it, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(number) };
        let length = libc::off_t::try_from(bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
        // SAFETY: takes numbers only.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
            return Err(Code::OUT_OF_MEMORY);
        }
        Ok(Self { file: Arc::new(file), bytes })
    }

    /// Memory behind a file that another owner gave, a copy of whose descriptor is taken.
    pub(crate) fn from_descriptor(number: i32) -> Result<Self, Code> {
        // SAFETY: takes a number only.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the call above made it, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(copy) };
        // SAFETY: takes numbers only.
        let bytes = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
        let bytes = usize::try_from(bytes).map_err(|_| Code::INVALID_VALUE)?;
        Ok(Self { file: Arc::new(file), bytes })
    }

    /// A new descriptor of it, for someone else.
    pub(crate) fn descriptor(&self) -> Result<i32, Code> {
        // SAFETY: takes numbers only.
        let copy = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 { Err(Code::OPERATING_SYSTEM) } else { Ok(copy) }
    }

    /// Maps all of it, wherever there is room.
    pub(crate) fn map_anywhere(&self) -> Result<usize, Code> {
        map(0, self.bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, self.file.as_raw_fd())
    }

    /// Maps all of it at `address`, within a reservation, for nobody yet.
    pub(crate) fn map_at(&self, address: usize) -> Result<(), Code> {
        map(address, self.bytes, libc::PROT_NONE, libc::MAP_SHARED | libc::MAP_FIXED, self.file.as_raw_fd()).map(drop)
    }
}

/// Addresses for nobody, at a multiple of `alignment`.
pub(crate) fn reserve(bytes: usize, alignment: usize) -> Result<usize, Code> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let all = bytes.checked_add(alignment).ok_or(Code::OUT_OF_MEMORY)?;
    let start = map(0, all, libc::PROT_NONE, flags, -1)?;
    let address = round_up(start, alignment)?;
    if address > start {
        unmap(start, address - start);
    }
    let (end, all_end) = (address + bytes, start + all);
    if all_end > end {
        unmap(end, all_end - end);
    }
    Ok(address)
}

/// Takes away what is mapped, and keeps the addresses reserved.
pub(crate) fn clear(address: usize, bytes: usize) -> Result<(), Code> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    map(address, bytes, libc::PROT_NONE, flags, -1).map(drop)
}

/// Anonymous memory, for the host's side.
pub(crate) fn anonymous(bytes: usize) -> Result<usize, Code> {
    map(0, bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
}

/// Lets the host read, or read and write, or neither.
pub(crate) fn protect(address: usize, bytes: usize, read: bool, write: bool) -> Result<(), Code> {
    let protection = match (read, write) {
        (_, true) => libc::PROT_READ | libc::PROT_WRITE,
        (true, false) => libc::PROT_READ,
        (false, false) => libc::PROT_NONE,
    };
    // SAFETY: changes pages that this driver mapped and that its tables say are there.
    let changed = unsafe { libc::mprotect(std::ptr::with_exposed_provenance_mut(address), bytes, protection) };
    if changed == 0 { Ok(()) } else { Err(Code::UNKNOWN) }
}

/// Gives addresses back, with what is mapped there.
pub(crate) fn unmap(address: usize, bytes: usize) {
    // SAFETY: takes away pages that this driver mapped; its tables are changed with it.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(address), bytes) };
}

fn map(address: usize, bytes: usize, protection: i32, flags: i32, file: i32) -> Result<usize, Code> {
    let wanted = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: a fixed address lies within a reservation of this driver, whose tables say that nothing of value is there.
    let start = unsafe { libc::mmap(wanted, bytes, protection, flags, file, 0) };
    if start == libc::MAP_FAILED { Err(Code::OUT_OF_MEMORY) } else { Ok(start.expose_provenance()) }
}

/// Copies host memory; the ranges may overlap.
pub(crate) fn copy(target: usize, source: usize, bytes: usize) {
    let target: *mut u8 = std::ptr::with_exposed_provenance_mut(target);
    // SAFETY: device ranges were looked up in the tables under the lock that unmapping needs as well; host ranges are
    // the caller's promise.
    unsafe { std::ptr::copy(std::ptr::with_exposed_provenance::<u8>(source), target, bytes) };
}

/// Repeats `pattern` over host memory.
pub(crate) fn fill(target: usize, pattern: &[u8], bytes: usize) {
    let target: *mut u8 = std::ptr::with_exposed_provenance_mut(target);
    // SAFETY: as for `copy`.
    let target = unsafe { std::slice::from_raw_parts_mut(target, bytes) };
    // The pattern once, and then what is there again and again.
    let mut done = pattern.len().min(bytes);
    target[..done].copy_from_slice(&pattern[..done]);
    while done < bytes && done > 0 {
        let more = done.min(bytes - done);
        target.copy_within(..more, done);
        done += more;
    }
}

/// Lets the process have as many files as it may: each allocation is one.
pub(crate) fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 && limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` outlives the call.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}
