//! Contexts: who may have work under way, and what they take along when they end.

use std::ffi::{c_int, c_uint, c_void};

use gpuheap_cuda::raw::{Code, Context, DeviceId};

use crate::around::{Call, result};
use crate::state::{self, lock};
use crate::{converted, ordered, real};

pub(crate) fn retain(call: Call<'_>, context: *mut Context, device: DeviceId) -> Code {
    let code = call();
    if code.is_success()
        && let Some(context) = result(context)
    {
        lock(&state::get().primaries).insert(device, context.0);
    }
    code
}

pub(crate) fn release(call: Call<'_>, device: DeviceId) -> Code {
    leave(device);
    let code = call();
    // Others may hold it still.
    if code.is_success() && real::has_primary(device) == Some(false) {
        forget(device);
    }
    code
}

pub(crate) fn reset(call: Call<'_>, device: DeviceId) -> Code {
    leave(device);
    let code = call();
    if code.is_success() {
        forget(device);
    }
    code
}

/// Work in it may reach memory of other contexts on the device, whatever it allocates itself: it is waited for from now on.
pub(crate) fn create(call: Call<'_>, context: *mut Context, _flags: c_uint, _device: DeviceId) -> Code {
    created(call, context)
}

pub(crate) fn create_with_affinity(
    call: Call<'_>,
    context: *mut Context,
    _affinity: *mut c_void,
    _count: c_int,
    _flags: c_uint,
    _device: DeviceId,
) -> Code {
    created(call, context)
}

pub(crate) fn create_with_params(
    call: Call<'_>,
    context: *mut Context,
    _params: *mut c_void,
    _flags: c_uint,
    _device: DeviceId,
) -> Code {
    created(call, context)
}

/// A part of a device as a context.
pub(crate) fn of_part(call: Call<'_>, context: *mut Context, _part: *mut c_void) -> Code {
    created(call, context)
}

fn created(call: Call<'_>, context: *mut Context) -> Code {
    let code = call();
    if code.is_success()
        && let Some(context) = result(context)
    {
        state::get().note_context(context.0);
    }
    code
}

pub(crate) fn destroy(call: Call<'_>, context: Context) -> Code {
    let code = call();
    if code.is_success() {
        state::get().drop_context(context.0);
        ordered::refresh();
    }
    code
}

/// A device reaches memory of another from now on: that of the context, from the current one's.
pub(crate) fn enable_peer(call: Call<'_>, context: Context, _flags: c_uint) -> Code {
    let code = call();
    if code.is_success()
        && let (Some(owner), Some((_, reader))) = (real::device_of(context), real::current())
    {
        converted::enable_peer(owner, reader);
    }
    code
}

/// The context may be about to end: what this library has under way there ends first.
fn leave(device: DeviceId) {
    if let Some(Some(moving)) = state::get().moving.get() {
        moving.ahead.end(moving, device);
    }
}

fn forget(device: DeviceId) {
    if let Some(Some(moving)) = state::get().moving.get() {
        moving.lanes.forget(device);
    }
    let context = lock(&state::get().primaries).get(&device).copied();
    if let Some(context) = context {
        state::get().drop_context(context);
    }
    ordered::refresh();
}
