//! `cuMemAlloc` of large sizes, as chunks that can move. The program sees one allocation, as before.
//!
//! `cuMemFree` waits for the device, and programs rely on it: so does this. Sizes are rounded up to the granularity of
//! physical memory, which is what the driver does with large ones as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpuheap_cuda::raw::{AccessDesc, AllocationProp, Code, DeviceId, DevicePtr, MemLocation, location};

use crate::charge::Kind;
use crate::chunks::{Chunk, own_access};
use crate::moving::{self, Moving};
use crate::state::{self, lock};
use crate::{moves, real};

/// The granularity of physical memory on all devices so far, and the least that is worth to be moved.
pub(crate) const UNIT: usize = 2 << 20;
/// The most that moves as one. Smaller costs more calls, larger moves more than is wanted.
const PIECE: usize = 32 << 20;

/// One allocation.
#[derive(Debug)]
struct Converted {
    /// What was asked for.
    asked: usize,
    /// What is reserved and mapped.
    bytes: usize,
    context: usize,
    device: DeviceId,
    pieces: Vec<Arc<Chunk>>,
}

/// All of them, and who reaches them.
#[derive(Debug, Default)]
pub(crate) struct Table {
    by_address: BTreeMap<usize, Converted>,
    /// Devices whose memory another device reaches, and that one.
    peers: BTreeSet<(DeviceId, DeviceId)>,
    /// Freed while a graph was being recorded, when nobody may wait for a device.
    late: Vec<(usize, Converted)>,
}

/// Allocates. Nothing if this is not for here, and the driver has to be asked.
pub(crate) fn allocate(place: *mut DevicePtr, asked: usize) -> Option<Code> {
    let moving = moving::get().filter(|_| asked >= UNIT && !place.is_null())?;
    let bytes = asked.checked_next_multiple_of(UNIT)?;
    let (context, device) = real::current()?;
    state::get().note_context(context);
    free_late(moving);
    match Converted::new(moving, (asked, bytes), context, device) {
        Ok((address, converted)) => {
            lock(&state::get().converted).by_address.insert(address.0, converted);
            // SAFETY: the program's own place for it, which is not null.
            unsafe { place.write(address) };
            Some(Code::SUCCESS)
        }
        Err(Code::OUT_OF_MEMORY) => Some(Code::OUT_OF_MEMORY),
        // A driver that cannot do it that way may still do it its own way.
        Err(_) => None,
    }
}

/// Frees. Nothing if the address is not of these.
pub(crate) fn free(address: DevicePtr) -> Option<Code> {
    let moving = moving::get()?;
    let converted = lock(&state::get().converted).by_address.remove(&address.0)?;
    if state::get().captures() > 0 {
        lock(&state::get().converted).late.push((address.0, converted));
        return Some(Code::SUCCESS);
    }
    free_late(moving);
    // As `cuMemFree` does. What the device reports is of the program's work, and is the program's to hear.
    // SAFETY: takes nothing.
    let code = unsafe { (moving.api().cuCtxSynchronize)() };
    converted.give_back(moving, address);
    Some(code)
}

fn free_late(moving: &Moving) {
    if state::get().captures() > 0 {
        return;
    }
    let late = std::mem::take(&mut lock(&state::get().converted).late);
    if late.is_empty() {
        return;
    }
    // SAFETY: takes nothing.
    unsafe { (moving.api().cuCtxSynchronize)() };
    for (address, converted) in late {
        converted.give_back(moving, DevicePtr(address));
    }
}

/// Frees what a context takes along that is gone.
pub(crate) fn drop_context(context: usize) {
    let Some(moving) = moving::get() else { return };
    let mut gone = Vec::new();
    {
        let mut table = lock(&state::get().converted);
        let addresses: Vec<usize> =
            table.by_address.iter().filter(|(_, one)| one.context == context).map(|(address, _)| *address).collect();
        for address in addresses {
            gone.extend(table.by_address.remove(&address).map(|one| (address, one)));
        }
    }
    for (address, converted) in gone {
        converted.give_back(moving, DevicePtr(address));
    }
}

/// Where the allocation at an address begins, and its size.
pub(crate) fn range(address: DevicePtr) -> Option<(DevicePtr, usize)> {
    let table = lock(&state::get().converted);
    let (start, converted) = table.by_address.range(..=address.0).next_back()?;
    (address.0 - start < converted.bytes).then_some((DevicePtr(*start), converted.asked))
}

/// All chunks of all of them.
pub(crate) fn chunks() -> Vec<Arc<Chunk>> {
    let table = lock(&state::get().converted);
    table.by_address.values().flat_map(|one| one.pieces.iter().cloned()).collect()
}

/// The chunk at an address.
pub(crate) fn chunk_at(address: DevicePtr) -> Option<Arc<Chunk>> {
    let table = lock(&state::get().converted);
    let (start, converted) = table.by_address.range(..=address.0).next_back()?;
    converted.pieces.get((address.0 - start) / PIECE).filter(|_| address.0 - start < converted.bytes).cloned()
}

/// From now on `reader` reaches what `owner` has.
pub(crate) fn enable_peer(owner: DeviceId, reader: DeviceId) {
    let Some(moving) = moving::get() else { return };
    let ranges: Vec<(usize, usize, Vec<Arc<Chunk>>)> = {
        let mut table = lock(&state::get().converted);
        table.peers.insert((owner, reader));
        let of_owner = table.by_address.iter().filter(|(_, one)| one.device == owner);
        of_owner.map(|(address, one)| (*address, one.bytes, one.pieces.clone())).collect()
    };
    let access = own_access(reader);
    for (address, bytes, pieces) in ranges {
        // SAFETY: mapped as long as the allocation is there; the program cannot free it while its call is under way here.
        unsafe { (moving.api().cuMemSetAccess)(DevicePtr(address), bytes, &raw const access, 1) };
        for piece in pieces {
            piece.granted(&[access]);
        }
    }
}

impl Converted {
    fn new(
        moving: &Moving,
        (asked, bytes): (usize, usize),
        context: usize,
        device: DeviceId,
    ) -> Result<(DevicePtr, Self), Code> {
        let api = moving.api();
        let mut address = DevicePtr::NULL;
        // SAFETY: `address` outlives the call.
        let code = unsafe { (api.cuMemAddressReserve)(&raw mut address, bytes, UNIT, DevicePtr::NULL, 0) };
        if !code.is_success() {
            return Err(code);
        }
        let mut converted = Self { asked, bytes, context, device, pieces: Vec::new() };
        match converted.fill(moving, address) {
            Ok(()) => Ok((address, converted)),
            Err(code) => {
                converted.give_back(moving, address);
                Err(code)
            }
        }
    }

    /// Puts memory behind all addresses.
    fn fill(&mut self, moving: &Moving, address: DevicePtr) -> Result<(), Code> {
        let prop = AllocationProp::at(MemLocation { kind: location::DEVICE, id: self.device });
        let mut filled = 0;
        while filled < self.bytes {
            let bytes = PIECE.min(self.bytes - filled);
            let piece = Chunk::new(moving, bytes, prop, Kind::Linear)?;
            let mapped = piece.map(moving, DevicePtr(address.0 + filled), bytes, 0, 0);
            if !mapped.is_success() {
                return Err(mapped);
            }
            self.pieces.push(piece);
            filled += bytes;
        }
        let mut access = vec![own_access(self.device)];
        let peers = lock(&state::get().converted).peers.clone();
        access.extend(peers.iter().filter(|(owner, _)| *owner == self.device).map(|(_, reader)| own_access(*reader)));
        self.grant(moving, address, &access)
    }

    fn grant(&self, moving: &Moving, address: DevicePtr, access: &[AccessDesc]) -> Result<(), Code> {
        // SAFETY: all of it is mapped; `access` outlives the call.
        let code = unsafe { (moving.api().cuMemSetAccess)(address, self.bytes, access.as_ptr(), access.len()) };
        if !code.is_success() {
            return Err(code);
        }
        for piece in &self.pieces {
            piece.granted(access);
        }
        Ok(())
    }

    /// Takes all of it away. Nothing may use it any more.
    fn give_back(self, moving: &Moving, address: DevicePtr) {
        let api = moving.api();
        let mut offset = 0;
        for piece in &self.pieces {
            // SAFETY: mapped when it was made, exactly this range.
            moves::surely(|| unsafe { (api.cuMemUnmap)(DevicePtr(address.0 + offset), piece.bytes) });
            piece.unmapped();
            offset += piece.bytes;
        }
        drop(self.pieces);
        // SAFETY: reserved when this was made, and nothing is mapped there any more.
        moves::surely(|| unsafe { (api.cuMemAddressFree)(address, self.bytes) });
    }
}
