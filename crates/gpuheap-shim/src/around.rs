//! What is done around each call of an overridden function.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gpuheap_cuda::raw::Code;

use crate::depth::Inside;
use crate::{events, ledger, state};

/// The driver's function with the caller's arguments.
pub(crate) type Call<'a> = &'a dyn Fn() -> Code;

/// Runs the body of an override. A call from within another goes straight to the driver. A body that panics has failed
/// to count, no more: the caller gets what the driver said, which is asked now if it was not before.
pub(crate) fn around(driver: impl Fn() -> Code, body: impl FnOnce(Call<'_>) -> Code) -> Code {
    let Some(_inside) = Inside::enter() else { return driver() };
    // Whoever moves memory waits until this call is over, and holds it back if it comes too late.
    let _pass = state::get().gate.enter();
    let said = Cell::new(None);
    let call = || {
        let code = driver();
        said.set(Some(code));
        code
    };
    let counted = || {
        let code = body(&call);
        if code.is_success() {
            ledger::after_success();
        }
        code
    };
    let answer = catch_unwind(AssertUnwindSafe(counted));
    events::end_of_call();
    match answer {
        Ok(code) => code,
        Err(payload) => {
            // Its destructor could panic as well.
            std::mem::forget(payload);
            said.get().unwrap_or_else(driver)
        }
    }
}

/// What the driver wrote for the caller, after a call that went well.
pub(crate) fn result<T: Copy>(place: *const T) -> Option<T> {
    if place.is_null() {
        return None;
    }
    // SAFETY: the call succeeded, so the driver wrote there.
    Some(unsafe { place.read() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_changes_nothing_for_the_caller_and_the_driver_is_called_once() {
        let calls = Cell::new(0);
        let driver = || {
            calls.set(calls.get() + 1);
            Code::NOT_READY
        };
        assert_eq!(around(driver, |_| panic!("on purpose, before the call")), Code::NOT_READY);
        assert_eq!(calls.get(), 1);
        let body = |call: Call<'_>| {
            call();
            panic!("on purpose, after the call")
        };
        assert_eq!(around(driver, body), Code::NOT_READY);
        assert_eq!(calls.get(), 2);
    }

    #[test]
    fn a_call_from_within_goes_to_the_driver() {
        let body = |call: Call<'_>| {
            assert_eq!(around(|| Code::SUCCESS, |_| Code::UNKNOWN), Code::SUCCESS);
            call()
        };
        assert_eq!(around(|| Code::NOT_FOUND, body), Code::NOT_FOUND);
    }
}
