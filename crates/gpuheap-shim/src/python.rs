//! Python, where the program is one: PyTorch keeps the memory of tensors that are gone, and only it knows which that is.
//! A hook that it has for the end of an optimizer's step asks this library whether that memory is better given back.
//!
//! Python is found among what the process has loaded, and asked to run some lines when it next can, on its main thread
//! (`Py_AddPendingCall`). Nothing of it is linked, and a program without it, or without PyTorch, is left alone.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::swap;

/// `Py_IsInitialized`.
type IsInitialized = unsafe extern "C" fn() -> c_int;
/// `Py_AddPendingCall`.
type AddPendingCall = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int;
/// `PyRun_SimpleString`.
type RunSimpleString = unsafe extern "C" fn(*const c_char) -> c_int;

/// What Python runs; `ADDRESS` is where [`gives_back`] is. Names of its own, and nothing that it does can end the program.
/// `exec` has a scope of its own, so that nothing is left in the program's `__main__`.
const LINES: &str = r#"
exec("""
import sys
torch, optimizer = sys.modules.get("torch"), sys.modules.get("torch.optim.optimizer")
if torch is not None and optimizer is not None:
    try:
        import ctypes
        gives_back = ctypes.CFUNCTYPE(ctypes.c_int)(ADDRESS)
        def after_step(*_):
            if gives_back() and not torch.cuda.is_current_stream_capturing():
                torch.cuda.empty_cache()
        optimizer.register_optimizer_step_post_hook(after_step)
    except Exception:
        pass
""", {})
"#;

/// Asks PyTorch, if it is there, to ask [`gives_back`] after each step. Once a process.
pub(crate) fn ask_after_steps() {
    static ASKED: AtomicBool = AtomicBool::new(false);
    if ASKED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: Python's functions of these names have these signatures, in all versions since 3.0.
    let (ready, add) = unsafe {
        let ready = find(c"Py_IsInitialized").map(|at| std::mem::transmute::<*mut c_void, IsInitialized>(at));
        let add = find(c"Py_AddPendingCall").map(|at| std::mem::transmute::<*mut c_void, AddPendingCall>(at));
        (ready, add)
    };
    if let (Some(ready), Some(add)) = (ready, add) {
        // SAFETY: both may be called by any thread, with or without Python's lock; `run` stays, as this library does.
        unsafe {
            if ready() != 0 {
                add(run, std::ptr::null_mut());
            }
        }
    }
}

fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name outlives the call. The scope of the whole process is where Python is, as a program or a library.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Called by Python on its main thread, with its lock.
unsafe extern "C" fn run(_: *mut c_void) -> c_int {
    let address = (gives_back as extern "C" fn() -> c_int as *const c_void).expose_provenance();
    let lines = CString::new(LINES.replace("ADDRESS", &address.to_string()));
    if let (Some(at), Ok(lines)) = (find(c"PyRun_SimpleString"), lines) {
        // SAFETY: Python's function of that name has that signature, and its lock is held here.
        let run = unsafe { std::mem::transmute::<*mut c_void, RunSimpleString>(at) };
        // SAFETY: the lines outlive the call.
        unsafe { run(lines.as_ptr()) };
    }
    0
}

/// Whether memory that a framework keeps and does not use is better given back now: the step is over. Not 0 if so.
#[unsafe(export_name = "gpuheap_shim_gives_back")]
extern "C" fn gives_back() -> c_int {
    c_int::from(swap::after_step())
}
