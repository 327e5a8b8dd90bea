//! Physical memory that others get as well.

use std::ffi::{c_uint, c_void};

use gpuheap_cuda::raw::{AllocationHandle, Code, DeviceId};

use super::held_of;
use super::table::Held;
use crate::around::Call;
use crate::{moving, real};

/// Memory is passed on to other processes, or to other devices in one operation: it stays where it is from now on.
pub(crate) fn export(call: Call<'_>, shared: *mut c_void, handle: AllocationHandle, kind: c_uint, flags: u64) -> Code {
    exposed(call, handle, |handle| real::export(shared, handle, kind, flags))
}

pub(crate) fn bind_multicast(
    call: Call<'_>,
    multicast: AllocationHandle,
    multicast_offset: usize,
    memory: AllocationHandle,
    offset: usize,
    bytes: usize,
    flags: u64,
) -> Code {
    exposed(call, memory, |memory| real::bind_multicast(multicast, multicast_offset, memory, offset, bytes, flags))
}

#[allow(clippy::too_many_arguments, reason = "the driver's function has as many")]
pub(crate) fn bind_multicast_on(
    call: Call<'_>,
    multicast: AllocationHandle,
    device: DeviceId,
    multicast_offset: usize,
    memory: AllocationHandle,
    offset: usize,
    bytes: usize,
    flags: u64,
) -> Code {
    exposed(call, memory, |memory| {
        real::bind_multicast_on(multicast, device, multicast_offset, memory, offset, bytes, flags)
    })
}

fn exposed(call: Call<'_>, handle: AllocationHandle, pass: impl FnOnce(AllocationHandle) -> Code) -> Code {
    match (held_of(handle), moving::get()) {
        (Some(Held::Chunk(chunk)), Some(moving)) => chunk.expose(moving).map_or_else(|code| code, pass),
        // There is no one memory of the device that could be passed on.
        (Some(Held::Whole(_)), _) => Code::NOT_SUPPORTED,
        _ => call(),
    }
}
