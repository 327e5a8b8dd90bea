//! Whether `cuGetProcAddress` gives the addresses that the library exports: the shim swaps functions by address.

use std::ffi::{CString, c_int, c_void};

use gpuheap_cuda::symbols::{self, Flavour};

use crate::support::{bench, path};

/// Default streams of the context, of the thread.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

#[test]
fn a_function_has_one_address_however_it_is_looked_up() {
    let bench = bench();
    let version = bench.driver.version();
    let find = bench.driver.api().cuGetProcAddress_v2.expect("the driver is of 12.0 or newer");
    let name = CString::new(path().as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the library is open already.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null());
    let (mut compared, mut different) = (0, Vec::new());
    for symbol in symbols::all().iter().filter(|symbol| symbol.since <= version) {
        let exported = CString::new(symbol.name).unwrap();
        // SAFETY: the library stays open, the name ends in a zero byte.
        let exported = unsafe { libc::dlsym(library, exported.as_ptr()) };
        if exported.is_null() {
            continue;
        }
        // What a program of the version gets that came with this form, unless a newer form came with the same one.
        let per_thread = symbol.flavour != Flavour::Legacy;
        if symbols::resolve(symbol.base, symbol.since, per_thread) != Some(symbol) {
            continue;
        }
        let base = CString::new(symbol.base).unwrap();
        let since = c_int::try_from(symbol.since).unwrap();
        let flags = if per_thread { PER_THREAD } else { LEGACY };
        let (mut found, mut status): (*mut c_void, c_int) = (std::ptr::null_mut(), 0);
        // SAFETY: all outlive the call, the name ends in a zero byte.
        let code = unsafe { find(base.as_ptr(), &raw mut found, since, flags, &raw mut status) };
        compared += 1;
        if !code.is_success() || found != exported {
            different.push(format!("{} ({since}): {code}, status {status}", symbol.name));
        }
    }
    eprintln!("{compared} functions looked up in a driver of {version}");
    assert!(compared > 400, "{compared}");
    assert!(different.is_empty(), "{} of {compared} differ:\n{}", different.len(), different.join("\n"));
}

#[test]
fn what_is_not_there_is_told_by_the_status_and_not_by_an_error() {
    let bench = bench();
    let find = bench.driver.api().cuGetProcAddress_v2.expect("the driver is of 12.0 or newer");
    let version = c_int::try_from(bench.driver.version()).unwrap();
    let ask = |name: &str, version: c_int| {
        let name = CString::new(name).unwrap();
        let mut found: *mut c_void = std::ptr::without_provenance_mut(1);
        let mut status: c_int = -1;
        // SAFETY: all outlive the call, the name ends in a zero byte.
        let code = unsafe { find(name.as_ptr(), &raw mut found, version, LEGACY, &raw mut status) };
        (code.is_success(), found.is_null(), status)
    };
    assert_eq!(ask("cuNoSuchFunction", version), (true, true, 1));
    assert_eq!(ask("cuMemAllocAsync", 11_010), (true, true, 2), "came with 11.2");
    assert_eq!(ask("cuMemAllocAsync", version), (true, false, 0));
    assert!(!ask("cuMemAllocAsync", 99_990).0, "the driver is older");
}
