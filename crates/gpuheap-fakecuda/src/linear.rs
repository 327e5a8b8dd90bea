//! Memory by `cuMemAlloc` and its kin, on the device and on the host.

use std::ffi::{c_uint, c_void};

use gpuheap_cuda::raw::{Code, DevicePtr};

use crate::entry::{Done, Out, exports, give, offer};
use crate::pages::{self, Backing, GRANULARITY, PAGE, round_up};
use crate::space::{Kind, Range};
use crate::state::{State, ready};
use crate::work;

/// Requests up to this share chunks of [`GRANULARITY`].
const SMALL: usize = 1 << 20;
/// What small ones are multiples of.
const SMALL_UNIT: usize = 512;

exports! {
    fn cuMemGetInfo_v2(free: Out<'_, usize>, total: Out<'_, usize>) {
        let state = ready()?;
        let (_, device) = state.current_device()?;
        offer(free, state.config.memory - state.devices[device].used.min(state.config.memory));
        offer(total, state.config.memory);
        Ok(())
    }

    fn cuMemAlloc_v2(address: Out<'_, DevicePtr>, bytes: usize) {
        let address = address.ok_or(Code::INVALID_VALUE)?;
        address.write(DevicePtr(allocate(bytes, Kind::Linear)?));
        Ok(())
    }

    fn cuMemAllocPitch_v2(
        address: Out<'_, DevicePtr>, pitch: Out<'_, usize>, width: usize, height: usize, element: c_uint,
    ) {
        if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (address, pitch) = (address.ok_or(Code::INVALID_VALUE)?, pitch.ok_or(Code::INVALID_VALUE)?);
        let row = round_up(width, SMALL_UNIT)?;
        address.write(DevicePtr(allocate(row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?, Kind::Linear)?));
        pitch.write(row);
        Ok(())
    }

    fn cuMemAllocManaged(address: Out<'_, DevicePtr>, bytes: usize, flags: c_uint) {
        if !matches!(flags, 1 | 2) {
            return Err(Code::INVALID_VALUE);
        }
        let address = address.ok_or(Code::INVALID_VALUE)?;
        address.write(DevicePtr(allocate(bytes, Kind::Managed)?));
        Ok(())
    }

    fn cuMemFree_v2(address: DevicePtr) {
        if address.is_null() {
            return Ok(());
        }
        let state = ready()?;
        let context = state.current()?;
        state.forbid_while_capturing(context)?;
        let range = state.space.ranges.get(&address.0).ok_or(Code::INVALID_VALUE)?;
        match range.kind {
            Kind::Linear | Kind::Small | Kind::Managed | Kind::Ordered { freed: false, .. } => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        // As the real one, it waits for what may still use the memory.
        let pieces = state.last_pieces(range.context);
        let mut state = work::wait_for(state, &pieces);
        state.drop_range(address.0)
    }

    fn cuMemAllocHost_v2(start: Out<'_, *mut c_void>, bytes: usize) {
        let start = start.ok_or(Code::INVALID_VALUE)?;
        start.write(std::ptr::with_exposed_provenance_mut(allocate_host(bytes)?));
        Ok(())
    }

    fn cuMemHostAlloc(start: Out<'_, *mut c_void>, bytes: usize, _flags: c_uint) {
        let start = start.ok_or(Code::INVALID_VALUE)?;
        start.write(std::ptr::with_exposed_provenance_mut(allocate_host(bytes)?));
        Ok(())
    }

    fn cuMemFreeHost(start: *mut c_void) {
        let state = ready()?;
        let address = start.addr();
        let range = state.space.ranges.get(&address).filter(|range| range.kind == Kind::Host);
        let pieces = state.last_pieces(range.ok_or(Code::INVALID_VALUE)?.context);
        work::wait_for(state, &pieces).drop_range(address)
    }

    fn cuMemHostRegister_v2(start: *mut c_void, bytes: usize, _flags: c_uint) {
        let mut state = ready()?;
        let (context, device) = state.current_device()?;
        if start.is_null() || bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let address = start.expose_provenance();
        if state.space.range_at(address).is_some() {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        state.put_range(address, bytes, 0, Kind::Registered, (context, device), None);
        Ok(())
    }

    fn cuMemHostUnregister(start: *mut c_void) {
        let mut state = ready()?;
        let address = start.addr();
        if state.space.ranges.get(&address).is_none_or(|range| range.kind != Kind::Registered) {
            return Err(Code::HOST_MEMORY_NOT_REGISTERED);
        }
        state.drop_range(address)
    }

    fn cuMemHostGetDevicePointer_v2(address: Out<'_, DevicePtr>, start: *mut c_void, _flags: c_uint) {
        let state = ready()?;
        let (_, range) = state.space.range_at(start.addr()).ok_or(Code::INVALID_VALUE)?;
        if !matches!(range.kind, Kind::Host | Kind::Registered) {
            return Err(Code::INVALID_VALUE);
        }
        give(address, DevicePtr(start.addr()))
    }

    fn cuMemHostGetFlags(flags: Out<'_, c_uint>, start: *mut c_void) {
        let state = ready()?;
        state.space.range_at(start.addr()).ok_or(Code::INVALID_VALUE)?;
        // Portable and mapped, as all of it is by unified addressing.
        give(flags, 3)
    }

    fn cuMemGetAddressRange_v2(base: Out<'_, DevicePtr>, bytes: Out<'_, usize>, address: DevicePtr) {
        let state = ready()?;
        let (start, size) = match state.space.range_at(address.0) {
            Some((start, range)) => (start, range.bytes),
            None => {
                let found = state.space.mapping_at(address.0).ok_or(Code::NOT_FOUND)?;
                (found.0, found.1.bytes)
            }
        };
        offer(base, DevicePtr(start));
        offer(bytes, size);
        Ok(())
    }
}

fn allocate(bytes: usize, kind: Kind) -> Result<usize, Code> {
    let mut state = ready()?;
    let place = state.current_device()?;
    state.forbid_while_capturing(place.0)?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if bytes <= SMALL && kind == Kind::Linear {
        return state.allocate_small(bytes, place);
    }
    let taken = round_up(bytes, GRANULARITY)?;
    state.charge(place.1, taken)?;
    let backing = Backing::new(taken);
    let mapped = backing.and_then(|backing| Ok((backing.map_anywhere()?, backing)));
    let (address, backing) = match mapped {
        Ok(mapped) => mapped,
        Err(code) => {
            state.refund(place.1, taken);
            return Err(code);
        }
    };
    state.put_range(address, bytes, taken, kind, place, Some(backing));
    Ok(address)
}

fn allocate_host(bytes: usize) -> Result<usize, Code> {
    let mut state = ready()?;
    let place = state.current_device()?;
    state.forbid_while_capturing(place.0)?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let taken = round_up(bytes, PAGE)?;
    let address = pages::anonymous(taken)?;
    state.put_range(address, bytes, taken, Kind::Host, place, None);
    Ok(address)
}

impl State {
    fn allocate_small(&mut self, bytes: usize, place: (usize, usize)) -> Result<usize, Code> {
        let (context, device) = place;
        let taken = round_up(bytes, SMALL_UNIT)?;
        let found = self.contexts.get_mut(&context).and_then(|context| context.small.take(taken));
        let address = match found {
            Some(address) => address,
            None => {
                self.charge(device, GRANULARITY)?;
                let chunk = match Backing::new(GRANULARITY).and_then(|backing| backing.map_anywhere()) {
                    Ok(chunk) => chunk,
                    Err(code) => {
                        self.refund(device, GRANULARITY);
                        return Err(code);
                    }
                };
                let small = &mut self.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?.small;
                small.add_chunk(chunk, GRANULARITY);
                small.take(taken).ok_or(Code::UNKNOWN)?
            }
        };
        self.put_range(address, bytes, taken, Kind::Small, place, None);
        Ok(address)
    }

    /// Enters an allocation.
    pub(crate) fn put_range(
        &mut self,
        address: usize,
        bytes: usize,
        taken: usize,
        kind: Kind,
        (context, device): (usize, usize),
        backing: Option<Backing>,
    ) {
        let id = self.handle() as u64;
        self.space.ranges.insert(address, Range { bytes, taken, kind, context, device, id, backing });
    }

    /// Takes an allocation away, with its memory.
    pub(crate) fn drop_range(&mut self, address: usize) -> Done {
        let range = self.space.ranges.remove(&address).ok_or(Code::INVALID_VALUE)?;
        match range.kind {
            Kind::Linear | Kind::Managed | Kind::Foreign => {
                pages::unmap(address, range.taken);
                self.refund(range.device, range.taken);
            }
            Kind::Small => {
                if let Some(context) = self.contexts.get_mut(&range.context) {
                    context.small.give_back(address, range.taken);
                    for (chunk, bytes) in context.small.trim(0) {
                        pages::unmap(chunk, bytes);
                        self.refund(range.device, bytes);
                    }
                }
            }
            Kind::Host | Kind::Imported => pages::unmap(address, range.taken),
            Kind::Registered => {}
            Kind::Ordered { pool, .. } => self.give_back_to_pool(pool, address, range.taken),
        }
        Ok(())
    }

    /// Takes all allocations of a context away.
    pub(crate) fn drop_ranges(&mut self, context: usize) {
        let own = self.space.ranges.iter().filter(|(_, range)| range.context == context);
        let own: Vec<usize> = own.map(|(address, _)| *address).collect();
        for address in own {
            // It is there: it was just found.
            let _ = self.drop_range(address);
        }
    }
}
