//! `cuGetProcAddress`: the driver answers, and where its answer is a function that is overridden here, ours takes its
//! place. So the driver keeps all knowledge of versions and default streams.
//!
//! Answers are told by their addresses. Should a driver hand out others than it exports, the list of symbols says which
//! form the program must have been given; a function of ours that is not told either way is counted, and the program
//! gets the driver's.

use std::ffi::{CStr, c_char, c_int, c_void};

use gpuheap_cuda::raw::{Code, PER_THREAD_DEFAULT_STREAM};
use gpuheap_cuda::symbols;

use crate::around::{Call, result};
use crate::overrides::{self, NAMES};
use crate::{real, state};

/// The form before CUDA 12.
pub(crate) fn with_flags(
    call: Call<'_>,
    symbol: *const c_char,
    function: *mut *const c_void,
    version: c_int,
    flags: u64,
) -> Code {
    let code = call();
    if code.is_success() {
        swap(symbol, function, version, flags);
    }
    code
}

/// The form since.
pub(crate) fn with_status(
    call: Call<'_>,
    symbol: *const c_char,
    function: *mut *const c_void,
    version: c_int,
    flags: u64,
    _status: *mut c_int,
) -> Code {
    with_flags(call, symbol, function, version, flags)
}

fn swap(symbol: *const c_char, function: *mut *const c_void, version: c_int, flags: u64) {
    let Some(found) = result(function).filter(|found| !found.is_null()) else { return };
    let number = real::number_of(found).or_else(|| by_name(symbol, version, flags));
    if let Some(own) = number.and_then(overrides::own) {
        // SAFETY: the driver wrote there a moment ago.
        unsafe { function.write(own) };
    }
}

/// The number of the function that a program gets by that name, if it is one of ours.
fn by_name(symbol: *const c_char, version: c_int, flags: u64) -> Option<usize> {
    // SAFETY: the driver read the same text and found the function.
    let base = unsafe { CStr::from_ptr(symbol) }.to_str().ok()?;
    let ours = |name: &str| NAMES.iter().position(|own| *own == name);
    let of_base = symbols::all().iter().filter(|symbol| symbol.base == base);
    if !of_base.into_iter().any(|symbol| NAMES.contains(&symbol.name)) {
        return None;
    }
    let version = u32::try_from(version).unwrap_or(0);
    let form = symbols::resolve(base, version, flags & PER_THREAD_DEFAULT_STREAM != 0);
    let number = form.and_then(|form| ours(form.name)).filter(|number| real::overridden(*number).is_some());
    if number.is_none() {
        state::get().ledger.note_unseen();
    }
    number
}
