//! Taking memory from another process of the run, in the process that opens it.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use gpuheap_cuda::raw::{Code, DeviceId, DevicePtr};
use gpuheap_ledger::control::{self, Pieces, Request};

use super::descriptors::{self, Quiet};
use super::handle::Handle;
use crate::chunks::own_access;
use crate::converted::UNIT;
use crate::moving::Moving;
use crate::{moves, real};

/// How long the other process may take to answer. It may be busy going to sleep, or with making its program rest.
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory of another process behind addresses of this one.
#[derive(Debug)]
pub(super) struct Imported {
    pub(super) address: DevicePtr,
    /// All that is reserved.
    pub(super) bytes: usize,
    /// Bytes of what is mapped, piece by piece.
    mapped: Vec<usize>,
}

/// Takes it, for a device. The error is what the driver says of a handle behind which nothing is any more, unless it is
/// the driver that refuses.
pub(super) fn import(moving: &Moving, run: &Path, handle: &Handle, device: DeviceId) -> Result<Imported, Code> {
    let (stream, pieces) = ask(run, handle).map_err(|_| Code::INVALID_VALUE)?;
    let each = usize::try_from(pieces.each).map_err(|_| Code::INVALID_VALUE)?;
    let bytes = usize::try_from(pieces.bytes).map_err(|_| Code::INVALID_VALUE)?;
    let units = bytes.is_multiple_of(UNIT) && each.is_multiple_of(UNIT) && bytes > 0;
    if pieces.bytes != handle.bytes || !units || handle.asked > bytes {
        return Err(Code::INVALID_VALUE);
    }
    let mut address = DevicePtr::NULL;
    // SAFETY: `address` outlives the call.
    let code = unsafe { (moving.api().cuMemAddressReserve)(&raw mut address, bytes, UNIT, DevicePtr::NULL, 0) };
    if !code.is_success() {
        return Err(code);
    }
    let mut imported = Imported { address, bytes, mapped: Vec::new() };
    let filled = imported.fill(moving, &stream, each).and_then(|()| imported.grant(moving, device));
    match filled {
        Ok(()) => Ok(imported),
        Err(code) => {
            imported.give_back(moving);
            Err(code)
        }
    }
}

/// Asks the process that has it.
fn ask(run: &Path, handle: &Handle) -> io::Result<(UnixStream, Pieces)> {
    let mut stream = UnixStream::connect(control::socket(run, handle.process))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = Request::Export { address: handle.address, bytes: handle.bytes, stamp: handle.stamp };
    control::send(&mut Quiet(&stream), &request)?;
    let pieces = control::receive(&mut stream)?.parse::<Pieces>();
    pieces.map(|pieces| (stream, pieces)).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl Imported {
    /// Maps all pieces as they arrive.
    fn fill(&mut self, moving: &Moving, stream: &UnixStream, each: usize) -> Result<(), Code> {
        let mut filled = 0;
        while filled < self.bytes {
            for file in descriptors::receive(stream).map_err(|_| Code::INVALID_VALUE)? {
                let piece = each.min(self.bytes - filled);
                if piece == 0 {
                    return Err(Code::INVALID_VALUE);
                }
                self.map(moving, &file, filled, piece)?;
                filled += piece;
            }
            Quiet(stream).write_all(&[0]).map_err(|_| Code::INVALID_VALUE)?;
        }
        Ok(())
    }

    fn map(&mut self, moving: &Moving, file: &OwnedFd, offset: usize, bytes: usize) -> Result<(), Code> {
        let api = moving.api();
        let handle = real::import(file.as_raw_fd())?;
        // SAFETY: the addresses are reserved, and nothing is mapped there yet.
        let code = unsafe { (api.cuMemMap)(DevicePtr(self.address.0 + offset), bytes, 0, handle, 0) };
        // SAFETY: imported above; what is mapped stays without it.
        moves::surely(|| unsafe { (api.cuMemRelease)(handle) });
        if !code.is_success() {
            return Err(code);
        }
        self.mapped.push(bytes);
        Ok(())
    }

    fn grant(&self, moving: &Moving, device: DeviceId) -> Result<(), Code> {
        let access = own_access(device);
        // SAFETY: all of it is mapped; `access` outlives the call.
        let code = unsafe { (moving.api().cuMemSetAccess)(self.address, self.bytes, &raw const access, 1) };
        if code.is_success() { Ok(()) } else { Err(code) }
    }

    /// Takes it away. Nothing may use it any more.
    pub(super) fn give_back(self, moving: &Moving) {
        let api = moving.api();
        let mut address = self.address.0;
        for bytes in &self.mapped {
            // SAFETY: mapped when it was taken, exactly this range.
            moves::surely(|| unsafe { (api.cuMemUnmap)(DevicePtr(address), *bytes) });
            address += bytes;
        }
        // SAFETY: reserved when it was taken, and nothing is mapped there any more.
        moves::surely(|| unsafe { (api.cuMemAddressFree)(self.address, self.bytes) });
    }
}
