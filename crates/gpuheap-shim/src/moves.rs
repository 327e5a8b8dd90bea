//! Moving chunks between a device and the host, their addresses unchanged. Only while the gate is closed and nothing that
//! could touch them runs ([`crate::quiet`]).
//!
//! Copies run ahead on a stream of their own; what is behind a chunk's addresses is exchanged as soon as its copy is
//! done, while the next are under way. So the whole takes hardly longer than the copies.

mod exchange;

use std::collections::VecDeque;
use std::sync::Arc;

use gpuheap_cuda::raw::{AccessDesc, AllocationHandle, Code, DevicePtr};
use gpuheap_cuda::{Context, Error, Event, Stream, check};
use gpuheap_ledger::events::What;

use crate::charge::{Charge, Kind};
use crate::chunks::{Backing, Chunk, on_device};
use crate::events;
use crate::host::Mapped;
use crate::locked::Locked;
use crate::moving::Moving;
use crate::temperature::TEMPERATURE;

/// How many copies are under way at once.
const AHEAD: usize = 8;

/// Where the content of a chunk goes that leaves its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// Behind the chunk's addresses, for a program that goes on.
    Behind,
    /// Nowhere that the program reaches, as it sleeps.
    Away,
}

/// Memory of the host that content is in, or is being copied to or from.
enum Store {
    Mapped(Mapped),
    Locked(Locked),
}

impl Store {
    fn into_backing(self) -> Backing {
        match self {
            Self::Mapped(piece) => Backing::Host(piece),
            Self::Locked(piece) => Backing::Away(piece),
        }
    }

    /// What to map where content is behind a chunk's addresses.
    fn handle(&self) -> Option<AllocationHandle> {
        match self {
            Self::Mapped(piece) => Some(piece.handle()),
            Self::Locked(_) => None,
        }
    }

    fn keep(self, moving: &Moving) {
        match self {
            Self::Mapped(piece) => moving.mapped.give(piece),
            Self::Locked(piece) => moving.locked.give(piece),
        }
    }
}

/// What was moved, and why no more.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    pub(crate) chunks: usize,
    pub(crate) bytes: u64,
    /// The first error. What was moved before stays moved; nothing is half moved.
    pub(crate) error: Option<Error>,
}

impl Moved {
    /// Adds what was moved on another device.
    pub(crate) fn add(&mut self, other: Self) {
        self.chunks += other.chunks;
        self.bytes += other.bytes;
        self.error = self.error.take().or(other.error);
    }
}

impl From<Error> for Moved {
    fn from(error: Error) -> Self {
        Self { error: Some(error), ..Self::default() }
    }
}

/// The way to move chunks of one device.
pub(crate) struct Mover<'a> {
    moving: &'a Moving,
    context: Context,
    stream: Stream,
    events: Vec<Event>,
}

impl<'a> Mover<'a> {
    /// Uses the device's primary context, which has to be there.
    pub(crate) fn new(moving: &'a Moving, device: i32) -> Result<Self, Error> {
        let context = moving.device(device)?.context()?;
        let stream = Stream::new(&context)?;
        let events = (0..AHEAD).map(|_| Event::new(&context, false)).collect::<Result<_, _>>()?;
        Ok(Self { moving, context, stream, events })
    }

    /// Moves chunks to the host, in that order, until there is no more room there.
    pub(crate) fn out(&self, chunks: &[Arc<Chunk>], rest: Rest) -> Moved {
        let device = self.context.device();
        let sizes: Vec<usize> = chunks.iter().map(|chunk| chunk.bytes).collect();
        let stores: Vec<Store> = match rest {
            Rest::Behind => self.moving.mapped.take_all(device, &sizes).into_iter().map(Store::Mapped).collect(),
            Rest::Away => self.moving.locked.take_all(device, &sizes).into_iter().map(Store::Locked).collect(),
        };
        let mut stores = stores.into_iter();
        let start = |chunk: &Arc<Chunk>| {
            let (Some(store), Some(address)) = (stores.next(), chunk.inner().address) else { return Ok(None) };
            let origin = chunk.inner().charge.origin();
            let charge = match rest {
                Rest::Behind => Charge::try_take_for(origin, Kind::Spilled, Some(chunk.device), chunk.bytes),
                // A process that sleeps may have what it needs of the host.
                Rest::Away => Some(Charge::hold(origin, Kind::Spilled, Some(chunk.device), chunk.bytes)),
            };
            let Some(charge) = charge else { return Ok(None) };
            self.save(&store, address, chunk.bytes)?;
            Ok(Some((store, charge)))
        };
        let finish = |chunk: &Arc<Chunk>, (store, charge)| self.leave(chunk, store, charge);
        let moved = self.pipeline(chunks, start, finish);
        // Of what there was no use for.
        stores.for_each(|store| store.keep(self.moving));
        moved
    }

    /// Moves chunks back to the device, in that order, until there is no more room there.
    pub(crate) fn back(&self, chunks: &[Arc<Chunk>]) -> Moved {
        let start = |chunk: &Arc<Chunk>| {
            let origin = chunk.inner().charge.origin();
            let Ok((charge, backing)) = on_device(self.moving, chunk.bytes, &chunk.prop, (chunk.kind, origin)) else {
                return Ok(None);
            };
            let Backing::Device(handle) = backing else { return Ok(None) };
            let Some((store, address)) = self.come(chunk, charge, handle)? else { return Ok(None) };
            match self.load(&self.stream, address, &store, chunk.bytes) {
                Ok(()) => Ok(Some(store)),
                Err(error) => Err(self.go_back(chunk, store, error)),
            }
        };
        let finish = |_: &Arc<Chunk>, store: Store| {
            store.keep(self.moving);
            Ok(())
        };
        self.pipeline(chunks, start, finish)
    }

    /// Puts memory of the host behind the addresses of chunks that are away, and their content into it.
    pub(crate) fn behind(&self, chunks: &[Arc<Chunk>]) -> Moved {
        let start = |chunk: &Arc<Chunk>| {
            let Ok(piece) = self.moving.mapped.take(self.context.device(), chunk.bytes) else { return Ok(None) };
            let former = chunk.inner().backing.take();
            let Some(Backing::Away(locked)) = former else {
                chunk.inner().backing = former;
                self.moving.mapped.give(piece);
                return Ok(None);
            };
            let store = Store::Locked(locked);
            if let Err(error) = self.load(&self.stream, piece.window(), &store, chunk.bytes) {
                chunk.inner().backing = Some(store.into_backing());
                self.moving.mapped.give(piece);
                return Err(error);
            }
            Ok(Some((piece, store)))
        };
        let finish = |chunk: &Arc<Chunk>, (piece, store): (Mapped, Store)| {
            let (address, access) = {
                let inner = chunk.inner();
                (inner.address.unwrap_or(DevicePtr::NULL), inner.access.clone())
            };
            match self.map(address, chunk.bytes, piece.handle(), &access) {
                Ok(()) => {
                    chunk.inner().backing = Some(Backing::Host(piece));
                    TEMPERATURE.on_host(chunk.number, true);
                    store.keep(self.moving);
                    Ok(())
                }
                Err(error) => {
                    chunk.inner().backing = Some(store.into_backing());
                    self.moving.mapped.give(piece);
                    Err(error)
                }
            }
        };
        self.pipeline(chunks, start, finish)
    }

    /// Starts each and finishes it when its copy is done, some ahead of others. The first that cannot be started is the
    /// end.
    fn pipeline<T>(
        &self,
        chunks: &[Arc<Chunk>],
        mut start: impl FnMut(&Arc<Chunk>) -> Result<Option<T>, Error>,
        finish: impl Fn(&Arc<Chunk>, T) -> Result<(), Error>,
    ) -> Moved {
        let mut under_way = VecDeque::with_capacity(AHEAD);
        let mut moved = Moved::default();
        let settle = |under_way: &mut VecDeque<(&Arc<Chunk>, T, &Event)>, moved: &mut Moved| {
            let Some((chunk, what, event)) = under_way.pop_front() else { return };
            // What was begun is finished in any case. A copy that failed has broken the context, and the program with it.
            let finished = event.synchronize().and(finish(chunk, what));
            match finished {
                Ok(()) => moved.add(Moved { chunks: 1, bytes: chunk.bytes as u64, error: None }),
                Err(error) => moved.add(error.into()),
            }
        };
        for (chunk, event) in chunks.iter().zip(self.events.iter().cycle()) {
            if under_way.len() == AHEAD {
                settle(&mut under_way, &mut moved);
            }
            if moved.error.is_some() {
                break;
            }
            match start(chunk) {
                Ok(Some(what)) => {
                    if event.record(&self.stream).is_err() {
                        // Then all that the stream has is waited for.
                        let _ = self.stream.synchronize();
                    }
                    under_way.push_back((chunk, what, event));
                }
                Ok(None) => break,
                Err(error) => moved.add(error.into()),
            }
        }
        while !under_way.is_empty() {
            settle(&mut under_way, &mut moved);
        }
        moved
    }

    /// Begins to copy content to the host.
    fn save(&self, store: &Store, from: DevicePtr, bytes: usize) -> Result<(), Error> {
        let (_current, api) = (self.context.enter()?, self.moving.api());
        match store {
            Store::Mapped(piece) => {
                // SAFETY: both are mapped for that many bytes, for this device, and stay so until the event behind the
                // copy is waited for.
                let code =
                    surely(|| unsafe { (api.cuMemcpyDtoDAsync_v2)(piece.window(), from, bytes, self.stream.handle()) });
                check("cuMemcpyDtoDAsync_v2", code)
            }
            Store::Locked(piece) => {
                // SAFETY: as above; the host's memory is locked.
                let code =
                    surely(|| unsafe { (api.cuMemcpyDtoHAsync_v2)(piece.start(), from, bytes, self.stream.handle()) });
                check("cuMemcpyDtoHAsync_v2", code)
            }
        }
    }

    /// Begins to copy content from the host.
    fn load(&self, stream: &Stream, to: DevicePtr, store: &Store, bytes: usize) -> Result<(), Error> {
        let (_current, api) = (self.context.enter()?, self.moving.api());
        match store {
            Store::Mapped(piece) => {
                // SAFETY: as for `save`.
                let code = surely(|| unsafe { (api.cuMemcpyDtoDAsync_v2)(to, piece.window(), bytes, stream.handle()) });
                check("cuMemcpyDtoDAsync_v2", code)
            }
            Store::Locked(piece) => {
                // SAFETY: as for `save`.
                let code = surely(|| unsafe { (api.cuMemcpyHtoDAsync_v2)(to, piece.start(), bytes, stream.handle()) });
                check("cuMemcpyHtoDAsync_v2", code)
            }
        }
    }

    /// The content is on the host: what is there takes the place of the device's memory.
    fn leave(&self, chunk: &Chunk, store: Store, charge: Charge) -> Result<(), Error> {
        let (former, address, access) = {
            let mut inner = chunk.inner();
            let (Some(Backing::Device(former)), Some(address)) = (inner.backing.take(), inner.address) else {
                return Ok(());
            };
            (former, address, inner.access.clone())
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
        let given_back = std::mem::replace(&mut inner.charge, charge);
        drop(inner);
        TEMPERATURE.on_host(chunk.number, is_behind);
        events::note(What::MovedOut, given_back.memory(), address.0);
        // SAFETY: made for this chunk, mapped nowhere any more, and known to nobody else.
        surely(|| unsafe { (self.moving.api().cuMemRelease)(former) });
        drop(given_back);
        Ok(())
    }

    /// Puts the device's memory behind the chunk's addresses. What was there is given to whoever copies it.
    fn come(
        &self,
        chunk: &Chunk,
        charge: Charge,
        handle: AllocationHandle,
    ) -> Result<Option<(Store, DevicePtr)>, Error> {
        let (former, address, access) = {
            let mut inner = chunk.inner();
            let (Some(former), Some(address)) = (inner.backing.take(), inner.address) else { return Ok(None) };
            (former, address, inner.access.clone())
        };
        let store = match former {
            Backing::Host(piece) => Store::Mapped(piece),
            Backing::Away(piece) => Store::Locked(piece),
            Backing::Device(_) => {
                chunk.inner().backing = Some(former);
                // SAFETY: made a moment ago, for nothing.
                surely(|| unsafe { (self.moving.api().cuMemRelease)(handle) });
                return Ok(None);
            }
        };
        let behind = store.handle();
        let exchanged = if behind.is_some() { self.unmap(address, chunk.bytes) } else { Ok(()) };
        let exchanged = exchanged.and_then(|()| self.map(address, chunk.bytes, handle, &access));
        if let Err(error) = exchanged {
            if let Some(handle) = behind {
                // As it was; if that fails as well, the program's next access will tell.
                let _ = self.map(address, chunk.bytes, handle, &access);
            }
            chunk.inner().backing = Some(store.into_backing());
            // SAFETY: made a moment ago, and mapped nowhere.
            surely(|| unsafe { (self.moving.api().cuMemRelease)(handle) });
            return Err(error);
        }
        let mut inner = chunk.inner();
        inner.backing = Some(Backing::Device(handle));
        let memory = charge.memory();
        let given_back = std::mem::replace(&mut inner.charge, charge);
        drop(inner);
        TEMPERATURE.on_host(chunk.number, false);
        events::note(What::MovedIn, memory, address.0);
        drop(given_back);
        Ok(Some((store, address)))
    }

    fn unmap(&self, address: DevicePtr, bytes: usize) -> Result<(), Error> {
        // SAFETY: mapped, all of it and nothing else, and nothing uses it: the gate is closed and the device is idle.
        check("cuMemUnmap", surely(|| unsafe { (self.moving.api().cuMemUnmap)(address, bytes) }))
    }

    fn map(
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
