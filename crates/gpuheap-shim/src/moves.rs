//! Moving chunks between a device and the host, their addresses unchanged. Only while the gate is closed and nothing that
//! could touch them runs ([`crate::quiet`]).
//!
//! Where chunks move one way only, copies run ahead on a stream of their own; what is behind a chunk's addresses is
//! exchanged as soon as its copy is done, while the next are under way. Both ways at once is [`exchange`]'s, copies and
//! mappings by themselves are in [`copies`] and [`mappings`], and [`lanes`] has the streams.

mod copies;
mod exchange;
mod lanes;
mod mappings;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use gpuheap_cuda::raw::{AllocationHandle, DevicePtr, Event, Stream};
use gpuheap_cuda::{Context, Error};

use self::lanes::Lanes;
pub(crate) use self::lanes::{Identity, Kept};
pub(crate) use self::mappings::surely;
use crate::charge::{Charge, Kind};
use crate::chunks::{Backing, Chunk};
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
    lanes: Lanes,
    /// Whether a wait failed, after which the streams are not for others.
    is_broken: Cell<bool>,
}

impl Drop for Mover<'_> {
    fn drop(&mut self) {
        let lanes = self.lanes.take();
        if !self.is_broken.get() {
            self.moving.lanes.give(self.context.device().id(), lanes);
        } else if let Ok(_current) = self.context.enter() {
            lanes.destroy(self.moving.api());
        }
    }
}

impl<'a> Mover<'a> {
    /// Uses the device's primary context, which has to be there.
    pub(crate) fn new(moving: &'a Moving, device: i32) -> Result<Self, Error> {
        let context = moving.device(device)?.context()?;
        // The program's own work is over; what was begun ahead is this library's.
        moving.ahead.rest(moving, device);
        let lanes = {
            let _current = context.enter()?;
            moving.lanes.take(moving.api(), device, context.handle())?
        };
        Ok(Self { moving, context, lanes, is_broken: Cell::new(false) })
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
        let finish = |chunk: &Arc<Chunk>, (store, charge)| {
            if let Some(memory) = self.leave(chunk, store, charge)? {
                self.release(memory);
            }
            Ok(())
        };
        let moved = self.pipeline(self.lanes.outward, chunks, start, finish);
        // Of what there was no use for.
        stores.for_each(|store| store.keep(self.moving));
        moved
    }

    /// Moves chunks back to the device, in that order, until there is no more room there.
    pub(crate) fn back(&self, chunks: &[Arc<Chunk>]) -> Moved {
        let start = |chunk: &Arc<Chunk>| {
            let Some(memory) = self.make_memory(chunk) else { return Ok(None) };
            let lifted = match self.lift(chunk) {
                Ok(Some(lifted)) => lifted,
                other => {
                    self.release(memory);
                    return other.map(|_| None);
                }
            };
            let (_, store, address) = self.land(lifted, memory)?;
            match self.load(address, &store, chunk.bytes) {
                Ok(()) => Ok(Some(store)),
                Err(error) => Err(self.go_back(chunk, store, error)),
            }
        };
        let finish = |_: &Arc<Chunk>, store: Store| {
            store.keep(self.moving);
            Ok(())
        };
        self.pipeline(self.lanes.inward, chunks, start, finish)
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
            if let Err(error) = self.load(piece.window(), &store, chunk.bytes) {
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
        self.pipeline(self.lanes.inward, chunks, start, finish)
    }

    /// Starts each and finishes it when its copy is done, some ahead of others. The first that cannot be started is the
    /// end.
    fn pipeline<T>(
        &self,
        stream: Stream,
        chunks: &[Arc<Chunk>],
        mut start: impl FnMut(&Arc<Chunk>) -> Result<Option<T>, Error>,
        finish: impl Fn(&Arc<Chunk>, T) -> Result<(), Error>,
    ) -> Moved {
        let mut under_way = VecDeque::with_capacity(AHEAD);
        let mut moved = Moved::default();
        let settle = |under_way: &mut VecDeque<(&Arc<Chunk>, T, Event)>, moved: &mut Moved| {
            let Some((chunk, what, event)) = under_way.pop_front() else { return };
            // What was begun is finished in any case. A copy that failed has broken the context, and the program with it.
            let finished = self.reach(event).and(finish(chunk, what));
            match finished {
                Ok(()) => moved.add(Moved { chunks: 1, bytes: chunk.bytes as u64, error: None }),
                Err(error) => moved.add(error.into()),
            }
        };
        for (chunk, event) in chunks.iter().zip(self.lanes.events.into_iter().cycle()) {
            if under_way.len() == AHEAD {
                settle(&mut under_way, &mut moved);
            }
            if moved.error.is_some() {
                break;
            }
            match start(chunk) {
                Ok(Some(what)) => {
                    self.mark(event, stream);
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
}
