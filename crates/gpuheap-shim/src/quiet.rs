//! Making sure that nothing runs on the devices: the gate is closed, and all that was begun is finished.

use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpuheap_cuda::raw::{Code, Context};

use crate::depth::Inside;
use crate::gate::Closed;
use crate::moving::Moving;
use crate::state::{self, State, lock};

/// Whoever has this may close the gate and move memory.
pub(crate) type Turn<'a> = MutexGuard<'a, Waiter>;

/// Waits for devices, on a thread of its own: the driver's wait has no end of its own, and work that waits for work that
/// the closed gate holds back would never be over.
#[derive(Default)]
pub(crate) struct Waiter(Option<JoinHandle<()>>);

/// Why nothing could be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Busy {
    /// A graph is being recorded, in the middle of which nobody may wait for a device.
    Capturing,
    /// A call of the program is under way and does not come back.
    Calls,
    /// The device does not finish what it was given.
    Device,
    /// The device reports an error of the program's work.
    Failed,
}

impl std::fmt::Display for Busy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Capturing => "the program is recording a graph",
            Self::Calls => "a call of the program into the driver is under way and does not end",
            Self::Device => "the device does not finish the program's work",
            Self::Failed => "the device reports an error of the program's work",
        })
    }
}

/// Takes a turn if nobody has it.
pub(crate) fn try_turn(turn: &Mutex<Waiter>) -> Option<Turn<'_>> {
    match turn.try_lock() {
        Ok(turn) => Some(turn),
        Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Closes the gate and waits until the devices are idle, for as long as `patience`.
pub(crate) fn settle<'a>(
    moving: &'static Moving,
    state: &'static State,
    turn: &mut Turn<'_>,
    patience: Duration,
) -> Result<Closed<'a>, Busy> {
    let start = Instant::now();
    if state.captures() > 0 {
        return Err(Busy::Capturing);
    }
    if turn.0.as_ref().is_some_and(|former| !former.is_finished()) {
        return Err(Busy::Device);
    }
    let closed = state.gate.close(patience).ok_or(Busy::Calls)?;
    // A recording may have begun while the gate was closing.
    if state.captures() > 0 {
        return Err(Busy::Capturing);
    }
    let contexts = state.contexts();
    let (done, waits) = mpsc::channel();
    let wait = move || {
        let _inside = Inside::enter();
        let finished = contexts.iter().all(|context| finish(moving, Context(*context)).is_success());
        // Whoever asked may have lost patience.
        let _ = done.send(finished);
    };
    let Ok(waiter) = std::thread::Builder::new().name("gpuheap wait".to_owned()).spawn(wait) else {
        return Err(Busy::Device);
    };
    turn.0 = Some(waiter);
    match waits.recv_timeout(patience.saturating_sub(start.elapsed()).max(Duration::from_millis(1))) {
        Ok(true) => Ok(closed),
        Ok(false) => Err(Busy::Failed),
        Err(_) => Err(Busy::Device),
    }
}

/// Waits for all work of a context. One that is gone has none.
pub(crate) fn finish(moving: &Moving, context: Context) -> Code {
    wait_for(moving, context).unwrap_or_else(|_| {
        state::get().forget_context(context.0);
        Code::SUCCESS
    })
}

/// Waits for all work of a context and gives what the driver says of it; the error is what it says of one that is gone.
pub(crate) fn wait_for(moving: &Moving, context: Context) -> Result<Code, Code> {
    let api = moving.api();
    // SAFETY: a context of the program's; one that is gone is an error and nothing else.
    let entered = unsafe { (api.cuCtxPushCurrent_v2)(context) };
    if !entered.is_success() {
        return Err(entered);
    }
    // SAFETY: takes nothing.
    let finished = unsafe { (api.cuCtxSynchronize)() };
    let mut popped = Context::NULL;
    // SAFETY: pushed above; `popped` outlives the call.
    unsafe { (api.cuCtxPopCurrent_v2)(&raw mut popped) };
    Ok(finished)
}

/// The turn of a state, waited for.
pub(crate) fn turn(state: &State) -> Turn<'_> {
    lock(&state.turn)
}
