//! Chunks that come because a kernel wants them, as long as no plan is carried out.
//!
//! Of a program whose steps are alike it is known when chunks are used again ([`super::reuse`]): what is about to be used
//! comes, and what is used last of all goes.
//!
//! Of others a chunk on the host comes that kernels have read so often that moving it would have been cheaper, before the
//! next launch that names it, and chunks that were not named for long make room. Which of those is left to chance: to take
//! the one that was named longest ago is the worst that can be done to a program that goes through its memory again and
//! again.

mod choice;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use gpuheap_ledger::State as Phase;

use crate::chunks::{Backing, Chunk};
use crate::quiet::{self, Busy};
use crate::sleep::{by_device, mover, phase, still};
use crate::state::{State, lock};
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
/// How long the program may be held back until the device is idle. It works meanwhile, and on what is on the host it works
/// for long: a program that launches a whole step at once may have seconds of work before it.
const SETTLE: Duration = Duration::from_secs(4);
/// How long nothing is tried after that was too short, at first; each time twice as long.
const PAUSE: Duration = Duration::from_secs(40);
const LAST_PAUSE: Duration = Duration::from_secs(1200);
/// And after nothing came.
const EMPTY: Duration = Duration::from_secs(1);

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

    fn wait(&mut self, pause: Duration) {
        self.until = Some(Instant::now() + pause);
    }

    fn lost(&mut self) {
        self.wait(self.pause);
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
    // Chosen while the device goes on, which is waited for only if something is to come.
    let mut chosen = Vec::new();
    for (device, chunks) in by_device(|backing| matches!(backing, Backing::Device(_) | Backing::Host(_))) {
        let room = state.ledger.room(devices::place(Some(device))).unwrap_or(u64::MAX);
        let choice = match &mut *lock(&super::REUSE) {
            Some(reuse) if reuse.is_aligned() => choice::by_reuse(&chunks, wanted, room, reuse),
            _ => choice::by_chance(&chunks, wanted, room),
        };
        if !choice.backs.is_empty() {
            chosen.push((device, Chosen::new(&choice.outs), Chosen::new(&choice.backs)));
        }
    }
    if chosen.is_empty() {
        if let Some(reuse) = &mut *lock(&super::REUSE) {
            reuse.refused();
        }
        return;
    }
    let closed = match quiet::settle(moving, state, &mut turn, SETTLE) {
        Ok(closed) => closed,
        Err(Busy::Capturing) => return,
        Err(_) => return patience.lost(),
    };
    let mut all_came = 0;
    for (device, outs, backs) in chosen {
        let (outs, backs) = (still(outs.there(), false), still(backs.there(), true));
        let Ok(Some(mover)) = mover(moving, device) else { continue };
        FETCHED.fetch_add(1, Ordering::Relaxed);
        let (gone, came) = mover.exchange(&outs, &backs);
        state.ledger.moved(gone.bytes, came.bytes);
        all_came += came.bytes;
    }
    if all_came == 0 {
        // The device has no room, or there is no way to it.
        patience.wait(EMPTY);
    }
    drop(patience);
    drop(closed);
}

/// Chunks that the program may free until the gate is closed: their memory is not to be kept from it meanwhile.
struct Chosen(Vec<Weak<Chunk>>);

impl Chosen {
    fn new(chunks: &[Arc<Chunk>]) -> Self {
        Self(chunks.iter().map(Arc::downgrade).collect())
    }

    fn there(&self) -> Vec<Arc<Chunk>> {
        self.0.iter().filter_map(Weak::upgrade).collect()
    }
}
