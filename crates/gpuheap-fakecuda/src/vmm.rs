//! Reservations, physical memory and mappings.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};

use gpuheap_cuda::raw::{self, AccessDesc, AllocationHandle, AllocationProp, Code, DevicePtr, MemLocation};

use crate::entry::{Out, exports, give};
use crate::pages::{self, Backing, GRANULARITY};
use crate::space::{Mapping, Physical};
use crate::state::{State, ready};

exports! {
    fn cuMemGetAllocationGranularity(bytes: Out<'_, usize>, prop: Option<&AllocationProp>, _option: c_uint) {
        let state = ready()?;
        state.placement(prop.ok_or(Code::INVALID_VALUE)?)?;
        give(bytes, GRANULARITY)
    }

    fn cuMemAddressReserve(
        address: Out<'_, DevicePtr>, bytes: usize, alignment: usize, _wanted: DevicePtr, flags: u64,
    ) {
        let mut state = ready()?;
        let aligned = alignment == 0 || alignment.is_power_of_two();
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || !aligned || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let out = address.ok_or(Code::INVALID_VALUE)?;
        let start = pages::reserve(bytes, alignment.max(GRANULARITY))?;
        state.space.reservations.insert(start, bytes);
        out.write(DevicePtr(start));
        Ok(())
    }

    fn cuMemAddressFree(address: DevicePtr, bytes: usize) {
        let mut state = ready()?;
        if state.space.reservations.get(&address.0) != Some(&bytes) {
            return Err(Code::INVALID_VALUE);
        }
        if state.space.mappings.range(address.0..address.0 + bytes).next().is_some() {
            return Err(Code::INVALID_VALUE);
        }
        state.space.reservations.remove(&address.0);
        pages::unmap(address.0, bytes);
        Ok(())
    }

    fn cuMemCreate(handle: Out<'_, AllocationHandle>, bytes: usize, prop: Option<&AllocationProp>, flags: u64) {
        let mut state = ready()?;
        let prop = prop.ok_or(Code::INVALID_VALUE)?;
        let charged = state.placement(prop)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if prop.handle_types & raw::HANDLE_FABRIC != 0 {
            return Err(Code::NOT_PERMITTED);
        }
        let out = handle.ok_or(Code::INVALID_VALUE)?;
        if let Some(device) = charged {
            state.charge(device, bytes)?;
        }
        let backing = match Backing::new(bytes) {
            Ok(backing) => backing,
            Err(code) => {
                if let Some(device) = charged {
                    state.refund(device, bytes);
                }
                return Err(code);
            }
        };
        let (location, handle_types, usage) = (prop.location, prop.handle_types, prop.usage);
        let physical = Physical { backing, location, handle_types, usage, handles: 1, mappings: 0, charged };
        let number = state.handle() as u64;
        state.space.physical.insert(number, physical);
        out.write(AllocationHandle(number));
        Ok(())
    }

    fn cuMemRelease(handle: AllocationHandle) {
        let mut state = ready()?;
        let physical = state.space.physical.get_mut(&handle.0).filter(|physical| physical.handles > 0);
        physical.ok_or(Code::INVALID_VALUE)?.handles -= 1;
        state.settle(handle.0);
        Ok(())
    }

    fn cuMemMap(address: DevicePtr, bytes: usize, offset: usize, handle: AllocationHandle, flags: u64) {
        let mut state = ready()?;
        let physical = state.space.physical.get(&handle.0).filter(|physical| physical.handles > 0);
        let physical = physical.ok_or(Code::INVALID_VALUE)?;
        if offset != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        if flags != 0 || bytes != physical.backing.bytes || !address.0.is_multiple_of(GRANULARITY) {
            return Err(Code::INVALID_VALUE);
        }
        state.space.reservation_of(address.0, bytes).ok_or(Code::INVALID_VALUE)?;
        let taken = state.space.mappings.range(..address.0 + bytes).next_back();
        if taken.is_some_and(|(start, mapping)| start + mapping.bytes > address.0) {
            return Err(Code::INVALID_VALUE);
        }
        physical.backing.map_at(address.0)?;
        if let Some(physical) = state.space.physical.get_mut(&handle.0) {
            physical.mappings += 1;
        }
        let mapping = Mapping { bytes, handle: handle.0, access: BTreeMap::new(), host: 0 };
        state.space.mappings.insert(address.0, mapping);
        Ok(())
    }

    fn cuMemUnmap(address: DevicePtr, bytes: usize) {
        let mut state = ready()?;
        // It waits for nothing: nothing promises that the real one does.
        for start in state.space.mappings_of(address.0, bytes)? {
            if let Some(mapping) = state.space.mappings.remove(&start) {
                pages::clear(start, mapping.bytes)?;
                if let Some(physical) = state.space.physical.get_mut(&mapping.handle) {
                    physical.mappings -= 1;
                }
                state.settle(mapping.handle);
            }
        }
        Ok(())
    }

    fn cuMemSetAccess(address: DevicePtr, bytes: usize, wanted: *const AccessDesc, count: usize) {
        let mut state = ready()?;
        if wanted.is_null() || count == 0 || count > 1024 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller gives `count` of them.
        let wanted = unsafe { std::slice::from_raw_parts(wanted, count) };
        let starts = state.space.mappings_of(address.0, bytes)?;
        // All or nothing.
        for desc in wanted {
            if !matches!(desc.flags, raw::ACCESS_NONE | raw::ACCESS_READ | raw::ACCESS_READ_WRITE) {
                return Err(Code::INVALID_VALUE);
            }
            match desc.location.kind {
                raw::location::DEVICE => {
                    state.device(desc.location.id)?;
                }
                raw::location::HOST | raw::location::HOST_NUMA => {
                    // The host reaches its own memory only.
                    let of_device = |start: &usize| {
                        let mapping = &state.space.mappings[start];
                        state.space.physical[&mapping.handle].location.kind == raw::location::DEVICE
                    };
                    if starts.iter().any(of_device) {
                        return Err(Code::INVALID_VALUE);
                    }
                }
                _ => return Err(Code::INVALID_VALUE),
            }
        }
        for start in starts {
            let Some(mapping) = state.space.mappings.get_mut(&start) else { continue };
            for desc in wanted {
                if desc.location.kind == raw::location::DEVICE {
                    mapping.access.insert(desc.location.id, desc.flags);
                } else {
                    mapping.host = desc.flags;
                }
            }
            let flags = mapping.access.values().fold(mapping.host, |all, flags| all | flags);
            let writable = flags & raw::ACCESS_READ_WRITE == raw::ACCESS_READ_WRITE;
            pages::protect(start, mapping.bytes, flags & raw::ACCESS_READ != 0, writable)?;
            state.granted(start);
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<'_, u64>, location: Option<&MemLocation>, address: DevicePtr) {
        let state = ready()?;
        let location = location.ok_or(Code::INVALID_VALUE)?;
        let (_, mapping) = state.space.mapping_at(address.0).ok_or(Code::INVALID_VALUE)?;
        let found = match location.kind {
            raw::location::DEVICE => {
                state.device(location.id)?;
                mapping.access.get(&location.id).copied().unwrap_or(0)
            }
            _ => mapping.host,
        };
        give(flags, u64::from(found))
    }

    fn cuMemRetainAllocationHandle(handle: Out<'_, AllocationHandle>, address: *mut c_void) {
        let mut state = ready()?;
        let (_, mapping) = state.space.mapping_at(address.addr()).ok_or(Code::INVALID_VALUE)?;
        let number = mapping.handle;
        let out = handle.ok_or(Code::INVALID_VALUE)?;
        if let Some(physical) = state.space.physical.get_mut(&number) {
            physical.handles += 1;
        }
        out.write(AllocationHandle(number));
        Ok(())
    }

    fn cuMemGetAllocationPropertiesFromHandle(prop: Out<'_, AllocationProp>, handle: AllocationHandle) {
        let state = ready()?;
        give(prop, state.space.physical.get(&handle.0).ok_or(Code::INVALID_VALUE)?.prop())
    }

    fn cuMemExportToShareableHandle(
        shared: *mut c_void, handle: AllocationHandle, kind: c_uint, flags: u64,
    ) {
        let state = ready()?;
        let physical = state.space.physical.get(&handle.0).ok_or(Code::INVALID_VALUE)?;
        if shared.is_null() || flags != 0 || kind == 0 || physical.handle_types & kind != kind {
            return Err(Code::INVALID_VALUE);
        }
        if kind != raw::HANDLE_FILE_DESCRIPTOR {
            return Err(Code::NOT_SUPPORTED);
        }
        let number: c_int = physical.backing.descriptor()?;
        // SAFETY: the caller gives room for a file descriptor, as the kind says.
        unsafe { shared.cast::<c_int>().write(number) };
        Ok(())
    }

    fn cuMemImportFromShareableHandle(handle: Out<'_, AllocationHandle>, shared: *mut c_void, kind: c_uint) {
        let mut state = ready()?;
        let out = handle.ok_or(Code::INVALID_VALUE)?;
        if kind != raw::HANDLE_FILE_DESCRIPTOR {
            return Err(Code::NOT_SUPPORTED);
        }
        let descriptor = c_int::try_from(shared.addr()).map_err(|_| Code::INVALID_VALUE)?;
        let backing = Backing::from_descriptor(descriptor)?;
        let location = MemLocation { kind: raw::location::DEVICE, id: 0 };
        // Charged where it was created.
        let handle_types = raw::HANDLE_FILE_DESCRIPTOR;
        let physical = Physical { backing, location, handle_types, usage: 0, handles: 1, mappings: 0, charged: None };
        let number = state.handle() as u64;
        state.space.physical.insert(number, physical);
        out.write(AllocationHandle(number));
        Ok(())
    }
}

impl State {
    /// The device that memory of this kind is charged to, if it is a device's. The error is that of a kind that is none.
    fn placement(&self, prop: &AllocationProp) -> Result<Option<usize>, Code> {
        if prop.kind != raw::ALLOCATION_PINNED {
            return Err(Code::INVALID_VALUE);
        }
        match prop.location.kind {
            raw::location::DEVICE => self.device(prop.location.id).map(Some),
            raw::location::HOST if prop.handle_types == 0 => Ok(None),
            raw::location::HOST_NUMA if (0..self.config.nodes).contains(&prop.location.id) => Ok(None),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Lets physical memory go if nothing holds it any more.
    fn settle(&mut self, handle: u64) {
        let Some(physical) = self.space.physical.get(&handle) else { return };
        if physical.handles > 0 || physical.mappings > 0 {
            return;
        }
        let (charged, bytes) = (physical.charged, physical.backing.bytes);
        self.space.physical.remove(&handle);
        if let Some(device) = charged {
            self.refund(device, bytes);
        }
    }
}
