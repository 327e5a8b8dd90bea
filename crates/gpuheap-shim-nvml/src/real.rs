//! The library behind: its functions by pointers of our own, never by exported names, which may lead here again.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function of the library behind.
pub(crate) struct Function {
    name: &'static CStr,
    /// Where it is; 0 as long as it was not found. Whoever comes at once finds the same: nobody waits for anybody.
    address: AtomicUsize,
}

impl Function {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicUsize::new(0) }
    }

    /// Where it is; nothing if the library lacks it.
    pub(crate) fn find(&self) -> Option<*const c_void> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address == 0 {
            address = look_up(self.name);
            self.address.store(address, Ordering::Relaxed);
        }
        (address != 0).then(|| std::ptr::with_exposed_provenance(address))
    }
}

fn look_up(name: &CStr) -> usize {
    // SAFETY: the loader loaded it with this library, which needs it: this only asks for its handle. It is never given
    // back: the library stays as long as this one, which is never unloaded.
    let handle = unsafe { libc::dlopen(c"libnvidia-ml-real.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return 0;
    }
    // SAFETY: the handle is good, and the name ends in a zero byte.
    unsafe { libc::dlsym(handle, name.as_ptr()) }.expose_provenance()
}
