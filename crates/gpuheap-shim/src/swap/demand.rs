//! Chunks that come because a kernel wants them. As long as no plan is carried out, a chunk on the host that kernels have
//! read so often that moving it would have been cheaper is fetched before the next launch that names it, and others that
//! were not named for long make room.
//!
//! Which of those that were not named for long go is left to chance at first: to take the one that was named longest ago
//! is the worst that can be done to a program that goes through its memory again and again. Once it is known that the
//! program has no period, [`tide`] tells, and room is made for new memory as well.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpuheap_cuda::raw::DeviceId;
use gpuheap_ledger::State as Phase;

use super::{caches, tide};
use crate::chunks::{Backing, Chunk};
use crate::moving::Moving;
use crate::quiet::{self, Busy};
use crate::sleep::{by_device, mover, phase};
use crate::state::{State, lock};
use crate::temperature::TEMPERATURE;
use crate::{devices, moving};

/// Numbers of chunks, as many as are fetched at once.
#[derive(Default)]
pub(crate) struct Wanted {
    numbers: [u32; MOST],
    count: usize,
}

const MOST: usize = 32;
/// How long the program may be held back until the device is idle.
const SETTLE: Duration = Duration::from_secs(1);
/// How long nothing is tried after that was too short, at first; each time twice as long.
const PAUSE: Duration = Duration::from_secs(10);
const LAST_PAUSE: Duration = Duration::from_secs(1200);
/// Bytes for which room is made beside those that are asked for: what goes at once costs less than what goes one by one.
const AHEAD: u64 = 512 << 20;

/// How often something was fetched.
static FETCHED: AtomicU64 = AtomicU64::new(0);

/// Whether something was fetched since this was last asked.
pub(crate) fn was_busy() -> bool {
    static BEFORE: AtomicU64 = AtomicU64::new(0);
    let now = FETCHED.load(Ordering::Relaxed);
    BEFORE.swap(now, Ordering::Relaxed) != now
}

impl Wanted {
    /// Adds one; what is too much is left out.
    #[inline]
    pub(crate) fn add(&mut self, number: u32) {
        if self.count < MOST && !self.has(number) {
            self.numbers[self.count] = number;
            self.count += 1;
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn has(&self, number: u32) -> bool {
        self.numbers[..self.count].contains(&number)
    }
}

/// A program whose work does not come to an end is not to be held back again and again.
static PATIENCE: Mutex<Patience> = Mutex::new(Patience { until: None, pause: PAUSE });

struct Patience {
    until: Option<Instant>,
    pause: Duration,
}

impl Patience {
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    fn lost(&mut self) {
        self.until = Some(Instant::now() + self.pause);
        self.pause = self.pause.saturating_mul(2).min(LAST_PAUSE);
    }
}

/// Fetches them, as far as others can make room.
pub(super) fn fetch(state: &'static State, wanted: &Wanted) {
    tide::wanted(wanted.numbers[..wanted.count].iter().copied());
    at_rest(state, |moving| {
        for (device, chunks) in by_device(|backing| matches!(backing, Backing::Device(_) | Backing::Host(_))) {
            let place = devices::place(Some(device));
            let room = state.ledger.room(place).unwrap_or(u64::MAX);
            let (outs, backs) = choose(&chunks, wanted, room);
            if backs.is_empty() {
                continue;
            }
            let Ok(Some(mover)) = mover(moving, device) else { continue };
            FETCHED.fetch_add(1, Ordering::Relaxed);
            let (gone, came) = mover.exchange(&outs, &backs);
            state.ledger.moved(gone.bytes, came.bytes);
        }
    });
}

/// Makes room for so many bytes of new memory on a device, and for some more that may be asked for next. Only for a
/// thread that is outside the gate.
pub(crate) fn make_room(state: &'static State, device: DeviceId, bytes: u64) {
    at_rest(state, |moving| {
        let all = by_device(|backing| matches!(backing, Backing::Device(_)));
        let Some(chunks) = all.get(&device) else { return };
        let mut needed = bytes.saturating_add(AHEAD);
        let is_needed = |chunk: &&Arc<Chunk>| {
            let is_needed = needed > 0;
            needed = needed.saturating_sub(chunk.bytes as u64);
            is_needed
        };
        let outs: Vec<_> = tide::victims(chunks.iter()).into_iter().take_while(is_needed).map(Arc::clone).collect();
        let Ok(Some(mover)) = mover(moving, device) else { return };
        let (gone, _) = mover.exchange(&outs, &[]);
        state.ledger.moved(gone.bytes, 0);
        tide::gone(&outs);
    });
}

/// Does something while the gate is closed and the devices are idle, if that can be had.
fn at_rest(state: &'static State, work: impl FnOnce(&'static Moving)) {
    let Some(moving) = moving::get() else { return };
    // Somebody else moves memory: the next launch will do.
    let Some(mut turn) = quiet::try_turn(&state.turn) else { return };
    if phase(state) != Phase::Running {
        return;
    }
    let mut patience = lock(&PATIENCE);
    if patience.is_over() {
        return;
    }
    match quiet::settle(moving, state, &mut turn, SETTLE) {
        Ok(closed) => {
            drop(patience);
            work(moving);
            drop(closed);
        }
        Err(Busy::Capturing) => {}
        Err(_) => patience.lost(),
    }
}

/// What goes and what comes, for so much room.
fn choose(chunks: &[Arc<Chunk>], wanted: &Wanted, room: u64) -> (Vec<Arc<Chunk>>, Vec<Arc<Chunk>>) {
    // Those that a launch names, and those that what it names goes on in.
    let named = chunks.iter().filter(|chunk| wanted.has(chunk.number));
    let launch = named.map(|chunk| TEMPERATURE.last_use(chunk.number)).max().unwrap_or(u64::MAX);
    let is_wanted = |chunk: &&Arc<Chunk>| wanted.has(chunk.number) || TEMPERATURE.last_use(chunk.number) >= launch;
    let mut backs: Vec<_> =
        chunks.iter().filter(is_wanted).filter(|chunk| chunk.is_spilled()).map(Arc::clone).collect();
    let mut needed: u64 = backs.iter().map(|chunk| chunk.bytes as u64).sum();
    let mut others = candidates(chunks, is_wanted).into_iter();
    let (mut outs, mut free) = (Vec::new(), room);
    while free < needed {
        let Some(chunk) = others.next() else { break };
        free += chunk.bytes as u64;
        outs.push(Arc::clone(chunk));
    }
    // What has no room does not come.
    while free < needed {
        let Some(last) = backs.pop() else { break };
        needed -= last.bytes as u64;
    }
    (outs, backs)
}

/// Those on the device that may go, the best first.
fn candidates(chunks: &[Arc<Chunk>], is_wanted: impl Fn(&&Arc<Chunk>) -> bool) -> Vec<&Arc<Chunk>> {
    let here = chunks.iter().filter(|chunk| !chunk.is_spilled());
    if caches::are_given_back() {
        return tide::victims(here.filter(|chunk| !is_wanted(chunk)));
    }
    // Of the older half some, by chance.
    let mut device: Vec<(u64, &Arc<Chunk>)> = here.map(|chunk| (TEMPERATURE.last_use(chunk.number), chunk)).collect();
    device.sort_unstable_by_key(|(last, _)| *last);
    device.truncate(device.len().div_ceil(2));
    device.retain(|(_, chunk)| !is_wanted(chunk));
    let mut mixed = Vec::with_capacity(device.len());
    while !device.is_empty() {
        mixed.push(device.swap_remove(chance(device.len())).1);
    }
    mixed
}

/// A number below another (an LCG of Knuth's, its upper bits).
fn chance(below: usize) -> usize {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let next =
        SEED.load(Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    SEED.store(next, Ordering::Relaxed);
    usize::try_from(next >> 33).unwrap_or(0) % below.max(1)
}
