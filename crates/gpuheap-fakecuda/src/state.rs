//! All that the driver knows, under one lock, and the objects that it gave out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use gpuheap_cuda::raw::Code;

use crate::arena::Arena;
use crate::config::Config;
use crate::crossing::Crossing;
use crate::graph::Graph;
use crate::kernel::{Function, Module};
use crate::pool::Pool;
use crate::space::Space;
use crate::work::Stream;

/// All of it.
pub(crate) struct State {
    pub(crate) config: Config,
    /// The process that initialised the driver. A child of it has no driver.
    pub(crate) process: Option<u32>,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: BTreeMap<usize, Context>,
    pub(crate) streams: BTreeMap<usize, Stream>,
    pub(crate) events: BTreeMap<usize, Event>,
    pub(crate) space: Space,
    pub(crate) pools: BTreeMap<usize, Pool>,
    pub(crate) modules: BTreeMap<usize, Module>,
    pub(crate) functions: BTreeMap<usize, Function>,
    pub(crate) arrays: BTreeMap<usize, ArrayState>,
    pub(crate) graphs: BTreeMap<usize, Graph>,
    pub(crate) execs: BTreeMap<usize, Graph>,
    pub(crate) crossing: Crossing,
    /// Default streams of threads: context, thread, stream.
    pub(crate) threads: Vec<(usize, std::thread::ThreadId, usize)>,
    next: usize,
}

/// A device.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// Bytes that are taken.
    pub(crate) used: usize,
    /// Its primary context, once there was one. The handle stays the same.
    pub(crate) primary: Option<usize>,
    /// The pool that stream-ordered allocations without one come from, once asked for.
    pub(crate) default_pool: Option<usize>,
    /// The pool that took its place.
    pub(crate) current_pool: Option<usize>,
}

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    /// What no other has or had, nor this one before it was reset.
    pub(crate) id: u64,
    pub(crate) primary: bool,
    /// Retentions of a primary context; 1 for another, as long as it is there.
    pub(crate) references: usize,
    /// Set by work that failed: from then on every call fails with it.
    pub(crate) failed: Option<Code>,
    /// Its default stream.
    pub(crate) legacy: usize,
    /// Small allocations.
    pub(crate) small: Arena,
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: usize,
    pub(crate) timed: bool,
    /// The stream that it was recorded in, and the last piece of work before it.
    pub(crate) recorded: Option<(usize, u64)>,
    pub(crate) reached: Option<std::time::Instant>,
}

/// An array: opaque, no more than its bytes.
#[derive(Debug)]
pub(crate) struct ArrayState {
    pub(crate) context: usize,
    pub(crate) device: usize,
    pub(crate) bytes: usize,
    pub(crate) wanted: gpuheap_cuda::raw::Array3dDesc,
    pub(crate) levels: u32,
}

static STATE: Mutex<State> = Mutex::new(State {
    config: Config::new(),
    process: None,
    devices: Vec::new(),
    contexts: BTreeMap::new(),
    streams: BTreeMap::new(),
    events: BTreeMap::new(),
    space: Space::new(),
    pools: BTreeMap::new(),
    modules: BTreeMap::new(),
    functions: BTreeMap::new(),
    arrays: BTreeMap::new(),
    graphs: BTreeMap::new(),
    execs: BTreeMap::new(),
    crossing: Crossing::new(),
    threads: Vec::new(),
    next: 0x7100_0000_0000,
});

/// Told whenever a piece of work is finished or given.
pub(crate) static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// The calling thread's contexts, the current one last.
    pub(crate) static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The state, initialised or not.
pub(crate) fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of an initialised driver.
pub(crate) fn ready() -> Result<MutexGuard<'static, State>, Code> {
    let state = lock();
    if state.process == Some(std::process::id()) { Ok(state) } else { Err(Code::NOT_INITIALIZED) }
}

/// Waits for a change.
pub(crate) fn wait(guard: MutexGuard<'static, State>) -> MutexGuard<'static, State> {
    CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// A handle that nothing has or had.
    pub(crate) fn handle(&mut self) -> usize {
        self.next += 0x10;
        self.next
    }

    /// The calling thread's context.
    pub(crate) fn current(&self) -> Result<usize, Code> {
        let handle = CURRENT.with_borrow(|stack| stack.last().copied()).ok_or(Code::INVALID_CONTEXT)?;
        self.usable(handle)?;
        Ok(handle)
    }

    /// The calling thread's context, and its device.
    pub(crate) fn current_device(&self) -> Result<(usize, usize), Code> {
        let context = self.current()?;
        Ok((context, self.context(context)?.device))
    }

    /// A context that is there.
    pub(crate) fn context(&self, handle: usize) -> Result<&Context, Code> {
        let context = self.contexts.get(&handle).ok_or(Code::INVALID_CONTEXT)?;
        if context.references == 0 { Err(Code::CONTEXT_IS_DESTROYED) } else { Ok(context) }
    }

    /// The error of a context that is gone or failed.
    pub(crate) fn usable(&self, handle: usize) -> Result<(), Code> {
        self.context(handle)?.failed.map_or(Ok(()), Err)
    }

    /// A device that is there.
    pub(crate) fn device(&self, id: i32) -> Result<usize, Code> {
        let device = usize::try_from(id).map_err(|_| Code::INVALID_DEVICE)?;
        if device < self.devices.len() { Ok(device) } else { Err(Code::INVALID_DEVICE) }
    }

    /// Takes memory of a device.
    pub(crate) fn charge(&mut self, device: usize, bytes: usize) -> Result<(), Code> {
        let used = self.devices[device].used.checked_add(bytes).ok_or(Code::OUT_OF_MEMORY)?;
        if used > self.config.limit(device) {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.devices[device].used = used;
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn refund(&mut self, device: usize, bytes: usize) {
        self.devices[device].used -= bytes;
    }
}
