//! Passing memory on: on the thread that listens to requests, in the process that has it.

use std::ffi::c_int;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gpuheap_cuda::raw::{self, AllocationHandle, DeviceId};
use gpuheap_ledger::State as Phase;
use gpuheap_ledger::control::{self, Pieces};

use super::descriptors::{self, Quiet};
use crate::chunks::{Backing, Chunk};
use crate::converted::{self, Shared};
use crate::moves::{Moved, Mover, Rest};
use crate::moving::Moving;
use crate::quiet::{self, Busy};
use crate::sleep::{by_device, each_device, phase};
use crate::state::State;
use crate::{devices, real};

/// How long the program may take to come to rest.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one attempt may hold it back.
const ATTEMPT: Duration = Duration::from_millis(500);

/// Sends descriptors of an allocation, or says why not.
pub(crate) fn pass_on(
    moving: &'static Moving,
    state: &'static State,
    stream: &UnixStream,
    (address, bytes, stamp): (u64, u64, u64),
) -> Result<(), String> {
    let shared = converted::shared(address, bytes, stamp).ok_or("there is no such allocation any more")?;
    let handles = pinned(moving, state, &shared)?;
    let gone = |error| format!("the other side does not take it: {error}");
    let pieces = Pieces { bytes: shared.bytes as u64, each: converted::PIECE as u64 };
    control::send(&mut Quiet(stream), &pieces).map_err(gone)?;
    for some in handles.chunks(descriptors::MOST) {
        let files = some.iter().map(|handle| file(*handle)).collect::<Result<Vec<_>, _>>()?;
        descriptors::send(stream, &files).map_err(gone)?;
        // Those under way count as open files: no more are sent before these have arrived.
        let mut stream = stream;
        stream.read_exact(&mut [0]).map_err(gone)?;
    }
    Ok(())
}

/// The driver's handles of all pieces, which are on the device from now on.
fn pinned(moving: &'static Moving, state: &'static State, shared: &Shared) -> Result<Vec<AllocationHandle>, String> {
    // Whoever moves memory has the turn.
    let mut turn = quiet::turn(state);
    let elsewhere = |piece: &&Arc<Chunk>| piece.pin_on_device().is_none();
    let wanted: Vec<Arc<Chunk>> = shared.pieces.iter().filter(elsewhere).cloned().collect();
    if !wanted.is_empty() {
        // Of a process that sleeps the gate is closed, and nothing of it runs.
        let closed = match phase(state) {
            Phase::Running => Some(rest(moving, state, &mut turn)?),
            _ => None,
        };
        bring_back(moving, state, shared, wanted);
        drop(closed);
    }
    let pinned: Option<Vec<AllocationHandle>> = shared.pieces.iter().map(|piece| piece.pin_on_device()).collect();
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

/// Moves pieces of an allocation to their device, and others out where they need the room.
fn bring_back(moving: &'static Moving, state: &State, shared: &Shared, mut wanted: Vec<Arc<Chunk>>) {
    // What the program unmapped meanwhile nobody needs to bring back.
    wanted.retain(|piece| piece.inner().address.is_some());
    // All are of one device.
    let Some(device) = wanted.first().map(|piece| piece.device) else { return };
    while let Some(next) = wanted.first() {
        // One for one, so that the host needs no more room than for the largest of them.
        let left = make_room(moving, state, shared, device, next.bytes);
        let came = each_device(moving, &[(device, wanted.clone())], Mover::back);
        state.ledger.moved(left.bytes, came.bytes);
        wanted.retain(|piece| piece.pin_on_device().is_none());
        if came.chunks == 0 {
            break;
        }
    }
}

/// Makes room for so many bytes on a device within the budget: moves others to the host, as far as they can move and are
/// not of the allocation itself.
fn make_room(moving: &Moving, state: &State, shared: &Shared, device: DeviceId, bytes: usize) -> Moved {
    let place = devices::place(Some(device));
    let budget = state.ledger.budget(place);
    let room = usize::try_from(budget.saturating_sub(state.ledger.used_by_the_living(place))).unwrap_or(usize::MAX);
    if !moving.spills() || budget == 0 || room >= bytes {
        return Moved::default();
    }
    let mut movable = by_device(|backing| matches!(backing, Backing::Device(_)));
    let mut goes = movable.remove(&device).unwrap_or_default();
    goes.retain(|chunk| shared.pieces.iter().all(|piece| !Arc::ptr_eq(piece, chunk)));
    let mut found = room;
    // Which are used least is not known here; what should not have gone comes back as everywhere else.
    goes.retain(|chunk| {
        let wanted = found < bytes;
        found += if wanted { chunk.bytes } else { 0 };
        wanted
    });
    each_device(moving, &[(device, goes)], |mover, chunks| mover.out(chunks, Rest::Behind))
}

/// A descriptor of physical memory.
fn file(handle: AllocationHandle) -> Result<OwnedFd, String> {
    let mut number: c_int = -1;
    let code = real::export((&raw mut number).cast(), handle, raw::HANDLE_FILE_DESCRIPTOR, 0);
    if !code.is_success() || number < 0 {
        return Err(format!("the driver does not pass it on: {code}"));
    }
    // SAFETY: the driver made it for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
