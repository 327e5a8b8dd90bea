//! The way into every function: counts the call, lets it fail if it is to fail, and calls back if it is to call back.
//!
//! The macros here make the exported functions. Their bodies are safe code that returns a `Result`; the exports turn it
//! into the driver's number. What a C program gives is trusted to be what the driver's interface asks for.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use gpuheap_cuda::raw::Code;

/// What a function of the driver comes to.
pub(crate) type Done = Result<(), Code>;

/// Where the caller wants a result; null if nowhere.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes a result that the caller has to want.
pub(crate) fn give<T>(out: Out<'_, T>, value: T) -> Done {
    out.ok_or(Code::INVALID_VALUE)?.write(value);
    Ok(())
}

/// Writes a result if the caller wants it.
pub(crate) fn offer<T>(out: Out<'_, T>, value: T) {
    if let Some(out) = out {
        out.write(value);
    }
}

/// An element of an array of the caller.
///
/// # Safety
///
/// The caller's array must have that many elements.
pub(crate) unsafe fn element<T: Copy>(array: *const T, number: usize) -> T {
    // SAFETY: within the array, by the promise above.
    let place = unsafe { array.add(number) };
    // SAFETY: as above.
    unsafe { place.read() }
}

/// A function of another library that a call is to call before it does its own work.
pub(crate) type CallBack = extern "C" fn();

#[derive(Debug)]
struct Fault {
    /// How many calls go well before it.
    after: u64,
    /// How many fail then.
    times: u64,
    code: Code,
}

#[derive(Default)]
struct Calls {
    counts: HashMap<String, u64>,
    faults: HashMap<String, Fault>,
    call_backs: HashMap<String, CallBack>,
}

static CALLS: LazyLock<Mutex<Calls>> = LazyLock::new(Mutex::default);

fn calls() -> MutexGuard<'static, Calls> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often `function` was called.
pub(crate) fn count(function: &str) -> u64 {
    calls().counts.get(function).copied().unwrap_or(0)
}

/// Counts something that is no call, by a name that no function has.
pub(crate) fn happened(what: &str) {
    *calls().counts.entry(what.to_owned()).or_default() += 1;
}

/// Lets calls of `function` fail, from the `nth` from now on, `times` times.
pub(crate) fn fail(function: &str, nth: u64, code: Code, times: u64) {
    let fault = Fault { after: nth.saturating_sub(1), times, code };
    calls().faults.insert(function.to_owned(), fault);
}

/// Lets `function` call `call_back` first; nothing ends that.
pub(crate) fn call_back(function: &str, call_back: Option<CallBack>) {
    match call_back {
        Some(call_back) => calls().call_backs.insert(function.to_owned(), call_back),
        None => calls().call_backs.remove(function),
    };
}

/// Forgets counts, faults and call-backs.
pub(crate) fn reset() {
    *calls() = Calls::default();
}

/// Counts a call. The error is that of a fault.
fn arrive(function: &str) -> Result<Option<CallBack>, Code> {
    let mut calls = calls();
    match calls.counts.get_mut(function) {
        Some(count) => *count += 1,
        None => {
            calls.counts.insert(function.to_owned(), 1);
        }
    }
    if let Some(fault) = calls.faults.get_mut(function) {
        if fault.after > 0 {
            fault.after -= 1;
        } else if fault.times > 0 {
            fault.times -= 1;
            return Err(fault.code);
        }
    }
    Ok(calls.call_backs.get(function).copied())
}

/// Runs the body of an exported function.
pub(crate) fn run(function: &str, body: impl FnOnce() -> Done) -> Code {
    let guarded = AssertUnwindSafe(|| -> Done {
        if let Some(call_back) = arrive(function)? {
            call_back();
        }
        body()
    });
    match catch_unwind(guarded) {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(code)) => code,
        // A mistake in this crate. The message is on standard error.
        Err(_) => Code::UNKNOWN,
    }
}

/// Exported functions.
macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[allow(non_snake_case, reason = "the name is the driver's")]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> gpuheap_cuda::raw::Code {
            crate::entry::run(stringify!($name), move || $body)
        }
    )*};
}

/// Exported functions in two forms: by stream 0 the one means the context's default stream, the other the thread's.
/// The body finds that in the first name of the list.
macro_rules! stream_exports {
    ($(fn $legacy:ident / $own:ident[$thread:ident]($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[allow(non_snake_case, reason = "the name is the driver's")]
        #[unsafe(no_mangle)]
        extern "C" fn $legacy($($arg: $ty),*) -> gpuheap_cuda::raw::Code {
            let $thread = false;
            crate::entry::run(stringify!($legacy), move || $body)
        }

        #[allow(non_snake_case, reason = "the name is the driver's")]
        #[unsafe(no_mangle)]
        extern "C" fn $own($($arg: $ty),*) -> gpuheap_cuda::raw::Code {
            let $thread = true;
            crate::entry::run(stringify!($own), move || $body)
        }
    )*};
}

pub(crate) use {exports, stream_exports};
