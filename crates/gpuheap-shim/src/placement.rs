//! Which chunks are on the device when not all can be: those that kernels use most.
//!
//! The arguments of launches say which chunks are used and how often. Now and then, when the program waits for the device
//! anyway or after some time without that, the chunks on the host are compared with those on the device, and change
//! places where that pays: reaching the host's memory costs some seventy times what reaching the device's costs, and
//! a change of places costs two copies and two mappings.
//!
//! A launch points to where a tensor begins, not to how long it is. So the bytes of a chunk that launches used are
//! estimated: tensors that begin in a chunk share it, and the last one goes on through the following chunks up to the
//! next one in which a tensor begins.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use gpuheap_cuda::raw::{DeviceId, Function, GraphExec};
use gpuheap_ledger::State as Phase;

use crate::chunks::{Backing, Chunk};
use crate::feedback::{Advice, Feedback};
use crate::moving::{self, Moving};
use crate::parameters::KERNELS;
use crate::passes::{self, PASSES};
use crate::ranges::CHUNKS;
use crate::sleep::{by_device, mover, phase, still};
use crate::state::{self, State, lock};
use crate::swap::{Due, Wanted};
use crate::temperature::TEMPERATURE;
use crate::touched::{Arguments, is_of_tensor, touched};
use crate::{devices, graphs, quiet, real, swap};

/// How long launches are counted before chunks are compared again.
const WINDOW: Duration = Duration::from_millis(700);
/// How much later without a moment at which the program waits.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long the program may be held back until the device is idle.
const SETTLE: Duration = Duration::from_millis(500);
/// Bytes a second between host and device, by kernels as by copies. Measured on an H200: 51 to 55 GB/s.
const LINK: f64 = 50e9;
/// Seconds a byte that a move costs beside its copy: mappings.
const REMAP: f64 = 15e-3 / (1 << 30) as f64;
/// A change of places has to be worth so many times its cost.
const MARGIN: f64 = 1.5;
/// It is expected to be of use for as long as the program has been watched, within these bounds.
const HORIZON: std::ops::RangeInclusive<f64> = 1.0..=20.0;

/// Whether anything is on the host, so that launches have to be looked at.
static WATCHING: AtomicBool = AtomicBool::new(false);
/// Nanoseconds from the first look to the last comparison.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The last change, until it is known whether it was of use.
static FEEDBACK: Mutex<Feedback<Vec<(DeviceId, Undo)>>> = Mutex::new(Feedback::new());

/// Something was put on the host: from now on launches are looked at.
pub(crate) fn watch() {
    if !WATCHING.swap(true, Ordering::Relaxed) {
        swap::watch();
        LAST.store(now(), Ordering::Relaxed);
        state::get().gate.ring();
    }
}

/// A kernel is about to be launched, on a grid of so many blocks. Tells if a round of [`crate::swap`] begins with it.
#[inline]
pub(crate) fn launched(arguments: Arguments, grid: impl FnOnce() -> [u32; 3]) -> Option<Due> {
    if WATCHING.load(Ordering::Relaxed) { note(arguments, grid()) } else { None }
}

/// A graph is about to be launched. Likewise.
#[inline]
pub(crate) fn graph_launched(graph: GraphExec) -> Option<Due> {
    if !WATCHING.load(Ordering::Relaxed) {
        return None;
    }
    let uses = graphs::uses(graph)?;
    let launch = TEMPERATURE.launch();
    let mut wanted = Wanted::default();
    let named = || uses.all.iter().filter_map(|used| Some((CHUNKS.find(used.address)?, used)));
    for (chunk, used) in named() {
        if TEMPERATURE.touch(chunk, launch, used.address, used.times) {
            wanted.add(chunk);
        }
        TEMPERATURE.weigh(chunk, launch, used.times);
    }
    let recent = TEMPERATURE.recent(launch);
    // Of a program that has launched little nothing was named for long: it would be taken for granted that a graph uses all
    // that there is, and nothing could make room.
    if !swap::follows() && recent > 0 {
        for (chunk, used) in named() {
            TEMPERATURE.go_on(chunk, (launch, used.times, recent), &CHUNKS, |next| wanted.add(next));
        }
    }
    swap::launched(Function(graph.0), ([0; 3], 1), &uses.addresses, wanted)
}

/// Addresses of a launch that are looked at; those of lists of tensors are some hundred.
const ADDRESSES: usize = 512;
/// More are lists of tensors.
const FEW: usize = 16;

fn note(arguments: Arguments, grid: [u32; 3]) -> Option<Due> {
    if state::get().captures() > 0 {
        // It is recorded and does not run, unless it is another thread's; and nothing could be fetched for it.
        return None;
    }
    let launch = TEMPERATURE.launch();
    let parameter = |number| real::parameter(arguments.function, number);
    let is_product = || real::name_is(arguments.function, passes::is_product);
    let times = passes::of_grid(PASSES.of(arguments.function.0, is_product), grid);
    // Not filled with zeros: that would take as long as all the rest.
    let mut addresses = [const { MaybeUninit::<u64>::uninit() }; ADDRESSES];
    let (mut count, mut wanted) = (0, Wanted::default());
    let touch = |chunk, address| {
        if !is_of_tensor(address, &CHUNKS) {
            return false;
        }
        if TEMPERATURE.touch(chunk, launch, address, times) {
            wanted.add(chunk);
        }
        if let Some(place) = addresses.get_mut(count) {
            place.write(address);
            count += 1;
        }
        true
    };
    // SAFETY: the program's own arguments, which the driver reads next.
    unsafe { touched(arguments, (&KERNELS, &CHUNKS), parameter, touch) };
    // SAFETY: so many were written.
    let addresses = unsafe { std::slice::from_raw_parts(addresses.as_ptr().cast::<u64>(), count) };
    if !swap::follows() {
        let recent = TEMPERATURE.recent(launch);
        for address in addresses {
            let Some(chunk) = CHUNKS.find(*address) else { continue };
            // Only the last tensor of a chunk can go on. Those of lists are small in most cases.
            let end = TEMPERATURE.end(chunk);
            if addresses.len() > FEW || addresses.iter().any(|other| *other > *address && *other < end) {
                continue;
            }
            TEMPERATURE.go_on(chunk, (launch, times, recent), &CHUNKS, |next| wanted.add(next));
        }
    }
    swap::launched(arguments.function, (grid, times), addresses, wanted)
}

/// The program waited for the device: much of it, if not all, is at rest.
#[inline]
pub(crate) fn at_rest() {
    if !WATCHING.load(Ordering::Relaxed) {
        return;
    }
    TEMPERATURE.rested();
    if since_last() > WINDOW {
        compare(state::get());
    }
}

/// How long nobody need ask [`overdue`].
pub(crate) fn next_look() -> Option<Duration> {
    WATCHING.load(Ordering::Relaxed).then_some(PATIENCE / 3)
}

/// Compares if that has not been done for long.
pub(crate) fn overdue(state: &'static State) {
    if WATCHING.load(Ordering::Relaxed) {
        swap::look(state);
        if since_last() > WINDOW + PATIENCE {
            compare(state);
        }
    }
}

fn now() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn since_last() -> Duration {
    Duration::from_nanos(now().saturating_sub(LAST.load(Ordering::Relaxed)))
}

/// A chunk, and bytes a second of it that kernels use.
struct Used {
    chunk: Arc<Chunk>,
    rate: f64,
}

impl Used {
    /// Of each of its bytes, so that chunks of different sizes compare.
    fn density(&self) -> f64 {
        self.rate / self.chunk.bytes as f64
    }
}

/// Compares chunks on the host with those on the device, and lets them change places where that pays.
fn compare(state: &'static State) {
    if swap::is_busy() {
        // What others move is not to be judged as if it had been moved here, nor by launches that they made fast or slow.
        launches_since_last();
        lock(&FEEDBACK).forget();
        LAST.store(now(), Ordering::Relaxed);
        return;
    }
    let Some(moving) = moving::get() else { return };
    let Some(mut turn) = quiet::try_turn(&state.turn) else { return };
    if phase(state) != Phase::Running {
        return;
    }
    let window = since_last().as_secs_f64();
    if window < WINDOW.as_secs_f64() {
        // Somebody else did it meanwhile.
        return;
    }
    let launches = launches_since_last();
    let advice = lock(&FEEDBACK).judge(launches, window);
    let all = by_device(|backing| matches!(backing, Backing::Device(_) | Backing::Host(_)));
    // Of all in any case, as the mean of what is used goes on.
    let used = all.into_iter().map(|(device, chunks)| (device, used(chunks, window))).collect::<Vec<_>>();
    TEMPERATURE.turn();
    LAST.store(now(), Ordering::Relaxed);
    let (plans, is_new) = match advice {
        Advice::Wait => return,
        Advice::Undo(undo) => (undo.iter().map(|(device, undo)| (*device, undo.plan())).collect::<Plans>(), false),
        Advice::Try => {
            (used.into_iter().map(|(device, used)| (device, plan(state, device, used))).collect::<Plans>(), true)
        }
    };
    if plans.iter().all(|(_, plan)| plan.comes.is_empty()) {
        return;
    }
    let Ok(closed) = quiet::settle(moving, state, &mut turn, SETTLE) else { return };
    let undo = plans.iter().map(|(device, plan)| (*device, plan.undo())).collect();
    carry_out(moving, state, plans);
    drop(closed);
    // The move itself is not part of the next window.
    LAST.store(now(), Ordering::Relaxed);
    if is_new {
        lock(&FEEDBACK).made(launches, window, undo);
    }
}

fn carry_out(moving: &'static Moving, state: &State, plans: Plans) {
    for (device, plan) in plans {
        let Ok(Some(mover)) = mover(moving, device) else { continue };
        let (out, back) = mover.exchange(&still(plan.goes, false), &still(plan.comes, true));
        state.ledger.moved(out.bytes, back.bytes);
    }
}

/// Launches since this was last asked.
fn launches_since_last() -> f64 {
    static BEFORE: AtomicU64 = AtomicU64::new(0);
    let now = TEMPERATURE.launches();
    now.saturating_sub(BEFORE.swap(now, Ordering::Relaxed)) as f64
}

/// How much of each chunk kernels used, a second. The chunks are in the order of their addresses.
fn used(chunks: Vec<Arc<Chunk>>, window: f64) -> Vec<Used> {
    let place = |chunk: &Chunk| chunk.inner().address.map_or(0, |address| address.0);
    let mut chunks: Vec<(usize, Arc<Chunk>)> = chunks.into_iter().map(|chunk| (place(&chunk), chunk)).collect();
    chunks.sort_unstable_by_key(|(address, _)| *address);
    // The tensor that goes on from the chunk before: where that ends, and how often it was used.
    let (mut end, mut going_on) = (0, 0.0);
    let mut all = Vec::with_capacity(chunks.len());
    for (address, chunk) in chunks {
        let heat = TEMPERATURE.heat(chunk.number);
        let before = if address == end { going_on } else { 0.0 };
        let (touches, bytes) = (f64::from(heat.touches_this_window), chunk.bytes as f64);
        // What goes on from before has a share as those have that begin here.
        let tensors = heat.starts + if before > 0.0 { 1.0 } else { 0.0 };
        let rate = if touches > 0.0 { (touches + before) * bytes / tensors.max(1.0) } else { before * bytes };
        going_on = if touches > 0.0 { f64::from(heat.top_touches) } else { before };
        end = address + chunk.bytes;
        all.push(Used { rate: chunk.warmth(rate / window), chunk });
    }
    all
}

/// What is to move.
#[derive(Debug, Default)]
struct Plan {
    goes: Vec<Arc<Chunk>>,
    comes: Vec<Arc<Chunk>>,
}

type Plans = Vec<(DeviceId, Plan)>;

impl Plan {
    /// What undoes it.
    fn undo(&self) -> Undo {
        let of = |chunks: &[Arc<Chunk>]| chunks.iter().map(Arc::downgrade).collect();
        Undo { goes: of(&self.comes), comes: of(&self.goes) }
    }
}

/// What undoes a plan, without keeping chunks alive that the program has freed meanwhile.
#[derive(Debug, Default)]
struct Undo {
    goes: Vec<Weak<Chunk>>,
    comes: Vec<Weak<Chunk>>,
}

impl Undo {
    fn plan(&self) -> Plan {
        let of = |chunks: &[Weak<Chunk>]| chunks.iter().filter_map(Weak::upgrade).collect();
        Plan { goes: of(&self.goes), comes: of(&self.comes) }
    }
}

/// The hottest of the host's chunks come as long as they are worth it, and the coldest of the device's make room.
fn plan(state: &State, device: DeviceId, used: Vec<Used>) -> Plan {
    let (mut host, mut here): (Vec<Used>, Vec<Used>) = used.into_iter().partition(|used| used.chunk.is_spilled());
    if host.is_empty() {
        return Plan::default();
    }
    host.sort_by(|one, other| other.density().total_cmp(&one.density()));
    here.sort_by(|one, other| one.density().total_cmp(&other.density()));
    let horizon = (now() as f64 / 1e9).clamp(*HORIZON.start(), *HORIZON.end());
    let place = devices::place(Some(device));
    let mut room = state.ledger.room(place).unwrap_or(u64::MAX);
    let mut plan = Plan::default();
    let mut coldest = here.into_iter().peekable();
    for hot in host {
        let bytes = hot.chunk.bytes as u64;
        let (mut lost, mut moved, mut goes, mut free) = (0.0, hot.chunk.bytes as f64, Vec::new(), room);
        while free < bytes {
            let Some(cold) = coldest.next_if(|cold| cold.density() < hot.density()) else { break };
            free += cold.chunk.bytes as u64;
            lost += cold.rate;
            moved += cold.chunk.bytes as f64;
            goes.push(cold.chunk);
        }
        let gained = (hot.rate - lost) / LINK * horizon;
        let cost = moved * (1.0 / LINK + REMAP);
        if free < bytes || gained < cost * MARGIN {
            break;
        }
        room = free - bytes;
        plan.goes.append(&mut goes);
        plan.comes.push(hot.chunk);
    }
    plan
}
