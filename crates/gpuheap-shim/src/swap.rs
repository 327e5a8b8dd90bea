//! Chunks that come and go within a step. A program that does the same again and again tells by what it launched last time
//! which memory it will use next; so memory that is not used for a while can make room for memory that is.
//!
//! [`sequence`] finds the period, [`extents`] what is used in it, [`schedule`] plans, and [`follow`] tells by each launch
//! where in the period the program is. At the beginning of a round the launching thread holds all others back, waits
//! until the devices are idle and carries the round's changes out ([`rounds`]). So nothing depends on the plan being right
//! but the time: what a kernel uses and is not on the device is read from the host, where it is.
//!
//! Of programs without a period (sequences of other lengths each time) chunks are fetched when kernels want them
//! ([`demand`]), by when they are used again if their steps are alike ([`reuse`]). Where a period is known and it is not
//! worth it that chunks come and go, the plan is where they stay; [`crate::placement`] finds places without a plan.

mod demand;
mod extents;
mod follow;
mod reuse;
mod rounds;
mod schedule;
mod sequence;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::time::{Duration, Instant};

use gpuheap_cuda::raw::{DeviceId, Function};

pub(crate) use self::demand::Wanted;
use self::extents::Range;
use self::follow::{Following, Step, Trial};
use self::reuse::Reuse;
use self::rounds::{Entry, Schedule};
use self::schedule::Usage;
use self::sequence::{Call, Period, Sequence};
use crate::chunks::{Backing, Chunk};
use crate::sleep::by_device;
use crate::state::{State, lock};
use crate::temperature::TEMPERATURE;
use crate::{devices, state};

/// What is known of the program.
enum Mode {
    /// Nothing: nothing is on the host, or what was planned was of no use and another try has to wait.
    Idle(Option<(Instant, Duration)>),
    /// Launches are written down.
    Watching(Box<Sequence>),
    /// The period is known and is to be planned for.
    Found(Box<Sequence>),
    /// It is being planned.
    Planning,
    /// The plan is carried out.
    Following(Box<Following>),
}

static MODE: Mutex<Mode> = Mutex::new(Mode::Idle(None));
/// When chunks are used again, as long as no period is known.
static REUSE: Mutex<Option<Box<Reuse>>> = Mutex::new(None);
/// Whether a plan is carried out.
static FOLLOWS: AtomicBool = AtomicBool::new(false);
/// Whether chunks are fetched that kernels want: of a program of which no period is known.
static FETCHES: AtomicBool = AtomicBool::new(true);

/// Whether there is something on the host that was put there after the last plan was made.
static IS_STALE: AtomicBool = AtomicBool::new(false);

/// How long nothing is tried after a plan that was of no use, and after one of something else than what the program does.
static USELESS: Pauses = Pauses::new(Duration::from_secs(20), Duration::from_secs(1200));
static LOST: Pauses = Pauses::new(Duration::from_secs(1), Duration::from_secs(30));
/// Periods are at least that many launches long: shorter ones are taken several times.
const LEAST: usize = 256;
/// A plan has to save that much of a period.
const WORTH: f64 = 0.05;
/// One by which chunks come and go must not cost more than so much of the best in which all stay where they are: what moves
/// cost, and which of them there have to be, is less certain than what it costs to stay.
const BEYOND: f64 = 0.5;
/// Seconds a byte of a move: the copy, and the mappings, which take longer for the host's memory. Measured on an H200 in
/// pieces of 20 MiB, in steps of BERT-large within 12 GiB: one that goes and one that comes take 0.95 ms, and 0.46 to 0.57
/// ms if that which goes was copied ahead. Plans at the latter price keep less than they promise: 0.76 is what they do keep.
const OUT: f64 = 0.59e-3 / PIECE;
const READY: f64 = 0.40e-3 / PIECE;
const BACK: f64 = 0.36e-3 / PIECE;
const PIECE: f64 = (20 << 20) as f64;
/// So much of what is there stays free, for what comes while something goes: a part, and bytes at most.
const SLACK: (u64, u64) = (32, 512 << 20);

/// Each twice as long as the one before, up to the last.
struct Pauses {
    first: Duration,
    last: Duration,
    before: AtomicU32,
}

impl Pauses {
    const fn new(first: Duration, last: Duration) -> Self {
        Self { first, last, before: AtomicU32::new(0) }
    }

    fn begin_anew(&self) {
        self.before.store(0, Ordering::Relaxed);
    }

    fn next(&self) -> Duration {
        let before = self.before.fetch_add(1, Ordering::Relaxed);
        self.first.saturating_mul(2_u32.saturating_pow(before)).min(self.last)
    }
}

/// What is to be done before the launch that is about to be made.
pub(crate) enum Due {
    /// A round begins, and perhaps the period.
    Round(Arc<Schedule>, (usize, bool)),
    /// Half of a round is over.
    Halfway(Arc<Schedule>, usize),
    /// Chunks on the host are wanted.
    Demand(Wanted),
}

/// Something was put on the host of which no plan knows.
pub(crate) fn spilled() {
    IS_STALE.store(true, Ordering::Relaxed);
}

/// Something is on the host from now on.
pub(crate) fn watch() {
    lock(&REUSE).get_or_insert_with(|| Box::new(Reuse::new()));
    let mut mode = lock(&MODE);
    if matches!(*mode, Mode::Idle(None)) {
        *mode = Mode::Watching(Box::new(Sequence::new()));
    }
}

/// Of so many bytes of a device that are there for chunks so many stay free.
fn slack(bytes: u64) -> u64 {
    (bytes / SLACK.0).min(SLACK.1)
}

/// Whether a plan is carried out.
#[inline]
pub(crate) fn follows() -> bool {
    FOLLOWS.load(Ordering::Relaxed)
}

/// Whether chunks are moved to and fro here, so that nothing else should.
pub(crate) fn is_busy() -> bool {
    let fetched = demand::was_busy();
    fetched || follows()
}

/// A launch is about to be made. One that several threads make at the same moment may be missed.
#[inline]
pub(crate) fn launched(
    function: Function,
    (grid, passes): ([u32; 3], u32),
    addresses: &[u64],
    mut wanted: Wanted,
) -> Option<Due> {
    let fetches = FETCHES.load(Ordering::Relaxed);
    let blocks = grid.iter().fold(1_u64, |blocks, size| blocks.saturating_mul(u64::from(*size)));
    if fetches
        && let Ok(mut reuse) = REUSE.try_lock()
        && let Some(reuse) = &mut *reuse
    {
        reuse.launched(function, (blocks, passes), addresses, TEMPERATURE.rest(), &mut wanted);
    }
    let demand = |wanted: Wanted| (fetches && !wanted.is_empty()).then_some(Due::Demand(wanted));
    let mut mode = match MODE.try_lock() {
        Ok(mode) => mode,
        Err(TryLockError::Poisoned(mode)) => mode.into_inner(),
        Err(TryLockError::WouldBlock) => return demand(wanted),
    };
    let kind = grid.iter().fold(mixed(0, function.0 as u64), |kind, size| mixed(kind, u64::from(*size)));
    let signature = addresses.iter().fold(kind, |signature, address| mixed(signature, *address));
    match &mut *mode {
        Mode::Watching(sequence) => {
            let call = Call { kind, function: function.0 as u64, blocks, passes };
            if sequence.note(signature, call, addresses) {
                let Mode::Watching(sequence) = std::mem::replace(&mut *mode, Mode::Planning) else { return None };
                *mode = Mode::Found(sequence);
                drop(mode);
                state::get().gate.ring();
            }
            demand(wanted)
        }
        Mode::Following(following) => match following.launched(signature) {
            Step::On => None,
            Step::Round { begins_anew: true, .. } if IS_STALE.load(Ordering::Relaxed) => {
                lost(&mut mode);
                None
            }
            Step::Round { round, begins_anew } => Some(Due::Round(following.schedule(), (round, begins_anew))),
            Step::Halfway(round) => Some(Due::Halfway(following.schedule(), round)),
            Step::Lost => {
                lost(&mut mode);
                None
            }
            Step::Useless => {
                give_up(&mut mode, USELESS.next());
                None
            }
        },
        Mode::Idle(_) | Mode::Found(_) | Mode::Planning => demand(wanted),
    }
}

/// Does it. The caller is outside the gate.
pub(crate) fn carry_out(state: &'static State, due: &Due) {
    let (schedule, (round, begins_anew)) = match due {
        Due::Round(schedule, round) => (schedule, *round),
        Due::Halfway(schedule, round) => return schedule.prepare(state, *round, true),
        Due::Demand(wanted) => return demand::fetch(state, wanted),
    };
    let looks = begins_anew && schedule.is_time_to_look();
    let is_done = schedule.carry_out(state, round, looks);
    schedule.prepare(state, round, false);
    if looks && schedule.is_outgrown(state) {
        IS_STALE.store(true, Ordering::Relaxed);
    }
    if !is_done {
        let mut mode = lock(&MODE);
        if let Mode::Following(following) = &mut *mode
            && following.failed()
        {
            give_up(&mut mode, USELESS.next());
        }
    }
}

/// Of a plan that is carried out no more, or was none.
fn give_up(mode: &mut Mode, pause: Duration) {
    *mode = Mode::Idle(Some((Instant::now(), pause)));
    FOLLOWS.store(false, Ordering::Relaxed);
    // It was faster without, or nothing is known of what the program does now.
    FETCHES.store(true, Ordering::Relaxed);
}

/// The plan was for something else than what the program does now.
fn lost(mode: &mut Mode) {
    if let Mode::Following(following) = mode
        && following.is_proven()
    {
        LOST.begin_anew();
    }
    give_up(mode, LOST.next());
}

/// From the thread that looks after things: plans if there is something to plan for, or begins to watch again.
pub(crate) fn look(state: &'static State) {
    let mut mode = lock(&MODE);
    match &*mode {
        Mode::Idle(Some((since, pause))) if since.elapsed() >= *pause => {
            *mode = Mode::Watching(Box::new(Sequence::new()));
            FETCHES.store(true, Ordering::Relaxed);
        }
        Mode::Idle(Some(_)) if IS_STALE.swap(false, Ordering::Relaxed) => FETCHES.store(true, Ordering::Relaxed),
        Mode::Found(_) => {
            let Mode::Found(sequence) = std::mem::replace(&mut *mode, Mode::Planning) else { return };
            drop(mode);
            let plans = move || {
                let planned = sequence.period(LEAST).and_then(|period| plan(state, &period));
                drop(sequence);
                begin(planned);
            };
            if std::thread::Builder::new().name("gpuheap plan".to_owned()).spawn(plans).is_err() {
                begin(None);
            }
        }
        _ => {}
    }
}

fn begin(planned: Option<Following>) {
    let mut mode = lock(&MODE);
    match planned {
        Some(following) => {
            *mode = Mode::Following(Box::new(following));
            FOLLOWS.store(true, Ordering::Relaxed);
        }
        None => give_up(&mut mode, USELESS.next()),
    }
    // All is where it should be, or will be by the plan.
    FETCHES.store(false, Ordering::Relaxed);
}

/// Plans for a period; nothing if it would save nothing.
fn plan(state: &'static State, period: &Period) -> Option<Following> {
    // What ends in an exported function here is this library's own.
    let _inside = crate::depth::Inside::enter();
    IS_STALE.store(false, Ordering::Relaxed);
    let (mut now, mut moves, mut stays) = (0.0, Rows::default(), Rows::default());
    let all = by_device(|backing| matches!(backing, Backing::Device(_) | Backing::Host(_)));
    // What the program frees meanwhile is not to be kept.
    let placed = |chunks: Vec<Arc<Chunk>>| chunks.iter().filter_map(Placed::of).collect();
    let all: Vec<(DeviceId, Vec<Placed>)> = all.into_iter().map(|(device, chunks)| (device, placed(chunks))).collect();
    for (device, mut placed) in all {
        placed.sort_unstable_by_key(|placed| placed.range.start);
        let ranges: Vec<Range> = placed.iter().map(|placed| placed.range).collect();
        let mut usages = extents::usages(period, &ranges);
        for usage in &mut usages {
            (usage.out, usage.ready, usage.back) = (usage.bytes * OUT, usage.bytes * READY, usage.bytes * BACK);
        }
        let here: u64 = placed.iter().filter(|placed| placed.is_here).map(|placed| placed.range.bytes).sum();
        let place = devices::place(Some(device));
        let Some(free) = state.ledger.room(place) else { continue };
        let room = here + free;
        let row = |placed: &Placed| if placed.is_here { schedule::Row::MAX } else { 0 };
        now += usages.iter().zip(&placed).map(|(usage, placed)| usage.cost(row(placed))).sum::<f64>();
        moves.add(&placed, &usages, schedule::plan(&usages, room.saturating_sub(slack(room)) as f64));
        stays.add(&placed, &usages, schedule::staying(&usages, room as f64));
    }
    let best = if moves.cost < BEYOND * stays.cost { moves } else { stays };
    let is_worth_it = now - best.cost > WORTH * period.seconds;
    is_worth_it.then(|| Following::new(period, Schedule::new(best.entries), Trial::new(period.seconds)))
}

/// A plan for all devices, and what it costs in seconds a period.
#[derive(Default)]
struct Rows {
    entries: Vec<Entry>,
    cost: f64,
}

impl Rows {
    fn add(&mut self, placed: &[Placed], usages: &[Usage], plan: schedule::Plan) {
        let rows = usages.iter().zip(plan.rows);
        let entry = |(placed, (usage, row)): (&Placed, (&Usage, _))| placed.entry(row, usage.used());
        let entries = placed.iter().zip(rows).map(entry);
        self.entries.extend(entries);
        self.cost += plan.cost;
    }
}

/// Where a chunk is.
struct Placed {
    chunk: Weak<Chunk>,
    device: DeviceId,
    range: Range,
    is_here: bool,
}

impl Placed {
    fn of(chunk: &Arc<Chunk>) -> Option<Self> {
        let start = chunk.inner().address?.0 as u64;
        let range = Range { start, bytes: chunk.bytes as u64 };
        Some(Self { chunk: Arc::downgrade(chunk), device: chunk.device, range, is_here: !chunk.is_spilled() })
    }

    fn entry(&self, row: schedule::Row, used: schedule::Row) -> Entry {
        Entry::new(Weak::clone(&self.chunk), self.device, row, used)
    }
}

/// A step of a hash (Fibonacci's multiplier, with the upper bits brought down).
#[inline]
fn mixed(hash: u64, value: u64) -> u64 {
    let product = (hash.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 29
}
