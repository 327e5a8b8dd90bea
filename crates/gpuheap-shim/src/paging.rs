//! Physical memory and its mappings, as programs ask for them. It is charged once, from its creation until the last handle
//! and the last mapping are gone, in whichever order. Memory of a device is a chunk ([`crate::chunks`]) if it may move, or
//! several ([`pieces`]) if not all of it fits.

mod passed_on;
mod pieces;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use gpuheap_cuda::raw::{AccessDesc, AllocationHandle, AllocationProp, Code, DevicePtr, location};

pub(crate) use self::passed_on::{bind_multicast, bind_multicast_on, export};
use self::pieces::Pieces;
pub(crate) use self::table::Paging;
use self::table::{Held, Physical, Piece};
use crate::around::{Call, result};
use crate::charge::{Charge, Kind};
use crate::chunks::{self, Chunk};
use crate::converted::{self, PIECE};
use crate::moves;
use crate::moving::{self, Moving};
use crate::real;
use crate::state::{self, lock};

pub(crate) fn create(
    call: Call<'_>,
    handle: *mut AllocationHandle,
    bytes: usize,
    prop: *const AllocationProp,
    flags: u64,
) -> Code {
    let Some(prop) = result(prop) else { return call() };
    if let Some(moving) = moving::get()
        && chunks::is_movable(&prop, flags)
        && !handle.is_null()
        && bytes > 0
    {
        return match movable(moving, bytes, prop) {
            Ok((token, held)) => {
                lock(&state::get().paging).handles.insert(token.0, (1, held));
                // SAFETY: the program's own place for it, which is not null.
                unsafe { handle.write(token) };
                Code::SUCCESS
            }
            Err(code) => {
                if code == Code::OUT_OF_MEMORY {
                    Charge::refuse(Kind::Physical, Some(prop.location.id), bytes);
                }
                code
            }
        };
    }
    let charge = match prop.location.kind {
        location::DEVICE => Charge::take(Kind::Physical, Some(prop.location.id), bytes),
        location::HOST | location::HOST_NUMA | location::HOST_NUMA_CURRENT => {
            Charge::take(Kind::PhysicalHost, None, bytes)
        }
        // A kind of place that is not known here: the driver's business.
        _ => return call(),
    };
    let Some(charge) = charge else { return Code::OUT_OF_MEMORY };
    let code = call();
    if code.is_success()
        && let Some(handle) = result(handle)
    {
        charge.at(usize::try_from(handle.0).unwrap_or(0));
        let physical = Held::Fixed(Arc::new(Physical { charge: Mutex::new(charge) }));
        lock(&state::get().paging).handles.insert(handle.0, (1, physical));
    }
    code
}

/// Memory that may move: as one, if it fits on the device or is small.
fn movable(moving: &Moving, bytes: usize, prop: AllocationProp) -> Result<(AllocationHandle, Held), Code> {
    if bytes > PIECE && moving.spills() {
        return match Chunk::new_on_device(moving, bytes, prop, Kind::Physical) {
            Ok(chunk) => Ok((chunk.token(), Held::Chunk(chunk))),
            Err(Code::OUT_OF_MEMORY) => {
                let pieces = Pieces::new(moving, bytes, prop)?;
                Ok((pieces.token(), Held::Whole(pieces)))
            }
            Err(code) => Err(code),
        };
    }
    let chunk = Chunk::new(moving, bytes, prop, Kind::Physical)?;
    Ok((chunk.token(), Held::Chunk(chunk)))
}

pub(crate) fn import(call: Call<'_>, handle: *mut AllocationHandle, _shared: *mut c_void, _kind: c_uint) -> Code {
    let code = call();
    if code.is_success()
        && let Some(handle) = result(handle)
        // How large it is, its mapping will tell.
        && let Some(charge) = Charge::take(Kind::Imported, None, 0)
    {
        charge.at(usize::try_from(handle.0).unwrap_or(0));
        let physical = Held::Fixed(Arc::new(Physical { charge: Mutex::new(charge) }));
        lock(&state::get().paging).handles.insert(handle.0, (1, physical));
    }
    code
}

pub(crate) fn release(call: Call<'_>, handle: AllocationHandle) -> Code {
    let given_back = lock(&state::get().paging).give_back(handle.0);
    if let Some(Held::Chunk(_) | Held::Whole(_)) = given_back {
        // Its memory goes with the last of handles and mappings.
        return Code::SUCCESS;
    }
    let code = call();
    if let (false, Some(held)) = (code.is_success(), given_back) {
        lock(&state::get().paging).give_out(handle.0, held);
    }
    code
}

pub(crate) fn map(
    call: Call<'_>,
    address: DevicePtr,
    bytes: usize,
    offset: usize,
    handle: AllocationHandle,
    flags: u64,
) -> Code {
    let code = match (held_of(handle), moving::get()) {
        (Some(Held::Chunk(chunk)), Some(moving)) => {
            note_context();
            chunk.map(moving, address, bytes, offset, flags)
        }
        (Some(Held::Whole(pieces)), Some(moving)) => {
            note_context();
            return match pieces.map(moving, address, bytes, offset, flags) {
                Ok(mapped) => {
                    let entries = mapped.into_iter().map(|(place, part, chunk)| {
                        let piece = Piece { chunk, of: Arc::clone(&pieces), start: address.0, bytes };
                        (place, (part, Held::Piece(piece)))
                    });
                    lock(&state::get().paging).mappings.extend(entries);
                    Code::SUCCESS
                }
                Err(code) => code,
            };
        }
        _ => call(),
    };
    if code.is_success() {
        let mut paging = lock(&state::get().paging);
        // Other objects can be mapped as well; they are no memory.
        if let Some(held) = paging.handles.get(&handle.0).map(|(_, held)| held.clone()) {
            if let Held::Fixed(physical) = &held {
                let mut charge = lock(&physical.charge);
                if charge.kind == Kind::Imported && charge.bytes() < bytes as u64 {
                    charge.set(bytes as u64);
                }
            }
            paging.mappings.insert(address.0, (bytes, held));
        }
    }
    code
}

pub(crate) fn unmap(call: Call<'_>, address: DevicePtr, bytes: usize) -> Code {
    let end = address.0.saturating_add(bytes);
    let in_pieces;
    let mut gone = {
        let mut paging = lock(&state::get().paging);
        in_pieces = paging.mappings.range(address.0..end).any(|(_, (_, held))| matches!(held, Held::Piece(_)));
        // What a program mapped as one goes as one; the driver has several mappings there, and would take some of them.
        if in_pieces && !paging.is_whole(&(address.0..end)) {
            return Code::INVALID_VALUE;
        }
        let mut rest = paging.mappings.split_off(&address.0);
        let mut after = rest.split_off(&end);
        paging.mappings.append(&mut after);
        rest
    };
    if let Some(moving) = moving::get() {
        gone.values().filter_map(|(_, held)| held.chunk()).for_each(|chunk| chunk.hold_off(moving));
    }
    let code = match moving::get() {
        Some(moving) if in_pieces => unmap_each(moving, address.0..end, &mut gone),
        _ => call(),
    };
    if code.is_success() {
        gone.values().filter_map(|(_, held)| held.chunk()).for_each(|chunk| chunk.unmapped());
    } else {
        gone.values().filter_map(|(_, held)| held.chunk()).for_each(|chunk| chunk.let_be());
        lock(&state::get().paging).mappings.append(&mut gone);
    }
    code
}

/// Unmaps all that is mapped in a range, which cuts through nothing that the program mapped as one. With an error, what is
/// left is still mapped, and the same call again takes it.
fn unmap_each(moving: &Moving, range: Range<usize>, mapped: &mut BTreeMap<usize, (usize, Held)>) -> Code {
    // What lies between is nothing, which the driver refuses, or nothing that is known here. So it comes first: nothing is
    // gone if it is refused.
    let mut known = range.start;
    let wholes = mapped.iter().map(|(start, (bytes, held))| held.whole(*start, *bytes));
    for whole in wholes.chain(std::iter::once(range.end..range.end)) {
        if whole.start > known {
            // SAFETY: the program's own call, for a part of its range.
            let code = unsafe { (moving.api().cuMemUnmap)(DevicePtr(known), whole.start - known) };
            if !code.is_success() {
                return code;
            }
        }
        known = whole.end;
    }
    let mut is_first = true;
    while let Some((address, (bytes, held))) = mapped.pop_first() {
        // SAFETY: the program's own call, for one of the mappings in its range.
        let unmap = || unsafe { (moving.api().cuMemUnmap)(DevicePtr(address), bytes) };
        // Once some of it is gone, the rest has to go.
        let code = if is_first { unmap() } else { moves::surely(unmap) };
        if !code.is_success() {
            mapped.insert(address, (bytes, held));
            return code;
        }
        is_first = false;
        if let Some(chunk) = held.chunk() {
            chunk.unmapped();
        }
    }
    Code::SUCCESS
}

pub(crate) fn set_access(
    call: Call<'_>,
    address: DevicePtr,
    bytes: usize,
    wanted: *const AccessDesc,
    count: usize,
) -> Code {
    let end = address.0.saturating_add(bytes);
    let mapped: Vec<Held> = {
        let paging = lock(&state::get().paging);
        paging.mappings.range(address.0..end).map(|(_, (_, held))| held.clone()).collect()
    };
    // Access may be taken away.
    if let Some(moving) = moving::get() {
        mapped.iter().filter_map(Held::chunk).for_each(|chunk| chunk.hold_off(moving));
    }
    let code = call();
    for chunk in mapped.iter().filter_map(Held::chunk) {
        if code.is_success() && !wanted.is_null() {
            // SAFETY: the driver read as many.
            chunk.granted(unsafe { std::slice::from_raw_parts(wanted, count) });
        }
        chunk.let_be();
    }
    code
}

pub(crate) fn retain(call: Call<'_>, handle: *mut AllocationHandle, address: *mut c_void) -> Code {
    let movable = lock(&state::get().paging).at(address.addr()).and_then(|held| match held {
        Held::Chunk(chunk) => Some((chunk.token(), Held::Chunk(chunk))),
        Held::Piece(Piece { of: pieces, .. }) | Held::Whole(pieces) => Some((pieces.token(), Held::Whole(pieces))),
        Held::Fixed(_) => None,
    });
    if let Some((token, held)) = movable
        && !handle.is_null()
    {
        lock(&state::get().paging).give_out(token.0, held);
        // SAFETY: the program's own place for it, which is not null.
        unsafe { handle.write(token) };
        return Code::SUCCESS;
    }
    if converted::chunk_at(DevicePtr(address.addr())).is_some() {
        // As for all memory of `cuMemAlloc`: there is no handle of it for programs.
        return Code::INVALID_VALUE;
    }
    let code = call();
    if code.is_success()
        && let Some(handle) = result(handle)
    {
        let mut paging = lock(&state::get().paging);
        let mapped = paging.at(address.addr());
        if let Some(held) = mapped {
            paging.give_out(handle.0, held);
        }
    }
    code
}

pub(crate) fn properties(call: Call<'_>, prop: *mut AllocationProp, handle: AllocationHandle) -> Code {
    let known = match held_of(handle) {
        Some(Held::Chunk(chunk)) => Some(chunk.prop),
        Some(Held::Whole(pieces)) => pieces.chunks.first().map(|first| first.prop),
        _ => None,
    };
    match known {
        Some(known) if !prop.is_null() => {
            // SAFETY: the program's own place for it, which is not null.
            unsafe { prop.write(known) };
            Code::SUCCESS
        }
        _ => call(),
    }
}

/// What a token stands for.
fn held_of(handle: AllocationHandle) -> Option<Held> {
    if !chunks::is_token(handle) {
        return None;
    }
    lock(&state::get().paging).handles.get(&handle.0).map(|(_, held)| held.clone())
}

/// The chunk of the program's that is mapped at an address.
pub(crate) fn chunk_at(address: usize) -> Option<Arc<Chunk>> {
    lock(&state::get().paging).at(address)?.chunk().cloned()
}

/// Where memory in pieces begins that is mapped at an address, and its size.
pub(crate) fn range(address: DevicePtr) -> Option<(DevicePtr, usize)> {
    let paging = lock(&state::get().paging);
    match paging.at(address.0)? {
        Held::Piece(piece) => Some((DevicePtr(piece.start), piece.bytes)),
        _ => None,
    }
}

/// All of the program's chunks that are mapped, by their addresses.
pub(crate) fn mapped_chunks() -> Vec<Arc<Chunk>> {
    let paging = lock(&state::get().paging);
    paging.mappings.values().filter_map(|(_, held)| held.chunk().cloned()).collect()
}

fn note_context() {
    if let Some((context, _)) = real::current() {
        state::get().note_context(context);
    }
}
