//! Panics end here, and say nothing: the program is another's, and so is what it prints.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};

/// What the function returns; nothing if it panics.
pub(crate) fn quietly<T>(function: impl FnOnce() -> Option<T>) -> Option<T> {
    static SILENT: AtomicBool = AtomicBool::new(false);
    // This library's own copy of the standard library has a hook of its own: no other's messages are lost.
    if !cfg!(test) && !SILENT.swap(true, Ordering::Relaxed) {
        panic::set_hook(Box::new(|_| ()));
    }
    match panic::catch_unwind(AssertUnwindSafe(function)) {
        Ok(found) => found,
        Err(payload) => {
            // Its destructor could panic as well.
            std::mem::forget(payload);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_no_answer() {
        assert_eq!(quietly(|| Some(1)), Some(1));
        assert_eq!(quietly::<u8>(|| panic!("on purpose")), None);
    }
}
