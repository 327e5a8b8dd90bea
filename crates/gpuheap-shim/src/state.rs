//! What is alive in this process.
//!
//! Tables are behind locks that are never held across a call of the driver. What is freed is taken out before the driver
//! is called and put back if it refuses: afterwards another thread may have got the same address.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use gpuheap_cuda::raw::DeviceId;

use crate::charge::Charge;
use crate::gate::Gate;
use crate::ledger::{Ledger, Limits};
use crate::moving::Moving;
use crate::paging::Paging;
use crate::waiter::Waiter;
use crate::{control, converted, graphs, host, ipc};

/// What is known by its address or its handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Key {
    /// Memory.
    Address(usize),
    /// An array of either sort.
    Array(usize),
    /// Memory of another interface.
    External(usize),
}

/// Something alive.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) charge: Charge,
    /// The context that takes it along when it ends; 0 if there is none.
    pub(crate) context: usize,
}

type Shard = HashMap<Key, Allocation, BuildHasherDefault<DefaultHasher>>;

const SHARDS: usize = 64;

/// All of it.
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    shards: Box<[Mutex<Shard>]>,
    pub(crate) paging: Mutex<Paging>,
    /// Pools by handle.
    pub(crate) pools: Mutex<BTreeMap<usize, Charge>>,
    /// What devices hold for graphs.
    pub(crate) graphs: Mutex<BTreeMap<DeviceId, Charge>>,
    /// Primary contexts, as far as this process asked for them.
    pub(crate) primaries: Mutex<BTreeMap<DeviceId, usize>>,
    /// Contexts that were current when something was allocated.
    contexts: Mutex<BTreeSet<usize>>,
    /// `cuMemAlloc` in chunks.
    pub(crate) converted: Mutex<converted::Table>,
    /// Memory of other processes of the run.
    pub(crate) opened: Mutex<ipc::Table>,
    /// What graphs use that can be launched.
    pub(crate) graph_uses: Mutex<graphs::Table>,
    /// What moving memory needs.
    pub(crate) moving: OnceLock<Option<Moving>>,
    /// What all work for devices passes.
    pub(crate) gate: Gate,
    /// Whose turn it is to move memory.
    pub(crate) turn: Mutex<Waiter>,
    /// Streams on which graphs are being recorded, and how many there are.
    captures: Mutex<BTreeSet<usize>>,
    capturing: AtomicUsize,
    /// Whether the thread that listens to commands was started.
    pub(crate) listens: AtomicBool,
}

static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());
static MAKING: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);

/// The state, made when it is first asked for.
pub(crate) fn get() -> &'static State {
    #[cfg(test)]
    if let Some(own) = crate::rig::state() {
        return own;
    }
    loop {
        let found = STATE.load(Ordering::Acquire);
        if !found.is_null() {
            // SAFETY: leaked when it was made.
            return unsafe { &*found };
        }
        // One makes it, and a child of a fork meanwhile starts again: no lock could do that.
        if MAKING.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            if !ASKED.swap(true, Ordering::Relaxed) {
                // SAFETY: the function is this library's, which is never unloaded.
                unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
            }
            // Between the look above and here another thread may have made it, and been done.
            if STATE.load(Ordering::Acquire).is_null() {
                STATE.store(Box::leak(Box::new(State::new())), Ordering::Release);
            }
            MAKING.store(false, Ordering::Release);
        } else {
            thread::yield_now();
        }
    }
}

/// In the child of a fork: all is given up as it is, locks included. The driver does not work there, so nothing of it is
/// alive; if the child runs another driver one day, it counts in a slot of its own.
unsafe extern "C" fn after_fork() {
    control::after_fork();
    STATE.store(std::ptr::null_mut(), Ordering::Release);
    MAKING.store(false, Ordering::Release);
}

/// A lock, whatever happened to others that had it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn new() -> Self {
        let path = std::env::var_os("GPUHEAP_LEDGER").map(PathBuf::from);
        let setting = |name| std::env::var(name).ok();
        let budget = setting("GPUHEAP_BUDGET").and_then(|text| text.parse().ok()).unwrap_or(0);
        let spill = setting("GPUHEAP_SPILL").map_or(0, |text| host::limit(&text));
        Self::with(Ledger::open(path.as_deref(), Limits { budget, spill }))
    }

    /// With nothing in it.
    pub(crate) fn with(ledger: Ledger) -> Self {
        Self {
            ledger,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            paging: Mutex::default(),
            pools: Mutex::default(),
            graphs: Mutex::default(),
            primaries: Mutex::default(),
            contexts: Mutex::default(),
            converted: Mutex::default(),
            opened: Mutex::default(),
            graph_uses: Mutex::default(),
            moving: OnceLock::new(),
            gate: Gate::new(),
            turn: Mutex::default(),
            captures: Mutex::default(),
            capturing: AtomicUsize::new(0),
            listens: AtomicBool::new(false),
        }
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        let number = usize::try_from(hash % SHARDS as u64).unwrap_or(0);
        lock(&self.shards[number])
    }

    /// Enters something alive.
    pub(crate) fn put(&self, key: Key, allocation: Allocation) {
        let (Key::Address(address) | Key::Array(address) | Key::External(address)) = key;
        allocation.charge.at(address);
        let former = self.shard(key).insert(key, allocation);
        // If there was one, the driver freed it without being asked.
        drop(former);
    }

    /// Takes it out.
    pub(crate) fn take(&self, key: Key) -> Option<Allocation> {
        self.shard(key).remove(&key)
    }

    /// Notes that a context is used.
    pub(crate) fn note_context(&self, context: usize) {
        let mut contexts = lock(&self.contexts);
        if !contexts.contains(&context) {
            contexts.insert(context);
        }
    }

    /// Forgets one that is gone.
    pub(crate) fn forget_context(&self, context: usize) {
        lock(&self.contexts).remove(&context);
    }

    /// All contexts that may have work under way.
    pub(crate) fn contexts(&self) -> BTreeSet<usize> {
        let mut contexts = lock(&self.contexts).clone();
        contexts.extend(lock(&self.primaries).values());
        contexts
    }

    /// The recording of a graph began on a stream.
    pub(crate) fn capture_began(&self, stream: usize) {
        let mut streams = lock(&self.captures);
        streams.insert(stream);
        self.capturing.store(streams.len(), Ordering::SeqCst);
    }

    /// It ended, or the stream is gone. Tells whether no other is under way.
    pub(crate) fn capture_ended(&self, stream: usize) -> bool {
        let mut streams = lock(&self.captures);
        let was_there = streams.remove(&stream);
        self.capturing.store(streams.len(), Ordering::SeqCst);
        was_there && streams.is_empty()
    }

    /// All ended, as their context is gone.
    pub(crate) fn captures_ended(&self) {
        lock(&self.captures).clear();
        self.capturing.store(0, Ordering::SeqCst);
    }

    /// Graphs that are being recorded.
    pub(crate) fn captures(&self) -> usize {
        self.capturing.load(Ordering::SeqCst)
    }

    /// Takes all out that a context takes along.
    pub(crate) fn drop_context(&self, context: usize) {
        self.forget_context(context);
        self.captures_ended();
        converted::drop_context(context);
        ipc::drop_context(context);
        for shard in &self.shards {
            lock(shard).retain(|_, allocation| allocation.context != context);
        }
    }
}
