//! Passing memory on: on the thread that listens to requests, in the process that has it.

use std::ffi::c_int;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use gpuheap_cuda::raw::{self, AllocationHandle};
use gpuheap_ledger::control::{self, Pieces};

use super::descriptors::{self, Quiet};
use crate::converted;
use crate::moving::Moving;
use crate::state::State;
use crate::{pins, real};

/// Sends descriptors of an allocation, or says why not.
pub(crate) fn pass_on(
    moving: &'static Moving,
    state: &'static State,
    stream: &UnixStream,
    (address, bytes, stamp): (u64, u64, u64),
) -> Result<(), String> {
    let shared = converted::shared(address, bytes, stamp).ok_or("there is no such allocation any more")?;
    let handles = pins::on_device(moving, state, &shared.pieces)?;
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
