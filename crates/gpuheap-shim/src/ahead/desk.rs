//! What copies ahead are made with on one device: a stream, buffers of the device's memory, and the kernel that compares.

use std::sync::{Arc, Weak};

use gpuheap_cuda::raw::{self, Code, DevicePtr, Stream};
use gpuheap_cuda::{Access, Api, Device, DeviceMemory, Error, Location, Mapping, Physical, Reservation, check};

use super::same::Same;
use super::{MOST, Wanted};
use crate::charge::{Charge, Kind};
use crate::chunks::{Backing, Chunk};
use crate::host::Mapped;
use crate::moves::{Identity, surely};
use crate::moving::Moving;
use crate::origin::Origin;
use crate::sleep::can_move;

/// What waits is allowed although somebody records a graph: it is about a stream that nobody records.
const RELAXED: u32 = 2;

/// See the head of the file. All of it is of a context, but for the buffers.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) context: Identity,
    stream: Stream,
    same: Same,
    pub(super) buffers: Vec<Buffer>,
    /// Whether the stream was given something since it was last waited for.
    is_under_way: bool,
    /// Goes on whenever it was waited for.
    moment: u64,
}

/// A piece of the device's memory, and what it is used for.
#[derive(Debug)]
pub(super) struct Buffer {
    staging: Mapping,
    _charge: Charge,
    pub(super) held: Option<Held>,
}

/// A chunk that was copied ahead, or is being copied.
#[derive(Debug)]
pub(super) struct Held {
    chunk: Weak<Chunk>,
    piece: Mapped,
    /// When it was begun.
    moment: u64,
    /// Whether all of it was begun.
    is_whole: bool,
}

impl Held {
    pub(super) fn is_of(&self, chunk: &Chunk) -> bool {
        std::ptr::eq(self.chunk.as_ptr(), chunk)
    }
}

impl Desk {
    /// In the current context, which is that one.
    pub(super) fn new(api: &Api, context: Identity) -> Result<Self, Error> {
        let same = Same::load(api, MOST)?;
        let mut stream = Stream::NULL;
        // SAFETY: `stream` outlives the call.
        let made = check("cuStreamCreate", unsafe { (api.cuStreamCreate)(&raw mut stream, raw::STREAM_NON_BLOCKING) });
        if let Err(error) = made {
            same.unload(api);
            return Err(error);
        }
        Ok(Self { context, stream, same, buffers: Vec::new(), is_under_way: false, moment: 0 })
    }

    /// Ends all of it. The context is still there.
    pub(super) fn close(mut self, moving: &Moving) {
        self.rest(moving);
        self.give_back(moving);
        let api = moving.api();
        let _ = within(api, self.context, || {
            // SAFETY: made here and destroyed here alone, and waited for.
            let code = unsafe { (api.cuStreamDestroy_v2)(self.stream) };
            self.same.unload(api);
            check("cuStreamDestroy_v2", code)
        });
    }

    /// Waits for what is under way: some copies, whatever the program does. If they failed, the context is broken, and what
    /// was copied is not said to be the same.
    pub(super) fn rest(&mut self, moving: &Moving) {
        if !self.is_under_way {
            return;
        }
        let (api, stream) = (moving.api(), self.stream);
        let waited = within(api, self.context, || {
            let _relaxed = Relaxed::enter(api);
            // SAFETY: the stream is there as long as this is.
            check("cuStreamSynchronize", surely(|| unsafe { (api.cuStreamSynchronize)(stream) }))
        });
        if waited.is_err() {
            for held in self.buffers.iter_mut().filter_map(|buffer| buffer.held.as_mut()) {
                held.is_whole = false;
            }
        }
        (self.is_under_way, self.moment) = (false, self.moment + 1);
    }

    /// Begins to copy chunks of the device, as far as there are buffers and pieces for them.
    /// `room` is what the limit of the host's memory has for more.
    pub(super) fn begin(&mut self, moving: &Moving, device: &Device, chunks: &[&Arc<Chunk>], room: &mut u64) {
        let _ = within(moving.api(), self.context, || {
            for chunk in chunks {
                let Some(place) = self.place_for(chunk, chunks) else { continue };
                // Whoever is about to take the memory away says so first, and then comes here: see `Chunk::hold_off`.
                let Some(address) = movable_address(chunk) else { continue };
                let former = self.buffers[place].held.take().map(|held| held.piece);
                let piece = match former {
                    Some(piece) => piece,
                    None => {
                        let Some(left) = room.checked_sub(chunk.bytes as u64) else { continue };
                        let Some(piece) = moving.mapped.take_kept(device, chunk.bytes) else { continue };
                        *room = left;
                        piece
                    }
                };
                self.begin_one(moving, (chunk, address), place, piece);
            }
            Ok(())
        });
    }

    /// The buffer for a chunk, if one is free or can be freed, and the chunk is not in one already.
    fn place_for(&self, chunk: &Chunk, wanted: &[&Arc<Chunk>]) -> Option<usize> {
        let moment = self.moment;
        // What was begun at this moment may be under way, and stays. Of another moment it is begun anew: the chunk may
        // have been written to since.
        let is_old = |held: &Held| held.moment != moment;
        let is_wanted = |held: &Held| wanted.iter().any(|other| held.is_of(other));
        let fits = |buffer: &Buffer| buffer.staging.bytes() == chunk.bytes;
        let own = self.buffers.iter().position(|buffer| buffer.held.as_ref().is_some_and(|held| held.is_of(chunk)));
        match own {
            Some(own) => self.buffers[own].held.as_ref().is_some_and(is_old).then_some(own),
            None => self.buffers.iter().position(|buffer| fits(buffer) && buffer.held.is_none()).or_else(|| {
                let is_free = |held: &Held| is_old(held) && !is_wanted(held);
                self.buffers.iter().position(|buffer| fits(buffer) && buffer.held.as_ref().is_some_and(is_free))
            }),
        }
    }

    fn begin_one(&mut self, moving: &Moving, (chunk, address): (&Arc<Chunk>, DevicePtr), place: usize, piece: Mapped) {
        let buffer = &mut self.buffers[place];
        let (staging, window, bytes) = (buffer.staging.address(), piece.window(), chunk.bytes);
        self.is_under_way = true;
        let is_whole = [(staging, address), (window, staging)].into_iter().all(|(to, from)| {
            // SAFETY: all three have that many bytes and are mapped until the stream was waited for: the buffer and the
            // piece because they are kept here, the chunk because whoever takes it away waits first. What others write
            // to the chunk meanwhile is found out when it is compared.
            unsafe { (moving.api().cuMemcpyDtoDAsync_v2)(to, from, bytes, self.stream) }.is_success()
        });
        buffer.held = Some(Held { chunk: Arc::downgrade(chunk), piece, moment: self.moment, is_whole });
    }

    /// Compares chunks that were copied with what they have now, while nothing else runs. Gives those that are the same,
    /// each with its copy; the others are forgotten.
    pub(super) fn compare(&mut self, moving: &Moving, chunks: &[Arc<Chunk>]) -> Vec<(usize, Mapped)> {
        self.rest(moving);
        let Self { context, stream, same, buffers, .. } = self;
        let api = moving.api();
        let mut asked = Vec::new();
        let answered = within(api, *context, || {
            for (number, chunk) in chunks.iter().enumerate() {
                let found =
                    buffers.iter().position(|buffer| buffer.held.as_ref().is_some_and(|held| held.is_of(chunk)));
                let Some(question) = found else { continue };
                let is_whole = buffers[question].held.as_ref().is_some_and(|held| held.is_whole);
                let is_asked = match movable_address(chunk).filter(|_| is_whole) {
                    Some(address) => {
                        let staging = buffers[question].staging.address();
                        same.ask(api, *stream, question, (address, staging, chunk.bytes)).is_ok()
                    }
                    None => false,
                };
                asked.push((number, question, is_asked));
            }
            // SAFETY: the stream is there as long as this is.
            check("cuStreamSynchronize", surely(|| unsafe { (api.cuStreamSynchronize)(*stream) }))
        });
        let mut found = Vec::with_capacity(asked.len());
        for (number, question, is_asked) in asked {
            let Some(held) = buffers[question].held.take() else { continue };
            if is_asked && answered.is_ok() && same.are_same(question) {
                found.push((number, held.piece));
            } else {
                moving.mapped.give(held.piece);
            }
        }
        found
    }

    /// Makes buffers as they are wanted, as long as they leave as much room as they take. Nothing runs, so that it waits for
    /// nothing.
    pub(super) fn furnish(&mut self, moving: &Moving, device: &Device, wanted: Wanted, room: impl Fn() -> u64) {
        self.rest(moving);
        for buffer in self.buffers.extract_if(.., |buffer| buffer.staging.bytes() != wanted.bytes) {
            buffer.clear(moving);
        }
        let leave_enough = |count: usize| room() >= (wanted.bytes * (count + 1)) as u64;
        while self.buffers.len() < wanted.count.min(MOST) && leave_enough(self.buffers.len() + 1) {
            let Ok(Some(buffer)) = Buffer::new(device, wanted.bytes) else { break };
            self.buffers.push(buffer);
        }
    }

    /// Whether a copy of a chunk was begun since the stream was last waited for.
    pub(super) fn has(&self, chunk: &Chunk) -> bool {
        let mut held = self.buffers.iter().filter_map(|buffer| buffer.held.as_ref());
        held.any(|held| held.is_of(chunk) && held.moment == self.moment)
    }

    fn holds(&self, chunk: &Chunk) -> bool {
        self.buffers.iter().filter_map(|buffer| buffer.held.as_ref()).any(|held| held.is_of(chunk))
    }

    /// The chunk goes its own way. When this is over, nothing reads it.
    pub(super) fn forget(&mut self, moving: &Moving, chunk: &Chunk) {
        if !self.holds(chunk) {
            return;
        }
        self.rest(moving);
        for buffer in &mut self.buffers {
            if let Some(held) = buffer.held.take_if(|held| held.is_of(chunk)) {
                moving.mapped.give(held.piece);
            }
        }
    }

    /// Forgets what was copied, and gives its pieces back; the buffers stay.
    pub(super) fn forget_all(&mut self, moving: &Moving) {
        self.rest(moving);
        for held in self.buffers.iter_mut().filter_map(|buffer| buffer.held.take()) {
            moving.mapped.give(held.piece);
        }
    }

    /// Gives all buffers back to the device, and what they hold to the host.
    pub(super) fn give_back(&mut self, moving: &Moving) {
        self.rest(moving);
        for buffer in self.buffers.drain(..) {
            buffer.clear(moving);
        }
    }

    /// Bytes of the host's memory that are held here.
    pub(super) fn host_bytes(&self) -> u64 {
        self.buffers.iter().filter(|buffer| buffer.held.is_some()).map(|buffer| buffer.staging.bytes() as u64).sum()
    }
}

impl Buffer {
    /// Nothing if the budget has no room.
    fn new(device: &Device, bytes: usize) -> Result<Option<Self>, Error> {
        let charge = Charge::try_take_for(Origin::Unknown, Kind::Physical, Some(device.id()), bytes);
        let Some(charge) = charge else { return Ok(None) };
        let physical = Physical::new(device.driver(), Location::Device(device.id()), bytes)?;
        let staging = Reservation::new(device.driver(), bytes)?.map(0, &physical)?;
        staging.set_access(device, Access::ReadWrite)?;
        Ok(Some(Self { staging, _charge: charge, held: None }))
    }

    /// Gives all of it back. Nothing is under way.
    fn clear(self, moving: &Moving) {
        if let Some(held) = self.held {
            moving.mapped.give(held.piece);
        }
    }
}

/// Where a chunk is, if it is on its device and nobody is about to take it away.
fn movable_address(chunk: &Chunk) -> Option<DevicePtr> {
    let inner = chunk.inner();
    let is_there = matches!(inner.backing, Some(Backing::Device(_))) && !inner.is_held_off;
    inner.address.filter(|_| is_there && can_move(chunk.device, &inner))
}

/// Does something in a context, if it is still the same: what is in it is known to be gone if it is not.
fn within<T>(api: &Api, context: Identity, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    if Identity::of(api, context.handle()) != context {
        return Err(Error::Call { call: "cuCtxGetId", code: Code::CONTEXT_IS_DESTROYED });
    }
    // SAFETY: a context that is there. Whoever ends it comes here first.
    check("cuCtxPushCurrent_v2", unsafe { (api.cuCtxPushCurrent_v2)(context.handle()) })?;
    let done = work();
    let mut popped = raw::Context::NULL;
    // SAFETY: pushed above; `popped` outlives the call.
    unsafe { (api.cuCtxPopCurrent_v2)(&raw mut popped) };
    done
}

/// As long as this is there, the calling thread may wait although others record graphs. What it was before is put back.
struct Relaxed<'a>(Option<(&'a Api, u32)>);

impl<'a> Relaxed<'a> {
    fn enter(api: &'a Api) -> Self {
        let mut mode = RELAXED;
        Self(exchange(api, &mut mode).is_success().then_some((api, mode)))
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some((api, mode)) = &mut self.0 {
            exchange(api, mode);
        }
    }
}

fn exchange(api: &Api, mode: &mut u32) -> Code {
    // SAFETY: `mode` outlives the call.
    api.cuThreadExchangeStreamCaptureMode.map_or(Code::NOT_FOUND, |exchange| unsafe { exchange(mode) })
}
