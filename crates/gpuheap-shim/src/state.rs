//! What is alive in this process.
//!
//! Tables are behind locks that are never held across a call of the driver. What is freed is taken out before the driver
//! is called and put back if it refuses: afterwards another thread may have got the same address.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use gpuheap_cuda::raw::DeviceId;

use crate::charge::Charge;
use crate::ledger::Ledger;
use crate::paging::Paging;

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
}

static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());
static MAKING: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);

/// The state, made when it is first asked for.
pub(crate) fn get() -> &'static State {
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
            STATE.store(Box::leak(Box::new(State::new())), Ordering::Release);
            MAKING.store(false, Ordering::Release);
        } else {
            thread::yield_now();
        }
    }
}

/// In the child of a fork: all is given up as it is, locks included. The driver does not work there, so nothing of it is
/// alive; if the child runs another driver one day, it counts in a slot of its own.
unsafe extern "C" fn after_fork() {
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
        let budget = std::env::var("GPUHEAP_BUDGET").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        Self {
            ledger: Ledger::open(path.as_deref(), budget),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            paging: Mutex::default(),
            pools: Mutex::default(),
            graphs: Mutex::default(),
            primaries: Mutex::default(),
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

    /// Takes all out that a context takes along.
    pub(crate) fn drop_context(&self, context: usize) {
        for shard in &self.shards {
            lock(shard).retain(|_, allocation| allocation.context != context);
        }
    }
}
