//! `cuGetProcAddress`: functions by base name, version and default stream.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use gpuheap_cuda::raw::{Code, PER_THREAD_DEFAULT_STREAM};
use gpuheap_cuda::symbols;

use crate::entry::{Out, exports, offer};
use crate::state::lock;

const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;
const TOO_OLD: c_int = 2;

exports! {
    fn cuGetProcAddress_v2(
        symbol: *const c_char, function: Out<'_, *const c_void>, version: c_int, flags: u64, status: Out<'_, c_int>,
    ) {
        let (address, found) = find(symbol, version, flags)?;
        function.ok_or(Code::INVALID_VALUE)?.write(address.unwrap_or(std::ptr::null()));
        offer(status, found);
        Ok(())
    }

    fn cuGetProcAddress(symbol: *const c_char, function: Out<'_, *const c_void>, version: c_int, flags: u64) {
        let (address, _) = find(symbol, version, flags)?;
        function.ok_or(Code::INVALID_VALUE)?.write(address.unwrap_or(std::ptr::null()));
        address.map(drop).ok_or(Code::NOT_FOUND)
    }

    fn cuGetExportTable(_table: *const *const c_void, _id: *const [u8; 16]) {
        // The real one's tables are undocumented; programs that need them find none.
        Err(Code::NOT_FOUND)
    }
}

fn find(symbol: *const c_char, version: c_int, flags: u64) -> Result<(Option<*const c_void>, c_int), Code> {
    if symbol.is_null() || flags > 3 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller gives a text that ends in a zero byte.
    let name = unsafe { CStr::from_ptr(symbol) }.to_string_lossy();
    let version = u32::try_from(version).map_err(|_| Code::INVALID_VALUE)?;
    let newest = lock().config.version;
    if version > newest {
        return Err(Code::INVALID_VALUE);
    }
    if let Some(found) = symbols::resolve(&name, version, flags & PER_THREAD_DEFAULT_STREAM != 0)
        && let Some(address) = exported(found.name)
    {
        return Ok((Some(address), FOUND));
    }
    let known = symbols::all().iter().any(|symbol| symbol.base == name && symbol.since <= newest);
    Ok((None, if known { TOO_OLD } else { NOT_FOUND }))
}

/// The address of a function that this library exports. In a program with this crate inside, that of the program.
fn exported(name: &str) -> Option<*const c_void> {
    static OWN: OnceLock<usize> = OnceLock::new();
    let own = *OWN.get_or_init(|| {
        let mut found = libc::Dl_info {
            dli_fname: std::ptr::null(),
            dli_fbase: std::ptr::null_mut(),
            dli_sname: std::ptr::null(),
            dli_saddr: std::ptr::null_mut(),
        };
        let inside: *const c_void = (&raw const OWN).cast();
        // SAFETY: `found` outlives the call.
        if unsafe { libc::dladdr(inside, &raw mut found) } == 0 {
            return 0;
        }
        // SAFETY: the loader's own name of this library, which is loaded: this only asks for its handle.
        unsafe { libc::dlopen(found.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD) }.expose_provenance()
    });
    let name = CString::new(name).ok()?;
    // SAFETY: a handle of this library, which is there as long as its code runs.
    let address = unsafe { libc::dlsym(std::ptr::with_exposed_provenance_mut(own), name.as_ptr()) };
    (!address.is_null()).then_some(address.cast_const())
}
