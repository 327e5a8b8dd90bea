//! Copies that are made ahead, beside the program's kernels, so that a chunk that goes needs no copy while the program is held
//! back.
//!
//! What a launch gets does not tell who writes to a chunk. So (1) beside whatever runs, the chunk is copied to a buffer of
//! the device's memory, in microseconds, and from there to a piece of the host's; and (2) at the next moment at which the
//! gate is closed and nothing runs, a kernel compares the chunk with the buffer, byte for byte. If they are the same, the
//! piece has what the chunk has, whatever happened meanwhile, and the chunk leaves with its mappings alone
//! ([`crate::moves`]). If not, it is copied as if nothing had been done. Nothing but the comparison is relied on.
//!
//! Buffers are made and given back while the gate is closed, at the end of an exchange, since making them takes long and
//! copies are to begin at once; so the first time that chunks are to be copied ahead, nothing is but that noted. They are
//! charged, leave as much room as they take, and are given back when memory would be refused or put on the host for them,
//! when the process sleeps, and when they were of no use for a while. Pieces of the host's memory come from those that are
//! kept ([`crate::pool`]).
//!
//! One lock is held across calls of the driver, but none that waits for the program's work: copies that are begun under it
//! are either known when the program takes a chunk away, which waits for them, or find that it is about to
//! ([`crate::chunks::Chunk::hold_off`]).

mod desk;
mod same;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use gpuheap_cuda::Context;
use gpuheap_cuda::raw::DeviceId;

use self::desk::Desk;
use crate::chunks::Chunk;
use crate::devices;
use crate::host::Mapped;
use crate::ledger::HOST;
use crate::moves::Identity;
use crate::moving::{self, Moving};
use crate::state::{self, State, lock};

/// The most chunks that are copied ahead at a time, on each device.
pub(crate) const MOST: usize = 16;
/// How long buffers are kept that nobody uses.
const KEPT: Duration = Duration::from_secs(10);
/// How long none are made after memory was needed for something else.
const PAUSE: Duration = Duration::from_secs(5);
/// What stays free on the device for what is allocated without a budget: contexts, modules, libraries.
const FREE: u64 = 256 << 20;

/// How many buffers of how many bytes there are to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wanted {
    bytes: usize,
    count: usize,
}

/// What is known of a device.
#[derive(Debug, Default)]
struct Place {
    desk: Option<Desk>,
    wanted: Option<Wanted>,
    /// When something was last to be copied.
    used: Option<Instant>,
    /// When others needed the memory.
    gave_way: Option<Instant>,
    /// The context in which there can be no desk.
    refused: Option<Identity>,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    places: Mutex<BTreeMap<DeviceId, Place>>,
    /// Buffers that there are, so that nobody takes the lock for none.
    buffers: AtomicUsize,
}

/// Begins to copy chunks ahead that are about to leave, as far as it can at once: called by a thread that is about to launch
/// something, it waits for nothing. What was begun earlier and has not left makes room.
pub(crate) fn prepare(state: &'static State, chunks: &[Arc<Chunk>]) {
    let Some(moving) = moving::get() else { return };
    // While a graph is recorded, calls may be forbidden that have nothing to do with it.
    if state.captures() > 0 {
        return;
    }
    // Closed, somebody moves memory.
    let Some(_pass) = state.gate.try_enter() else { return };
    moving.ahead.begin(moving, chunks);
}

impl Ahead {
    /// As [`prepare`], for whoever keeps memory from being moved meanwhile.
    fn begin(&self, moving: &Moving, chunks: &[Arc<Chunk>]) {
        let mut places = match self.places.try_lock() {
            Ok(places) => places,
            Err(TryLockError::Poisoned(places)) => places.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let mut by_device = BTreeMap::<DeviceId, Vec<&Arc<Chunk>>>::new();
        for chunk in chunks {
            by_device.entry(chunk.device).or_default().push(chunk);
        }
        let ledger = &state::get().ledger;
        let held: u64 = places.values().filter_map(|place| place.desk.as_ref()).map(Desk::host_bytes).sum();
        let mut room = ledger.spill().saturating_sub(ledger.used(HOST)).saturating_sub(held);
        for (device, chunks) in by_device {
            let place = places.entry(device).or_default();
            (place.wanted, place.used) = (wanted(&chunks), Some(Instant::now()));
            let Some(desk) = place.desk.as_mut() else { continue };
            if let Ok(device) = moving.device(device) {
                desk.begin(moving, &device, &chunks, &mut room);
            }
        }
    }

    /// Whether a copy of a chunk was begun since chunks last moved.
    pub(crate) fn has(&self, chunk: &Chunk) -> bool {
        self.is_used() && self.desk_of(chunk.device, |desk| desk.has(chunk)).unwrap_or(false)
    }

    /// Those of a device's chunks that were copied ahead and are as they were then, by their numbers among these, with their
    /// copies. Nothing runs.
    pub(crate) fn proven(&self, moving: &Moving, context: &Context, chunks: &[Arc<Chunk>]) -> Vec<(usize, Mapped)> {
        if !self.is_used() || chunks.is_empty() {
            return Vec::new();
        }
        let wanted = Identity::of(moving.api(), context.handle());
        let compared = self.desk_of(context.device().id(), |desk| {
            if desk.context == wanted { desk.compare(moving, chunks) } else { Vec::new() }
        });
        compared.unwrap_or_default()
    }

    /// Makes what is wanted and not there. Nothing runs, and the device's primary context is there.
    pub(crate) fn furnish(&self, moving: &Moving, context: &Context) {
        let (api, device) = (moving.api(), context.device());
        let mut places = self.lock();
        let Some(place) = places.get_mut(&device.id()) else { return };
        let Some(wanted) = place.wanted else { return };
        if place.gave_way.is_some_and(|then| then.elapsed() < PAUSE) {
            return;
        }
        let now = Identity::of(api, context.handle());
        if place.refused == Some(now) {
            return;
        }
        if place.desk.as_ref().is_none_or(|desk| desk.context != now) {
            // One of a context that is gone went with it, but for its buffers.
            if let Some(mut former) = place.desk.take() {
                former.give_back(moving);
            }
            let made = context.enter().and_then(|_current| Desk::new(api, now));
            place.refused = made.is_err().then_some(now);
            place.desk = made.ok();
        }
        let room = || {
            let budget = state::get().ledger.room(devices::place(Some(device.id()))).unwrap_or(u64::MAX);
            context.memory().map_or(0, |(free, _)| budget.min((free as u64).saturating_sub(FREE)))
        };
        if let Some(desk) = place.desk.as_mut() {
            desk.furnish(moving, device, wanted, room);
        }
        self.count(&places);
    }

    /// Waits for what is under way on a device: a few copies.
    pub(crate) fn rest(&self, moving: &Moving, device: DeviceId) {
        if self.is_used() {
            self.desk_of(device, |desk| desk.rest(moving));
        }
    }

    /// The program is about to take a chunk's memory away. When this is over, nothing reads it.
    pub(crate) fn forget(&self, moving: &Moving, chunk: &Chunk) {
        if self.is_used() {
            self.desk_of(chunk.device, |desk| desk.forget(moving, chunk));
        }
    }

    /// A device's primary context is about to end, and all that is in it.
    pub(crate) fn end(&self, moving: &Moving, device: DeviceId) {
        let mut places = self.lock();
        if let Some(desk) = places.get_mut(&device).and_then(|place| place.desk.take()) {
            desk.close(moving);
        }
        self.count(&places);
    }

    /// Gives memory back if so many bytes have no room on a device otherwise; true if it did.
    pub(crate) fn give_way(&self, moving: &Moving, device: DeviceId) -> bool {
        if !self.is_used() {
            return false;
        }
        let mut places = self.lock();
        let Some(place) = places.get_mut(&device) else { return false };
        let Some(desk) = place.desk.as_mut().filter(|desk| !desk.buffers.is_empty()) else { return false };
        desk.give_back(moving);
        place.gave_way = Some(Instant::now());
        self.count(&places);
        true
    }

    /// Others need the host's memory that is held here.
    pub(crate) fn forget_all(&self, moving: &Moving) {
        if self.is_used() {
            self.lock().values_mut().filter_map(|place| place.desk.as_mut()).for_each(|desk| desk.forget_all(moving));
        }
    }

    /// Gives all memory back.
    pub(crate) fn give_back(&self, moving: &Moving) {
        self.give_back_if(moving, |_| true);
    }

    /// Gives memory back that was of no use for long.
    pub(crate) fn tidy(&self, moving: &Moving) {
        self.give_back_if(moving, |place| place.used.is_none_or(|used| used.elapsed() > KEPT));
    }

    fn give_back_if(&self, moving: &Moving, which: impl Fn(&Place) -> bool) {
        if !self.is_used() {
            return;
        }
        let mut places = self.lock();
        for place in places.values_mut().filter(|place| which(place)) {
            place.wanted = None;
            if let Some(desk) = place.desk.as_mut() {
                desk.give_back(moving);
            }
        }
        self.count(&places);
    }

    /// How often to look whether there is something of no use.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        self.is_used().then_some(KEPT)
    }

    /// Bytes of the host's memory that are held here.
    pub(crate) fn host_bytes(&self) -> u64 {
        if !self.is_used() {
            return 0;
        }
        self.lock().values().filter_map(|place| place.desk.as_ref()).map(Desk::host_bytes).sum()
    }

    fn is_used(&self) -> bool {
        self.buffers.load(Ordering::SeqCst) > 0
    }

    fn desk_of<T>(&self, device: DeviceId, work: impl FnOnce(&mut Desk) -> T) -> Option<T> {
        self.lock().get_mut(&device).and_then(|place| place.desk.as_mut()).map(work)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DeviceId, Place>> {
        lock(&self.places)
    }

    fn count(&self, places: &BTreeMap<DeviceId, Place>) {
        let count = places.values().filter_map(|place| place.desk.as_ref()).map(|desk| desk.buffers.len()).sum();
        self.buffers.store(count, Ordering::SeqCst);
    }
}

/// The size that most chunks have, and how many these are.
fn wanted(chunks: &[&Arc<Chunk>]) -> Option<Wanted> {
    let mut counts = BTreeMap::<usize, usize>::new();
    for chunk in chunks {
        *counts.entry(chunk.bytes).or_default() += 1;
    }
    let (bytes, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    Some(Wanted { bytes, count: count.min(MOST) })
}

/// Lets what is held ahead of its use make way for something that has no room on a device. True if there is more room now.
pub(crate) fn make_way(device: DeviceId) -> bool {
    moving::get().is_some_and(|moving| moving.ahead.give_way(moving, device))
}
