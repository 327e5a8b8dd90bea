//! `cuMemAlloc` of large sizes, as chunks that can move. The program sees one allocation, as before.
//!
//! `cuMemFree` waits for the device, and programs rely on it: so does this. Sizes are rounded up to the granularity of
//! physical memory, which is what the driver does with large ones as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpuheap_cuda::Attribute;
use gpuheap_cuda::raw::{self, AccessDesc, AllocationProp, Code, Context, DeviceId, DevicePtr, MemLocation, location};

use crate::charge::{Charge, Kind};
use crate::chunks::{Chunk, own_access};
use crate::ledger::HOST;
use crate::moving::{self, Moving};
use crate::state::{self, lock};
use crate::{devices, moves, quiet, real};

/// The granularity of physical memory on all devices so far, and the least that is worth to be moved.
pub(crate) const UNIT: usize = 2 << 20;
/// The most that moves as one. Smaller costs more calls, larger moves more than is wanted.
pub(crate) const PIECE: usize = 32 << 20;
/// Whether physical memory of a device can be passed on as a descriptor of a file.
const DESCRIPTORS: Attribute = Attribute(103);
/// Whether network cards can reach memory that is mapped.
const RDMA: Attribute = Attribute(110);

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
    /// What tells it from all others, in all processes and at all times. 0 until somebody asks.
    stamp: u64,
}

/// What others need to know of one that is passed on.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) start: DevicePtr,
    pub(crate) asked: usize,
    pub(crate) bytes: usize,
    pub(crate) stamp: u64,
    pub(crate) pieces: Vec<Arc<Chunk>>,
}

/// All of them, and who reaches them.
#[derive(Debug, Default)]
pub(crate) struct Table {
    by_address: BTreeMap<usize, Converted>,
    /// Devices whose memory another device reaches, and that one.
    peers: BTreeSet<(DeviceId, DeviceId)>,
    /// By device, what its memory can be passed on as, as far as is known.
    handle_types: BTreeMap<DeviceId, u32>,
    /// By device, whether network cards can reach it, likewise.
    rdma: BTreeMap<DeviceId, u8>,
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
    if !has_room(moving, device, bytes) {
        // Nothing is taken for a while that would be given back again: others would find no room meanwhile.
        Charge::refuse(Kind::Linear, Some(device), bytes);
        return Some(Code::OUT_OF_MEMORY);
    }
    match Converted::new(moving, (asked, bytes), context, device) {
        Ok((address, converted)) => {
            lock(&state::get().converted).by_address.insert(address.0, converted);
            // SAFETY: the program's own place for it, which is not null.
            unsafe { place.write(address) };
            Some(Code::SUCCESS)
        }
        Err(Code::OUT_OF_MEMORY) => {
            Charge::refuse(Kind::Linear, Some(device), bytes);
            Some(Code::OUT_OF_MEMORY)
        }
        // A driver that cannot do it that way may still do it its own way.
        Err(_) => None,
    }
}

/// Whether all of an allocation can be had, as far as one can tell before: within the budget and on the device, with what
/// may be on the host.
pub(crate) fn has_room(moving: &Moving, device: DeviceId, bytes: usize) -> bool {
    if bytes <= PIECE {
        // One piece is taken or is not.
        return true;
    }
    let is_there = || has_room_now(moving, device, bytes as u64);
    is_there() || (moving.ahead.give_way(moving, device) && is_there())
}

fn has_room_now(moving: &Moving, device: DeviceId, bytes: u64) -> bool {
    let (ledger, place) = (&state::get().ledger, devices::place(Some(device)));
    let on_host = if moving.spills() { ledger.spill().saturating_sub(ledger.used(HOST)) } else { 0 };
    let within = ledger.room(place).unwrap_or(u64::MAX);
    // What the driver cannot say is no reason to refuse.
    let free = real::device_bytes().map_or(u64::MAX, |(free, _)| free as u64);
    within.min(free).saturating_add(on_host) >= bytes
}

/// Frees. Nothing if the address is not of these.
pub(crate) fn free(address: DevicePtr) -> Option<Code> {
    let moving = moving::get()?;
    // Without a context the driver frees nothing, and says so.
    real::current()?;
    let converted = lock(&state::get().converted).by_address.remove(&address.0)?;
    if state::get().captures() > 0 {
        lock(&state::get().converted).late.push((address.0, converted));
        return Some(Code::SUCCESS);
    }
    free_late(moving);
    // As `cuMemFree` does, for the device that the memory is of. What that reports is of the program's work, and is the
    // program's to hear; nothing is freed then.
    let code = quiet::finish(moving, Context(converted.context));
    if code.is_success() {
        converted.give_back(moving, address);
    } else {
        lock(&state::get().converted).by_address.insert(address.0, converted);
    }
    Some(code)
}

/// Frees what was freed while a graph was being recorded, once none is.
pub(crate) fn free_late(moving: &Moving) {
    if state::get().captures() > 0 {
        return;
    }
    let late = std::mem::take(&mut lock(&state::get().converted).late);
    for (address, converted) in late {
        quiet::finish(moving, Context(converted.context));
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

/// The one at an address, to be passed on. Nothing if it cannot be.
pub(crate) fn share(address: DevicePtr) -> Option<Shared> {
    let mut table = lock(&state::get().converted);
    let (start, converted) = table.by_address.range_mut(..=address.0).next_back()?;
    if address.0 - start >= converted.bytes {
        return None;
    }
    if converted.stamp == 0 {
        converted.stamp = random()?;
    }
    converted.shared(*start)
}

/// The one that begins at an address, has so many bytes and that stamp.
pub(crate) fn shared(address: u64, bytes: u64, stamp: u64) -> Option<Shared> {
    let address = usize::try_from(address).ok()?;
    let table = lock(&state::get().converted);
    let converted = table.by_address.get(&address)?;
    (converted.bytes as u64 == bytes && converted.stamp == stamp && stamp != 0).then(|| converted.shared(address))?
}

/// A number that nobody guesses, and never 0.
fn random() -> Option<u64> {
    let mut number = 0_u64;
    // SAFETY: eight bytes, to a number that outlives the call.
    let read = unsafe { libc::getrandom((&raw mut number).cast(), size_of::<u64>(), 0) };
    (read == 8).then_some(number.max(1))
}

/// What memory of a device is to be passed on as.
fn handle_types(moving: &Moving, device: DeviceId) -> u32 {
    let known = lock(&state::get().converted).handle_types.get(&device).copied();
    known.unwrap_or_else(|| {
        let can = moving.device(device).and_then(|device| device.attribute(DESCRIPTORS)).is_ok_and(|can| can != 0);
        let types = if can { raw::HANDLE_FILE_DESCRIPTOR } else { 0 };
        lock(&state::get().converted).handle_types.insert(device, types);
        types
    })
}

/// Whether memory of a device is to be such that other devices of the machine may read it.
fn rdma(moving: &Moving, device: DeviceId) -> u8 {
    let known = lock(&state::get().converted).rdma.get(&device).copied();
    known.unwrap_or_else(|| {
        let can = moving.device(device).and_then(|device| device.attribute(RDMA)).is_ok_and(|can| can != 0);
        lock(&state::get().converted).rdma.insert(device, u8::from(can));
        u8::from(can)
    })
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
        let mut converted = Self { asked, bytes, context, device, pieces: Vec::new(), stamp: 0 };
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
        let mut prop = AllocationProp::at(MemLocation { kind: location::DEVICE, id: self.device });
        // So that other processes can have it: `cuIpcGetMemHandle` is for memory of `cuMemAlloc`, and this is to be such.
        prop.handle_types = handle_types(moving, self.device);
        // And so that network cards can reach it, as they reach memory of `cuMemAlloc`.
        prop.rdma = rdma(moving, self.device);
        let mut filled = 0;
        while filled < self.bytes {
            let bytes = PIECE.min(self.bytes - filled);
            let piece = match Chunk::new(moving, bytes, prop, Kind::Linear) {
                Err(Code::NOT_SUPPORTED | Code::NOT_PERMITTED | Code::INVALID_VALUE) if prop.rdma != 0 => {
                    lock(&state::get().converted).rdma.insert(self.device, 0);
                    prop.rdma = 0;
                    continue;
                }
                // Some sandboxes have the devices and not the descriptors.
                Err(Code::NOT_SUPPORTED | Code::NOT_PERMITTED) if prop.handle_types != 0 => {
                    lock(&state::get().converted).handle_types.insert(self.device, 0);
                    prop.handle_types = 0;
                    continue;
                }
                made => made?,
            };
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

    /// What others need to know of it, if all of it can be passed on.
    fn shared(&self, start: usize) -> Option<Shared> {
        let can = |piece: &Arc<Chunk>| piece.prop.handle_types & raw::HANDLE_FILE_DESCRIPTOR != 0;
        self.pieces.iter().all(can).then(|| Shared {
            start: DevicePtr(start),
            asked: self.asked,
            bytes: self.bytes,
            stamp: self.stamp,
            pieces: self.pieces.clone(),
        })
    }

    /// Takes all of it away. Nothing may use it any more.
    fn give_back(self, moving: &Moving, address: DevicePtr) {
        let api = moving.api();
        let mut offset = 0;
        for piece in &self.pieces {
            piece.hold_off(moving);
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
