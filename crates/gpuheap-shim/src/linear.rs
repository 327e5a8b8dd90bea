//! Memory that has an address from the start: `cuMemAlloc` and its kin, page-locked memory of the host.

use std::ffi::{c_uint, c_void};

use gpuheap_cuda::raw::{Code, DeviceId, DevicePtr};

use crate::around::{Call, result};
use crate::charge::{Charge, Kind};
use crate::state::{self, Allocation, Key};
use crate::{converted, ordered, real};

/// Charges bytes, calls the driver, and enters what it gave. Out of memory if the budget does not have them.
pub(crate) fn enter(
    call: Call<'_>,
    (kind, device, bytes): (Kind, Option<DeviceId>, usize),
    context: usize,
    key: impl FnOnce() -> Option<Key>,
) -> Code {
    let Some(charge) = Charge::take(kind, device, bytes) else { return Code::OUT_OF_MEMORY };
    let code = call();
    if code.is_success()
        && let Some(key) = key()
    {
        state::get().put(key, Allocation { charge, context });
    }
    code
}

/// Takes something out and calls the driver; if that refuses, it is put back. Tells whether it was known.
pub(crate) fn leave_known(call: Call<'_>, key: Key) -> (Code, bool) {
    let taken = state::get().take(key);
    let (code, known) = (call(), taken.is_some());
    if let (false, Some(allocation)) = (code.is_success(), taken) {
        state::get().put(key, allocation);
    }
    (code, known)
}

/// The same, for what is nothing else if it is not known.
pub(crate) fn leave(call: Call<'_>, key: Key) -> Code {
    leave_known(call, key).0
}

/// Memory of the calling thread's device. Without a context the driver says what it thinks of that.
fn enter_here(call: Call<'_>, kind: Kind, bytes: usize, key: impl FnOnce() -> Option<Key>) -> Code {
    match real::current() {
        Some((context, device)) => enter(call, (kind, Some(device), bytes), context, key),
        None => call(),
    }
}

fn enter_host(call: Call<'_>, kind: Kind, bytes: usize, key: impl FnOnce() -> Option<Key>) -> Code {
    let context = real::current().map_or(0, |(context, _)| context);
    enter(call, (kind, None, bytes), context, key)
}

fn address(place: *const DevicePtr) -> Option<Key> {
    result(place).map(|address| Key::Address(address.0))
}

fn address_32(place: *const u32) -> Option<Key> {
    result(place).map(|address| Key::Address(address as usize))
}

pub(crate) fn allocate(call: Call<'_>, place: *mut DevicePtr, bytes: usize) -> Code {
    if let Some(code) = converted::allocate(place, bytes) {
        return code;
    }
    enter_here(call, Kind::Linear, bytes, || address(place))
}

pub(crate) fn allocate_32(call: Call<'_>, place: *mut u32, bytes: c_uint) -> Code {
    enter_here(call, Kind::Linear, bytes as usize, || address_32(place))
}

pub(crate) fn allocate_managed(call: Call<'_>, place: *mut DevicePtr, bytes: usize, _flags: c_uint) -> Code {
    enter_here(call, Kind::Managed, bytes, || address(place))
}

pub(crate) fn allocate_pitch(
    call: Call<'_>,
    place: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    _element: c_uint,
) -> Code {
    pitched(call, (width, height), || Some((address(place)?, result(pitch)?)))
}

pub(crate) fn allocate_pitch_32(
    call: Call<'_>,
    place: *mut u32,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    _element: c_uint,
) -> Code {
    pitched(call, (width as usize, height as usize), || Some((address_32(place)?, result(pitch)? as usize)))
}

/// Rows are at least as long as was asked for; how long, the driver says.
fn pitched(call: Call<'_>, (width, height): (usize, usize), found: impl FnOnce() -> Option<(Key, usize)>) -> Code {
    let (Some((context, device)), Some(least)) = (real::current(), width.checked_mul(height)) else { return call() };
    let Some(mut charge) = Charge::take(Kind::Linear, Some(device), least) else { return Code::OUT_OF_MEMORY };
    let code = call();
    if code.is_success()
        && let Some((key, pitch)) = found()
    {
        charge.set(pitch.saturating_mul(height) as u64);
        state::get().put(key, Allocation { charge, context });
    }
    code
}

pub(crate) fn free(call: Call<'_>, address: DevicePtr) -> Code {
    if let Some(code) = converted::free(address) {
        return code;
    }
    let (code, known) = leave_known(call, Key::Address(address.0));
    if !known {
        // It may have been a pool's.
        ordered::refresh();
    }
    code
}

pub(crate) fn free_32(call: Call<'_>, address: u32) -> Code {
    free(call, DevicePtr(address as usize))
}

pub(crate) fn allocate_host(call: Call<'_>, start: *mut *mut c_void, bytes: usize) -> Code {
    enter_host(call, Kind::HostPinned, bytes, || result(start).map(|start| Key::Address(start.addr())))
}

pub(crate) fn allocate_host_32(call: Call<'_>, start: *mut *mut c_void, bytes: c_uint) -> Code {
    allocate_host(call, start, bytes as usize)
}

pub(crate) fn allocate_host_flags(call: Call<'_>, start: *mut *mut c_void, bytes: usize, _flags: c_uint) -> Code {
    allocate_host(call, start, bytes)
}

pub(crate) fn register_host(call: Call<'_>, start: *mut c_void, bytes: usize, _flags: c_uint) -> Code {
    enter_host(call, Kind::HostRegistered, bytes, || Some(Key::Address(start.addr())))
}

pub(crate) fn free_host(call: Call<'_>, start: *mut c_void) -> Code {
    leave(call, Key::Address(start.addr()))
}
