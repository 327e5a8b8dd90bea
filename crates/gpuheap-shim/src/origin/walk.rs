//! A walk up the stack, by the unwinder that comes along with the language.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "ways are kept on x86-64 alone"))]

use std::ffi::{c_int, c_void};

use gpuheap_ledger::Origin;

use super::libraries::Says;
use super::objects;

/// The most frames that are looked at: this library has about ten, the runtime up to as many.
pub(super) const MOST: usize = 32;

/// A place on the way.
#[derive(Clone, Copy, Default)]
pub(super) struct Frame {
    /// The stack pointer in the frame, when it called the one before.
    pub(super) stack: usize,
    /// Where that returns to.
    pub(super) code: usize,
}

/// What was met on the way up.
pub(super) struct Walk {
    frames: [Frame; MOST],
    count: usize,
    pub(super) origin: Origin,
    /// Whether the last frame is one of a loaded library that says who it is.
    pub(super) ended_well: bool,
}

impl Walk {
    /// The frames, innermost first; the last is the one that said who asked.
    pub(super) fn frames(&self) -> &[Frame] {
        &self.frames[..self.count]
    }
}

#[repr(C)]
struct Context {
    _opaque: [u8; 0],
}

const NO_REASON: c_int = 0;
const END: c_int = 4;

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut Context, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut Context) -> usize;
    fn _Unwind_GetCFA(context: *mut Context) -> usize;
}

/// Walks up to the first frame that says who asked. Frames without unwinding information end it.
pub(super) fn up() -> Walk {
    let mut walk = Walk { frames: [Frame::default(); MOST], count: 0, origin: Origin::Unknown, ended_well: false };
    // SAFETY: `each` does not unwind, and `walk` outlives the call.
    unsafe { _Unwind_Backtrace(each, (&raw mut walk).cast()) };
    walk
}

extern "C" fn each(context: *mut Context, data: *mut c_void) -> c_int {
    // SAFETY: it is the walk of `up`, which nobody else has meanwhile.
    let walk = unsafe { &mut *data.cast::<Walk>() };
    // SAFETY: the unwinder's own context, for the time of this call.
    let code = unsafe { _Unwind_GetIP(context) };
    // SAFETY: as above.
    let stack = unsafe { _Unwind_GetCFA(context) };
    let Some(place) = walk.frames.get_mut(walk.count) else { return END };
    *place = Frame { stack, code };
    walk.count += 1;
    match objects::says(code) {
        Some(Says::PassesOn) => return NO_REASON,
        Some(Says::Origin(origin)) => (walk.origin, walk.ended_well) = (origin, true),
        Some(Says::Nobody) => walk.ended_well = true,
        None => {}
    }
    END
}
