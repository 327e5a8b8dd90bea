//! What a program is told of an address: what it would be told if its memory were on the device, as one allocation.

use std::ffi::{c_uint, c_void};

use gpuheap_cuda::raw::{Code, DevicePtr, memory_type, pointer_attribute};

use crate::around::Call;
use crate::{converted, ipc, moving, paging, pins};

pub(crate) fn range(call: Call<'_>, start: *mut DevicePtr, bytes: *mut usize, address: DevicePtr) -> Code {
    let Some((found, size)) = whole(address) else { return call() };
    put(start, found);
    put(bytes, size);
    Code::SUCCESS
}

pub(crate) fn attribute(call: Call<'_>, value: *mut c_void, attribute: c_uint, address: DevicePtr) -> Code {
    if attribute == pointer_attribute::P2P_TOKENS {
        // Another driver will find the memory by them.
        let (start, bytes) = whole(address).unwrap_or((address, 1));
        return pins::for_others(call, start, bytes);
    }
    let code = call();
    if code.is_success() && moving::is_wanted() {
        correct(value, attribute, address);
    }
    code
}

pub(crate) fn attributes(
    call: Call<'_>,
    count: c_uint,
    attributes: *const c_uint,
    values: *const *mut c_void,
    address: DevicePtr,
) -> Code {
    let code = call();
    if code.is_success() && moving::is_wanted() && !attributes.is_null() && !values.is_null() {
        // SAFETY: the driver read as many.
        let attributes = unsafe { std::slice::from_raw_parts(attributes, count as usize) };
        // SAFETY: as above.
        let values = unsafe { std::slice::from_raw_parts(values, count as usize) };
        for (attribute, value) in attributes.iter().zip(values) {
            correct(*value, *attribute, address);
        }
    }
    code
}

/// Puts right what memory of the host behind an address, or one allocation in several pieces, makes different.
fn correct(value: *mut c_void, attribute: c_uint, address: DevicePtr) {
    let spilled = || {
        let chunk = paging::chunk_at(address.0).or_else(|| converted::chunk_at(address))?;
        chunk.is_spilled().then_some(chunk.device)
    };
    match attribute {
        pointer_attribute::MEMORY_TYPE if spilled().is_some() => put(value.cast(), memory_type::DEVICE),
        pointer_attribute::DEVICE_ORDINAL => {
            if let Some(device) = spilled() {
                put(value.cast(), device);
            }
        }
        pointer_attribute::RANGE_START => {
            if let Some((start, _)) = whole(address) {
                put(value.cast(), start);
            }
        }
        pointer_attribute::RANGE_SIZE => {
            if let Some((_, bytes)) = whole(address) {
                put(value.cast(), bytes);
            }
        }
        // A byte, as it is a truth value: whether the driver writes more of it or not, the rest is zero already.
        pointer_attribute::IS_LEGACY_IPC if converted::range(address).is_some() => put(value.cast(), 1_u8),
        _ => {}
    }
}

/// Where the allocation that consists of several pieces begins, and its size.
fn whole(address: DevicePtr) -> Option<(DevicePtr, usize)> {
    converted::range(address).or_else(|| paging::range(address)).or_else(|| ipc::range(address))
}

fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the program's own place for a value of that type, as the call says.
        unsafe { place.write(value) };
    }
}
