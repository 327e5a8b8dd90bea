//! The library exports what the real one exports.

use std::ffi::CString;

use gpuheap_cuda::symbols;

#[test]
fn every_symbol_of_the_interface_is_there() {
    let library = std::env::current_exe().unwrap().parent().unwrap().join("libgpuheap_fakecuda.so");
    let path = CString::new(library.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: this workspace's own library.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
    for symbol in symbols::all() {
        let name = CString::new(symbol.name).unwrap();
        // SAFETY: the library is open, the name ends in a zero byte.
        assert!(!unsafe { libc::dlsym(library, name.as_ptr()) }.is_null(), "{}", symbol.name);
    }
}
