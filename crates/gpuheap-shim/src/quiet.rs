//! Making sure that nothing runs on the devices: the gate is closed, and all that was begun is finished.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use gpuheap_cuda::raw::{Code, Context};

use crate::gate::Closed;
use crate::moving::Moving;
use crate::state::{self, State, lock};
use crate::waiter::{TooLong, Waiter};

/// Whoever has this may close the gate and move memory.
pub(crate) type Turn<'a> = MutexGuard<'a, Waiter>;

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
    if turn.is_busy() {
        return Err(Busy::Device);
    }
    let closed = state.gate.close(patience).ok_or(Busy::Calls)?;
    // A recording may have begun while the gate was closing.
    if state.captures() > 0 {
        return Err(Busy::Capturing);
    }
    let contexts = state.contexts();
    // The driver's wait has no end of its own, and work that waits for work that the closed gate holds back would never be
    // over.
    let wait = move || contexts.iter().all(|context| finish(moving, Context(*context)).is_success());
    let left = patience.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
    match turn.wait(left, wait) {
        Ok(true) => Ok(closed),
        Ok(false) => Err(Busy::Failed),
        Err(TooLong) => Err(Busy::Device),
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
