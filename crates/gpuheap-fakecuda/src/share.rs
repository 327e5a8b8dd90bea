//! Memory shared with other processes, arrays, memory of other interfaces, and what a pointer is.

use std::ffi::{c_uint, c_void};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;

use gpuheap_cuda::raw::{
    self, Array3dDesc, ArrayDesc, Code, DevicePtr, IpcHandle, MemoryPool, memory_type, pointer_attribute,
};

use crate::entry::{Done, Out, element, exports, give};
use crate::pages::{Backing, GRANULARITY, round_up};
use crate::space::Kind;
use crate::state::{ArrayState, State, ready};

exports! {
    fn cuIpcGetMemHandle(handle: Out<'_, IpcHandle>, address: DevicePtr) {
        let state = ready()?;
        state.current()?;
        let (_, range) = state.space.range_at(address.0).ok_or(Code::INVALID_VALUE)?;
        let backing = range.backing.as_ref().filter(|_| range.kind == Kind::Linear).ok_or(Code::INVALID_VALUE)?;
        // The file is found through the process that has it, which must be alive as long as for the real driver.
        let mut bytes = [0; 64];
        let descriptor = backing.file.as_raw_fd().unsigned_abs();
        bytes[..4].copy_from_slice(&std::process::id().to_ne_bytes());
        bytes[4..8].copy_from_slice(&descriptor.to_ne_bytes());
        bytes[8..16].copy_from_slice(&(range.bytes as u64).to_ne_bytes());
        give(handle, IpcHandle(bytes))
    }

    fn cuIpcOpenMemHandle_v2(address: Out<'_, DevicePtr>, handle: IpcHandle, _flags: c_uint) {
        open(address, handle)
    }

    fn cuIpcOpenMemHandle(address: Out<'_, DevicePtr>, handle: IpcHandle, _flags: c_uint) {
        open(address, handle)
    }

    fn cuIpcCloseMemHandle(address: DevicePtr) {
        let mut state = ready()?;
        if state.space.ranges.get(&address.0).is_none_or(|range| range.kind != Kind::Imported) {
            return Err(Code::INVALID_VALUE);
        }
        state.drop_range(address.0)
    }

    fn cuArrayCreate_v2(array: Out<'_, raw::Array>, wanted: Option<&ArrayDesc>) {
        let wanted = wanted.ok_or(Code::INVALID_VALUE)?;
        let ArrayDesc { width, height, format, channels } = *wanted;
        let wanted = Array3dDesc { width, height, depth: 0, format, channels, flags: 0 };
        let made = add_array(wanted, 1)?;
        give(array, raw::Array(made))
    }

    fn cuArray3DCreate_v2(array: Out<'_, raw::Array>, wanted: Option<&Array3dDesc>) {
        let made = add_array(*wanted.ok_or(Code::INVALID_VALUE)?, 1)?;
        give(array, raw::Array(made))
    }

    fn cuMipmappedArrayCreate(array: Out<'_, raw::MipmappedArray>, wanted: Option<&Array3dDesc>, levels: c_uint) {
        let made = add_array(*wanted.ok_or(Code::INVALID_VALUE)?, levels.max(1))?;
        give(array, raw::MipmappedArray(made))
    }

    fn cuArrayGetDescriptor_v2(found: Out<'_, ArrayDesc>, array: raw::Array) {
        let state = ready()?;
        let Array3dDesc { width, height, format, channels, .. } =
            state.arrays.get(&array.0).ok_or(Code::INVALID_HANDLE)?.wanted;
        give(found, ArrayDesc { width, height, format, channels })
    }

    fn cuArray3DGetDescriptor_v2(found: Out<'_, Array3dDesc>, array: raw::Array) {
        let state = ready()?;
        give(found, state.arrays.get(&array.0).ok_or(Code::INVALID_HANDLE)?.wanted)
    }

    fn cuArrayDestroy(array: raw::Array) {
        drop_array(array.0, |levels| levels == 1)
    }

    fn cuMipmappedArrayDestroy(array: raw::MipmappedArray) {
        drop_array(array.0, |_| true)
    }

    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, address: DevicePtr) {
        let state = ready()?;
        if data.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let value = state.pointer(attribute, address.0)?;
        put(data, attribute, value);
        Ok(())
    }

    fn cuPointerSetAttribute(value: *const c_void, attribute: c_uint, address: DevicePtr) {
        let state = ready()?;
        // Operations are synchronous: they are in order here in any case.
        if value.is_null() || attribute != raw::pointer_attribute::SYNC_MEMOPS {
            return Err(Code::INVALID_VALUE);
        }
        state.pointer(raw::pointer_attribute::MEMORY_TYPE, address.0).map(drop)
    }

    fn cuPointerGetAttributes(
        count: c_uint, attributes: *const c_uint, data: *const *mut c_void, address: DevicePtr,
    ) {
        let state = ready()?;
        if attributes.is_null() || data.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        for number in 0..count as usize {
            // SAFETY: the caller gives `count` attributes.
            let attribute = unsafe { element(attributes, number) };
            // SAFETY: the caller gives a place for each.
            let place = unsafe { element(data, number) };
            // Of a pointer that the driver does not know, all are zero.
            put(place, attribute, state.pointer(attribute, address.0).unwrap_or(0));
        }
        Ok(())
    }
}

fn open(out: Out<'_, DevicePtr>, handle: IpcHandle) -> Done {
    let mut state = ready()?;
    let place = state.current_device()?;
    let out = out.ok_or(Code::INVALID_VALUE)?;
    let number = |start: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&handle.0[start..start + 4]);
        u32::from_ne_bytes(bytes)
    };
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&handle.0[8..16]);
    let bytes = usize::try_from(u64::from_ne_bytes(bytes)).map_err(|_| Code::INVALID_VALUE)?;
    if number(0) == std::process::id() {
        // A process cannot open its own.
        return Err(Code::INVALID_CONTEXT);
    }
    let path = format!("/proc/{}/fd/{}", number(0), number(4));
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|_| Code::INVALID_VALUE)?;
    let backing = Backing::from_descriptor(file.as_raw_fd())?;
    if bytes == 0 || bytes > backing.bytes {
        return Err(Code::INVALID_VALUE);
    }
    let address = backing.map_anywhere()?;
    let taken = backing.bytes;
    state.put_range(address, bytes, taken, Kind::Imported, place, Some(backing));
    out.write(DevicePtr(address));
    Ok(())
}

/// Bytes of an element's value.
fn format_bytes(format: u32) -> Option<usize> {
    match format {
        0x01 | 0x08 => Some(1),
        0x02 | 0x09 | 0x10 => Some(2),
        0x03 | 0x0a | 0x20 => Some(4),
        _ => None,
    }
}

fn add_array(wanted: Array3dDesc, levels: u32) -> Result<usize, Code> {
    let mut state = ready()?;
    let (context, device) = state.current_device()?;
    let unit = format_bytes(wanted.format).ok_or(Code::INVALID_VALUE)?;
    if wanted.width == 0 || !matches!(wanted.channels, 1 | 2 | 4) {
        return Err(Code::INVALID_VALUE);
    }
    let sizes = [wanted.width, wanted.height.max(1), wanted.depth.max(1), unit, wanted.channels as usize];
    let first = sizes.iter().try_fold(1_usize, |bytes, size| bytes.checked_mul(*size)).ok_or(Code::OUT_OF_MEMORY)?;
    // Each level has a quarter of the one before: less than a third more in all.
    let all = if levels > 1 { first.checked_add(first / 3).ok_or(Code::OUT_OF_MEMORY)? } else { first };
    let bytes = round_up(all, GRANULARITY)?;
    state.charge(device, bytes)?;
    let handle = state.handle();
    state.arrays.insert(handle, ArrayState { context, device, bytes, wanted, levels });
    Ok(handle)
}

fn drop_array(array: usize, right: impl Fn(u32) -> bool) -> Done {
    let mut state = ready()?;
    state.arrays.get(&array).filter(|array| right(array.levels)).ok_or(Code::INVALID_HANDLE)?;
    if let Some(array) = state.arrays.remove(&array) {
        state.refund(array.device, array.bytes);
    }
    Ok(())
}

/// Writes an attribute with the size that it has.
fn put(place: *mut c_void, attribute: u32, value: u64) {
    match attribute {
        pointer_attribute::MEMORY_TYPE | pointer_attribute::DEVICE_ORDINAL => {
            let value = u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
            // SAFETY: the caller gives room for what the attribute is.
            unsafe { place.cast::<u32>().write(value) };
        }
        pointer_attribute::IS_MANAGED | pointer_attribute::MAPPED | pointer_attribute::IS_LEGACY_IPC => {
            // SAFETY: as above.
            unsafe { place.cast::<u8>().write(u8::from(value != 0)) };
        }
        _ => {
            // SAFETY: as above.
            unsafe { place.cast::<u64>().write(value) };
        }
    }
}

impl State {
    /// Takes all arrays of a context away.
    pub(crate) fn drop_arrays(&mut self, context: usize) {
        let own: Vec<usize> =
            self.arrays.iter().filter(|(_, array)| array.context == context).map(|(at, _)| *at).collect();
        for array in own {
            if let Some(array) = self.arrays.remove(&array) {
                self.refund(array.device, array.bytes);
            }
        }
    }

    fn pointer(&self, attribute: u32, address: usize) -> Result<u64, Code> {
        let (start, bytes, kind, device, context, id) = if let Some((start, range)) = self.space.range_at(address) {
            (start, range.bytes, Some(range.kind), range.device, range.context, range.id)
        } else {
            let (start, mapping) = self.space.mapping_at(address).ok_or(Code::INVALID_VALUE)?;
            let location = self.space.physical[&mapping.handle].location;
            let kind = (location.kind != raw::location::DEVICE).then_some(Kind::Host);
            let device = if kind.is_none() { usize::try_from(location.id).unwrap_or(0) } else { 0 };
            (start, mapping.bytes, kind, device, 0, mapping.handle)
        };
        let host = matches!(kind, Some(Kind::Host | Kind::Registered));
        Ok(match attribute {
            pointer_attribute::CONTEXT => context as u64,
            pointer_attribute::MEMORY_TYPE => u64::from(if host { memory_type::HOST } else { memory_type::DEVICE }),
            pointer_attribute::DEVICE_POINTER => address as u64,
            pointer_attribute::HOST_POINTER if host || kind == Some(Kind::Managed) => address as u64,
            pointer_attribute::BUFFER_ID => id,
            pointer_attribute::IS_MANAGED => u64::from(kind == Some(Kind::Managed)),
            pointer_attribute::DEVICE_ORDINAL => device as u64,
            pointer_attribute::RANGE_START => start as u64,
            pointer_attribute::RANGE_SIZE => bytes as u64,
            pointer_attribute::MAPPED => 1,
            pointer_attribute::IS_LEGACY_IPC => u64::from(kind == Some(Kind::Linear)),
            pointer_attribute::MEMPOOL_HANDLE => match kind {
                Some(Kind::Ordered { pool, .. }) => MemoryPool(pool).0 as u64,
                _ => 0,
            },
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}
