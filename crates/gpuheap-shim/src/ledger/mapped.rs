//! Memory for the figures: the run's file, or the process's own.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use gpuheap_ledger::Shared;

/// Memory of the process, should mapping fail.
pub(super) fn zeroed() -> &'static Shared {
    let mut shared = Box::<Shared>::new_uninit();
    // SAFETY: one of them is there.
    unsafe { shared.as_mut_ptr().write_bytes(0, 1) };
    // SAFETY: all of it is atomics, for which zero is a value.
    Box::leak(unsafe { shared.assume_init() })
}

/// Maps the file, made as large as it has to be. Nothing if that does not work.
pub(super) fn file(path: &Path) -> Option<&'static Shared> {
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the name ends in a zero byte.
    let file = unsafe { libc::open(name.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC, 0o600) };
    if file < 0 {
        return None;
    }
    let size = libc::off_t::try_from(size_of::<Shared>()).ok()?;
    // SAFETY: takes numbers only.
    let end = unsafe { libc::lseek(file, 0, libc::SEEK_END) };
    // A file of another size is something else, and stays as it is.
    // SAFETY: takes numbers only. Whoever else makes the file makes it as large.
    let grown = end == size || (end == 0 && unsafe { libc::ftruncate(file, size) } == 0);
    let shared = if grown { map(file, libc::MAP_SHARED) } else { None };
    // SAFETY: opened above; the mapping stays without it.
    unsafe { libc::close(file) };
    shared
}

/// Memory that only this process and children without a program of their own have.
pub(super) fn private() -> Option<&'static Shared> {
    map(-1, libc::MAP_SHARED | libc::MAP_ANONYMOUS)
}

fn map(file: i32, flags: i32) -> Option<&'static Shared> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, wherever there is room.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), access, flags, file, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: mapped for good, large enough, aligned to a page, and all of it atomics, for which any bytes are values.
    Some(unsafe { &*start.cast::<Shared>() })
}
