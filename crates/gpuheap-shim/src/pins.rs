//! Memory that has to stay on its device, since somebody else knows where it is: another process, a network card, a disk.
//!
//! Who registers memory of a device with such a thing (NCCL and UCX for `InfiniBand`, cuFile for disks) asks the driver for
//! a descriptor of the range (`cuMemGetHandleForAddressRange`), or for tokens of it, or wants operations on it to be
//! synchronous (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`), before it goes to the kernel itself, which is not seen here. From then
//! on that memory stays. What is on the host comes back to its device for that; what has no room there stays where it is.

use std::collections::BTreeSet;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gpuheap_cuda::raw::{AllocationHandle, Code, DeviceId, DevicePtr, pointer_attribute};
use gpuheap_ledger::State as Phase;

use crate::around::Call;
use crate::chunks::{Backing, Chunk};
use crate::moves::{Moved, Mover, Rest};
use crate::moving::{self, Moving};
use crate::quiet::{self, Busy};
use crate::sleep::{by_device, each_device, phase};
use crate::state::{self, State};
use crate::{converted, devices, paging};

/// How long the program may take to come to rest.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one attempt may hold it back.
const ATTEMPT: Duration = Duration::from_millis(500);

/// A range is to be known to others by a descriptor.
pub(crate) fn handle_of_range(
    call: Call<'_>,
    _handle: *mut c_void,
    address: DevicePtr,
    bytes: usize,
    _kind: c_uint,
    _flags: u64,
) -> Code {
    for_others(call, address, bytes)
}

/// Something about memory is to be otherwise from now on.
pub(crate) fn set_attribute(call: Call<'_>, _value: *const c_void, attribute: c_uint, address: DevicePtr) -> Code {
    if attribute != pointer_attribute::SYNC_MEMOPS {
        return call();
    }
    // The attribute is one of the whole allocation.
    let (start, bytes) = converted::range(address).unwrap_or((address, 1));
    for_others(call, start, bytes)
}

/// Pins first: once the driver has answered, somebody may use what it said. What it refuses may move again.
pub(crate) fn for_others(call: Call<'_>, address: DevicePtr, bytes: usize) -> Code {
    let Some(moving) = moving::get() else { return call() };
    let pieces: Vec<Arc<Chunk>> = within(address, bytes).into_iter().filter(|chunk| !chunk.inner().is_pinned).collect();
    if pieces.is_empty() {
        return call();
    }
    let state = state::get();
    // What does not come to its device stays where it is: the driver says whether that is of any use. While a graph is
    // recorded, nobody can wait for the device.
    if state.captures() == 0 {
        let _ = state.gate.outside(|| on_device(moving, state, &pieces));
    }
    for piece in &pieces {
        piece.pin();
    }
    let code = call();
    if !code.is_success() {
        for piece in &pieces {
            piece.unpin();
        }
    }
    code
}

/// The chunks of a range of addresses.
fn within(address: DevicePtr, bytes: usize) -> Vec<Arc<Chunk>> {
    let end = address.0.saturating_add(bytes);
    let mut found: Vec<Arc<Chunk>> = converted::chunks().into_iter().chain(paging::mapped_chunks()).collect();
    found.retain(|chunk| {
        chunk.inner().address.is_some_and(|start| start.0 < end && address.0 < start.0.saturating_add(chunk.bytes))
    });
    found
}

/// The driver's handles of all pieces, which are on the device from now on.
pub(crate) fn on_device(
    moving: &'static Moving,
    state: &'static State,
    pieces: &[Arc<Chunk>],
) -> Result<Vec<AllocationHandle>, String> {
    // Whoever moves memory has the turn.
    let mut turn = quiet::turn(state);
    let elsewhere = |piece: &&Arc<Chunk>| piece.pin_on_device().is_none();
    let wanted: Vec<Arc<Chunk>> = pieces.iter().filter(elsewhere).cloned().collect();
    if !wanted.is_empty() {
        // Of a process that sleeps the gate is closed, and nothing of it runs.
        let closed = match phase(state) {
            Phase::Running => Some(rest(moving, state, &mut turn)?),
            _ => None,
        };
        for device in wanted.iter().map(|piece| piece.device).collect::<BTreeSet<_>>() {
            let of_device = wanted.iter().filter(|piece| piece.device == device).cloned().collect();
            bring_back(moving, state, pieces, of_device);
        }
        drop(closed);
    }
    let pinned: Option<Vec<AllocationHandle>> = pieces.iter().map(|piece| piece.pin_on_device()).collect();
    pinned.ok_or_else(|| "some of it is on the host and has no room on the device or within the budget".to_owned())
}

fn rest<'a>(
    moving: &'static Moving,
    state: &'static State,
    turn: &mut quiet::Turn<'_>,
) -> Result<crate::gate::Closed<'a>, String> {
    let start = Instant::now();
    loop {
        match quiet::settle(moving, state, turn, ATTEMPT) {
            Ok(closed) => return Ok(closed),
            Err(busy) if busy == Busy::Failed || start.elapsed() > PATIENCE => {
                return Err(format!("some of it is on the host, and the process does not come to rest: {busy}"));
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Moves pieces to their device, which is one, and others out where they need the room.
fn bring_back(moving: &'static Moving, state: &State, pieces: &[Arc<Chunk>], mut wanted: Vec<Arc<Chunk>>) {
    // What the program unmapped meanwhile nobody needs to bring back.
    wanted.retain(|piece| piece.inner().address.is_some());
    let Some(device) = wanted.first().map(|piece| piece.device) else { return };
    while let Some(next) = wanted.first() {
        // One for one, so that the host needs no more room than for the largest of them.
        let left = make_room(moving, state, pieces, device, next.bytes);
        let came = each_device(moving, &[(device, wanted.clone())], Mover::back);
        state.ledger.moved(left.bytes, came.bytes);
        wanted.retain(|piece| piece.pin_on_device().is_none());
        if came.chunks == 0 {
            break;
        }
    }
}

/// Makes room for so many bytes on a device within the budget: moves others to the host, as far as they can move and are
/// not to stay themselves.
fn make_room(moving: &Moving, state: &State, pieces: &[Arc<Chunk>], device: DeviceId, bytes: usize) -> Moved {
    let place = devices::place(Some(device));
    let budget = state.ledger.budget(place);
    let room = usize::try_from(budget.saturating_sub(state.ledger.used_by_the_living(place))).unwrap_or(usize::MAX);
    if !moving.spills() || budget == 0 || room >= bytes {
        return Moved::default();
    }
    let mut movable = by_device(|backing| matches!(backing, Backing::Device(_)));
    let mut goes = movable.remove(&device).unwrap_or_default();
    goes.retain(|chunk| pieces.iter().all(|piece| !Arc::ptr_eq(piece, chunk)));
    let mut found = room;
    // Which are used least is not known here; what should not have gone comes back as everywhere else.
    goes.retain(|chunk| {
        let wanted = found < bytes;
        found += if wanted { chunk.bytes } else { 0 };
        wanted
    });
    each_device(moving, &[(device, goes)], |mover, chunks| mover.out(chunks, Rest::Behind))
}
