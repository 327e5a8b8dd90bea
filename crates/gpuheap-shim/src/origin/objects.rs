//! The libraries that are loaded, as the loader lists them.
//!
//! The list has a lock of the loader's own, held while entries are added or removed and never while code of libraries
//! runs. `dladdr` would wait for a library's constructors.

use std::ffi::{CStr, c_int, c_void};

use gpuheap_ledger::Origin;
use libc::{PT_LOAD, dl_phdr_info};

use super::libraries::{self, Says};

/// How many libraries were ever removed. While this stays the same, code at an address stays what it is.
pub(super) fn unloads() -> u64 {
    extern "C" fn first(info: *mut dl_phdr_info, bytes: usize, data: *mut c_void) -> c_int {
        const NEEDED: usize = std::mem::offset_of!(dl_phdr_info, dlpi_subs) + size_of::<u64>();
        if bytes >= NEEDED {
            // SAFETY: the loader's description, which has this field.
            let removed = unsafe { (*info).dlpi_subs };
            // SAFETY: the counter of the function around, which outlives the call.
            unsafe { data.cast::<u64>().write(removed) };
        }
        1
    }
    let mut removed = 0_u64;
    // SAFETY: `first` has the signature that is asked for, and `removed` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut removed).cast()) };
    removed
}

struct Search {
    code: usize,
    /// How many libraries were looked at: the first is the program.
    seen: usize,
    found: Option<Says>,
}

/// What the library says that the code is in; nothing if it is in none.
pub(super) fn says(code: usize) -> Option<Says> {
    let mut search = Search { code, seen: 0, found: None };
    // SAFETY: `each` has the signature that is asked for, and `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut search).cast()) };
    search.found
}

extern "C" fn each(info: *mut dl_phdr_info, _bytes: usize, data: *mut c_void) -> c_int {
    // SAFETY: it is the search of `says`, which nobody else has meanwhile.
    let search = unsafe { &mut *data.cast::<Search>() };
    // SAFETY: the loader's description, for the time of this call.
    let info = unsafe { &*info };
    let is_program = search.seen == 0;
    search.seen += 1;
    if !holds(info, search.code) {
        return 0;
    }
    let own: fn(usize) -> Option<Says> = says;
    search.found = Some(if holds(info, own as usize) {
        Says::PassesOn
    } else if is_program {
        Says::Origin(Origin::Program)
    } else if info.dlpi_name.is_null() {
        Says::Origin(Origin::Other)
    } else {
        // SAFETY: the loader's text, which ends in a zero byte.
        libraries::of_file(unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes())
    });
    1
}

fn holds(info: &dl_phdr_info, code: usize) -> bool {
    if info.dlpi_phdr.is_null() {
        return false;
    }
    // SAFETY: the loader says how many there are.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    headers.iter().filter(|header| header.p_type == PT_LOAD).any(|header| {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        (code as u64).wrapping_sub(start) < header.p_memsz
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_code_passes_on_and_libc_is_nobody() {
        assert_eq!(says(libc::getpid as *const () as usize), Some(Says::Nobody));
        assert_eq!(says(unloads as *const () as usize), Some(Says::PassesOn));
        assert_eq!(says(1), None);
        assert_eq!(unloads(), unloads());
    }
}
