//! Memory that a framework keeps for later and does not use. On the host it would be copied back for kernels that write to
//! it without having read it; so a program of which no period is known is asked to give it back after each step. What it
//! then asks for anew is put on the device without a copy, and others make room for it.
//!
//! Of a program with a period memory stays where it is: its plan knows what is not read.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Steps that are over since something was on the host, without a period.
static STEPS: AtomicI32 = AtomicI32::new(0);
/// Whether memory is given back after each step.
static GIVES: AtomicBool = AtomicBool::new(false);

/// A period shows itself within so many steps.
const UNKNOWN: i32 = 4;
/// Of a program that seemed to have none and now does, it has to be found again: in so many steps more.
const AGAIN: i32 = -4;

/// Whether memory is given back after each step.
#[inline]
pub(crate) fn are_given_back() -> bool {
    GIVES.load(Ordering::Relaxed)
}

/// A step is over. Whether memory is to be given back.
pub(super) fn after_step(has_period: bool) -> bool {
    if has_period {
        STEPS.store(0, Ordering::Relaxed);
        GIVES.store(false, Ordering::Relaxed);
        return false;
    }
    let gives = STEPS.fetch_add(1, Ordering::Relaxed) >= UNKNOWN;
    GIVES.store(gives, Ordering::Relaxed);
    gives
}

/// A period was found while memory was given back. From now on it is kept, so that a plan has all of it to plan for.
pub(super) fn keep() {
    STEPS.store(AGAIN, Ordering::Relaxed);
    GIVES.store(false, Ordering::Relaxed);
}
