//! Chunks that come because a kernel wants them, as long as no plan is carried out.
//!
//! Of a program whose steps are alike it is known when chunks are used again ([`super::reuse`]): what is about to be used
//! comes, and what is used last of all goes.
//!
//! Of others a chunk on the host comes that kernels have read so often that moving it would have been cheaper, before the
//! next launch that names it, and chunks that were not named for long make room. Which of those is left to chance: to take
//! the one that was named longest ago is the worst that can be done to a program that goes through its memory again and
//! again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpuheap_ledger::State as Phase;

use super::reuse::Reuse;
use crate::chunks::{Backing, Chunk};
use crate::quiet::{self, Busy};
use crate::sleep::{by_device, mover, phase};
use crate::state::{State, lock};
use crate::temperature::TEMPERATURE;
use crate::{devices, moving};

/// Numbers of chunks, as many as are fetched at once.
pub(crate) struct Wanted {
    numbers: [u32; MOST],
    count: usize,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { numbers: [0; MOST], count: 0 }
    }
}

const MOST: usize = 48;
/// How long the program may be held back until the device is idle.
const SETTLE: Duration = Duration::from_secs(1);
/// How long nothing is tried after that was too short, at first; each time twice as long.
const PAUSE: Duration = Duration::from_secs(10);
const LAST_PAUSE: Duration = Duration::from_secs(1200);

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

    pub(crate) fn is_full(&self) -> bool {
        self.count == MOST
    }

    /// Keeps those of which that is true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        let (numbers, count) = (self.numbers, std::mem::take(&mut self.count));
        for number in numbers.into_iter().take(count).filter(|number| keep(*number)) {
            self.numbers[self.count] = number;
            self.count += 1;
        }
    }

    #[cfg(test)]
    pub(crate) fn numbers(&self) -> &[u32] {
        &self.numbers[..self.count]
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
    let closed = match quiet::settle(moving, state, &mut turn, SETTLE) {
        Ok(closed) => closed,
        Err(Busy::Capturing) => return,
        Err(_) => return patience.lost(),
    };
    drop(patience);
    let mut is_refused = true;
    for (device, chunks) in by_device(|backing| matches!(backing, Backing::Device(_) | Backing::Host(_))) {
        let place = devices::place(Some(device));
        let room = state.ledger.room(place).unwrap_or(u64::MAX);
        let (outs, backs) = match &mut *lock(&super::REUSE) {
            Some(reuse) if reuse.is_aligned() => by_reuse(&chunks, wanted, room, reuse),
            _ => by_chance(&chunks, wanted, room),
        };
        if backs.is_empty() {
            continue;
        }
        let Ok(Some(mover)) = mover(moving, device) else { continue };
        is_refused = false;
        FETCHED.fetch_add(1, Ordering::Relaxed);
        let (gone, came) = mover.exchange(&outs, &backs);
        state.ledger.moved(gone.bytes, came.bytes);
    }
    drop(closed);
    if is_refused && let Some(reuse) = &mut *lock(&super::REUSE) {
        reuse.refused();
    }
}

/// Chunks that go and chunks that come.
type Choice = (Vec<Arc<Chunk>>, Vec<Arc<Chunk>>);

/// What is wanted comes, the soonest used first, as long as something is used later than that and not soon at all.
fn by_reuse(chunks: &[Arc<Chunk>], wanted: &Wanted, room: u64, reuse: &mut Reuse) -> Choice {
    let mut distances = |is_chosen: &dyn Fn(&Chunk) -> bool| -> Vec<(u64, &Arc<Chunk>)> {
        let chosen = chunks.iter().filter(|chunk| is_chosen(chunk));
        chosen.map(|chunk| (reuse.distance(chunk.number), chunk)).collect()
    };
    let mut coming = distances(&|chunk| wanted.has(chunk.number) && chunk.is_spilled());
    let mut here = distances(&|chunk| !wanted.has(chunk.number) && !chunk.is_spilled());
    coming.sort_by_key(|(distance, _)| *distance);
    here.sort_by_key(|(distance, _)| *distance);
    let held: u64 = here.iter().map(|(_, chunk)| chunk.bytes as u64).sum();
    let slack = super::slack(held.saturating_add(room));
    let soon = reuse.soon();
    let (mut outs, mut backs, mut free) = (Vec::new(), Vec::new(), room);
    for (distance, chunk) in coming {
        let needed = chunk.bytes as u64 + slack;
        while free < needed {
            let Some((_, last)) = here.pop_if(|(last, _)| *last > distance.max(soon)) else { break };
            free += last.bytes as u64;
            outs.push(Arc::clone(last));
        }
        if free < chunk.bytes as u64 {
            break;
        }
        free -= chunk.bytes as u64;
        backs.push(Arc::clone(chunk));
    }
    (outs, backs)
}

/// What is wanted comes, as far as others can make room that were not named for long.
fn by_chance(chunks: &[Arc<Chunk>], wanted: &Wanted, room: u64) -> Choice {
    // Those that a launch names, and those that what it names goes on in.
    let named = chunks.iter().filter(|chunk| wanted.has(chunk.number));
    let launch = named.map(|chunk| TEMPERATURE.last_use(chunk.number)).max().unwrap_or(u64::MAX);
    let is_wanted = |chunk: &&Arc<Chunk>| wanted.has(chunk.number) || TEMPERATURE.last_use(chunk.number) >= launch;
    let mut backs: Vec<_> =
        chunks.iter().filter(is_wanted).filter(|chunk| chunk.is_spilled()).map(Arc::clone).collect();
    let mut needed: u64 = backs.iter().map(|chunk| chunk.bytes as u64).sum();
    // Of the older half of the others some go.
    let others = chunks.iter().filter(|chunk| !chunk.is_spilled());
    let mut device: Vec<(u64, &Arc<Chunk>)> = others.map(|chunk| (TEMPERATURE.last_use(chunk.number), chunk)).collect();
    device.sort_unstable_by_key(|(last, _)| *last);
    device.truncate(device.len().div_ceil(2));
    device.retain(|(_, chunk)| !is_wanted(chunk));
    let (mut outs, mut free) = (Vec::new(), room);
    while free < needed && !device.is_empty() {
        let (_, chunk) = device.swap_remove(chance(device.len()));
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

/// A number below another (an LCG of Knuth's, its upper bits).
fn chance(below: usize) -> usize {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let next =
        SEED.load(Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    SEED.store(next, Ordering::Relaxed);
    usize::try_from(next >> 33).unwrap_or(0) % below.max(1)
}
