//! What is behind the addresses of a chunk: the device's memory, the host's, or for a moment nothing. Each step is
//! undone if it fails, so that nothing is left half moved.

use std::sync::Arc;

use gpuheap_cuda::raw::{AccessDesc, AllocationHandle, AllocationProp, Code, DevicePtr};
use gpuheap_cuda::{Error, check};
use gpuheap_ledger::events::What;

use super::{Mover, Store};
use crate::charge::{Charge, Kind};
use crate::chunks::{Backing, Chunk, on_device};
use crate::events;
use crate::temperature::TEMPERATURE;

/// Memory of the device that is behind no addresses, and charged.
pub(super) struct Memory {
    handle: AllocationHandle,
    charge: Charge,
    bytes: usize,
    prop: AllocationProp,
}

/// A chunk that is about to come: nothing is behind its addresses any more.
pub(super) struct Lifted {
    chunk: Arc<Chunk>,
    store: Store,
    address: DevicePtr,
    access: Vec<AccessDesc>,
}

impl Mover<'_> {
    /// Memory for a chunk, within the budget. Nothing if there is no room.
    pub(super) fn make_memory(&self, chunk: &Chunk) -> Option<Memory> {
        let origin = chunk.inner().charge.origin();
        let (charge, backing) = on_device(self.moving, chunk.bytes, &chunk.prop, (chunk.kind, origin)).ok()?;
        let Backing::Device(handle) = backing else { return None };
        Some(Memory { handle, charge, bytes: chunk.bytes, prop: chunk.prop })
    }

    /// The same out of what another chunk left behind, which goes back to the device if it is of another size or sort.
    pub(super) fn pass_on(&self, memory: Memory, chunk: &Chunk) -> Option<Memory> {
        let (is_as_large, is_charged_alike) = (memory.bytes == chunk.bytes, memory.charge.kind == chunk.kind);
        if !is_as_large || !is_charged_alike || !are_alike(&memory.prop, &chunk.prop) {
            self.release(memory);
            return self.make_memory(chunk);
        }
        let origin = chunk.inner().charge.origin();
        Some(Memory { charge: memory.charge.pass_on(origin), ..memory })
    }

    /// Gives memory back to the device.
    pub(super) fn release(&self, memory: Memory) {
        // SAFETY: made by this library, mapped nowhere, and known to nobody else.
        surely(|| unsafe { (self.moving.api().cuMemRelease)(memory.handle) });
        // The charge is dropped after it.
        drop(memory.charge);
    }

    /// The content is on the host: what is there takes the place of the device's memory, which is given to the caller.
    /// Nothing if the chunk is not on the device.
    pub(super) fn leave(&self, chunk: &Chunk, store: Store, charge: Charge) -> Result<Option<Memory>, Error> {
        let (former, address, access) = {
            let mut inner = chunk.inner();
            match (inner.backing.take(), inner.address) {
                (Some(Backing::Device(former)), Some(address)) => (former, address, inner.access.clone()),
                (other, _) => {
                    inner.backing = other;
                    drop(inner);
                    store.keep(self.moving);
                    return Ok(None);
                }
            }
        };
        let exchanged = self.unmap(address, chunk.bytes).and_then(|()| match store.handle() {
            None => Ok(()),
            Some(handle) => self.map(address, chunk.bytes, handle, &access).inspect_err(|_| {
                // As it was; if that fails as well, the program's next access will tell.
                let _ = self.map(address, chunk.bytes, former, &access);
            }),
        });
        let mut inner = chunk.inner();
        if let Err(error) = exchanged {
            inner.backing = Some(Backing::Device(former));
            drop(inner);
            store.keep(self.moving);
            return Err(error);
        }
        let is_behind = store.handle().is_some();
        inner.backing = Some(store.into_backing());
        let left = std::mem::replace(&mut inner.charge, charge);
        drop(inner);
        TEMPERATURE.on_host(chunk.number, is_behind);
        events::note(What::MovedOut, left.memory(), address.0);
        Ok(Some(Memory { handle: former, charge: left, bytes: chunk.bytes, prop: chunk.prop }))
    }

    /// Takes the host's memory from behind a chunk's addresses. Nothing if the chunk is not on the host.
    pub(super) fn lift(&self, chunk: &Arc<Chunk>) -> Result<Option<Lifted>, Error> {
        let mut inner = chunk.inner();
        let (store, address) = match (inner.backing.take(), inner.address) {
            (Some(Backing::Host(piece)), Some(address)) => (Store::Mapped(piece), address),
            (Some(Backing::Away(piece)), Some(address)) => (Store::Locked(piece), address),
            (other, _) => {
                inner.backing = other;
                return Ok(None);
            }
        };
        let access = inner.access.clone();
        drop(inner);
        let unmapped = if store.handle().is_some() { self.unmap(address, chunk.bytes) } else { Ok(()) };
        if let Err(error) = unmapped {
            chunk.inner().backing = Some(store.into_backing());
            return Err(error);
        }
        Ok(Some(Lifted { chunk: Arc::clone(chunk), store, address, access }))
    }

    /// Puts the device's memory behind the chunk's addresses. What was there is given to whoever copies it.
    pub(super) fn land(&self, lifted: Lifted, memory: Memory) -> Result<(Arc<Chunk>, Store, DevicePtr), Error> {
        if let Err(error) = self.map(lifted.address, memory.bytes, memory.handle, &lifted.access) {
            self.release(memory);
            self.put_back(lifted);
            return Err(error);
        }
        let Lifted { chunk, store, address, .. } = lifted;
        let mut inner = chunk.inner();
        inner.backing = Some(Backing::Device(memory.handle));
        let moved_in = memory.charge.memory();
        let given_back = std::mem::replace(&mut inner.charge, memory.charge);
        drop(inner);
        TEMPERATURE.on_host(chunk.number, false);
        events::note(What::MovedIn, moved_in, address.0);
        drop(given_back);
        Ok((chunk, store, address))
    }

    /// It does not come after all: it is as it was.
    pub(super) fn put_back(&self, lifted: Lifted) {
        let Lifted { chunk, store, address, access } = lifted;
        if let Some(handle) = store.handle() {
            // If that fails, the program's next access will tell.
            let _ = self.map(address, chunk.bytes, handle, &access);
        }
        chunk.inner().backing = Some(store.into_backing());
    }

    /// The device's memory is behind the addresses already, and the content did not come: it is where it was, and so is
    /// the chunk.
    pub(super) fn go_back(&self, chunk: &Chunk, store: Store, error: Error) -> Error {
        let origin = chunk.inner().charge.origin();
        let charge = Charge::hold(origin, Kind::Spilled, Some(chunk.device), chunk.bytes);
        match self.leave(chunk, store, charge) {
            Ok(memory) => {
                if let Some(memory) = memory {
                    self.release(memory);
                }
                error
            }
            Err(other) => other,
        }
    }

    fn unmap(&self, address: DevicePtr, bytes: usize) -> Result<(), Error> {
        // SAFETY: mapped, all of it and nothing else, and nothing uses it: the gate is closed and the device is idle.
        check("cuMemUnmap", surely(|| unsafe { (self.moving.api().cuMemUnmap)(address, bytes) }))
    }

    pub(super) fn map(
        &self,
        address: DevicePtr,
        bytes: usize,
        handle: AllocationHandle,
        access: &[AccessDesc],
    ) -> Result<(), Error> {
        // SAFETY: the addresses are reserved, by the program or by this library, and nothing is mapped there.
        check("cuMemMap", surely(|| unsafe { (self.moving.api().cuMemMap)(address, bytes, 0, handle, 0) }))?;
        if access.is_empty() {
            return Ok(());
        }
        // SAFETY: mapped a moment ago; `access` outlives the call.
        let granted =
            surely(|| unsafe { (self.moving.api().cuMemSetAccess)(address, bytes, access.as_ptr(), access.len()) });
        check("cuMemSetAccess", granted).inspect_err(|_| {
            let _ = self.unmap(address, bytes);
        })
    }
}

impl Lifted {
    pub(super) fn chunk(&self) -> &Chunk {
        &self.chunk
    }
}

/// Whether memory that was made for the one can stand behind the other.
fn are_alike(one: &AllocationProp, other: &AllocationProp) -> bool {
    let what = |prop: &AllocationProp| {
        (prop.kind, prop.handle_types, prop.location.kind, prop.location.id, prop.compression, prop.rdma, prop.usage)
    };
    what(one) == what(other)
}

/// Makes a call without which memory would be lost or half moved: tries again a few times.
pub(crate) fn surely(call: impl Fn() -> Code) -> Code {
    let mut code = call();
    for _ in 0..3 {
        if code.is_success() {
            break;
        }
        code = call();
    }
    code
}
