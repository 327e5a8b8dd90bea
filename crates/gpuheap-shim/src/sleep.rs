//! Going to sleep: all that can move leaves the devices, and the program is held back at the gate. And waking up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpuheap_cuda::Error;
use gpuheap_cuda::raw::DeviceId;
use gpuheap_ledger::control::Done;
use gpuheap_ledger::events::What;
use gpuheap_ledger::{Kind, Origin, State as Phase};

use crate::chunks::{Backing, Chunk, Inner, own_access};
use crate::events::{self, Memory};
use crate::ledger::{DEVICES, HOST};
use crate::moves::{Moved, Mover, Rest};
use crate::moving::Moving;
use crate::quiet::{self, Busy};
use crate::state::State;
use crate::{converted, paging, placement, swap};

/// How long a program may take to come to rest.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one attempt may hold it back.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Why a process did not go to sleep, or did not wake up.
pub(crate) enum Refused {
    /// It does not come to rest.
    Busy(Busy),
    /// It sleeps already.
    Asleep,
    /// It is awake.
    Awake,
    /// So many bytes have no room on the devices just now. It waits for them.
    NoRoom(u64),
    /// The driver failed.
    Driver(Error),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Busy(why) => write!(formatter, "it does not come to rest: {why}"),
            Self::Asleep => formatter.write_str("it is asleep already"),
            Self::Awake => formatter.write_str("it is not asleep"),
            Self::NoRoom(bytes) => write!(
                formatter,
                "{bytes} bytes of it have no room on the device or within the budget just now; it goes on as soon as they do"
            ),
            Self::Driver(error) => write!(formatter, "{error}"),
        }
    }
}

/// Moves what can move to the host, but for `keep` bytes, and holds the program back: until it wants to go on, or with
/// `hold` until somebody wakes it. One that sleeps already can be held from now on.
pub(crate) fn fall_asleep(
    moving: &'static Moving,
    state: &'static State,
    (keep, hold): (u64, bool),
) -> Result<Done, Refused> {
    let start = Instant::now();
    let mut turn = quiet::turn(state);
    match phase(state) {
        Phase::Running => {}
        Phase::Asleep if hold => {
            set_phase(state, Phase::Held);
            return Ok(done(state, 0, start));
        }
        _ => return Err(Refused::Asleep),
    }
    set_phase(state, Phase::GoingToSleep);
    let settled = loop {
        match quiet::settle(moving, state, &mut turn, ATTEMPT) {
            Ok(closed) => break Ok(closed),
            Err(Busy::Failed) => break Err(Busy::Failed),
            Err(busy) if start.elapsed() > PATIENCE => break Err(busy),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let closed = settled.inspect_err(|_| set_phase(state, Phase::Running)).map_err(Refused::Busy)?;
    // What is held ahead of its use is the first to go.
    moving.ahead.give_back(moving);
    let mut left = keep;
    let on_device = by_device(|backing| matches!(backing, Backing::Device(_)));
    let going = on_device.into_iter().map(|(device, chunks)| {
        // Those that stay are the last: what is allocated first lives longest.
        let stay = |chunk: &Arc<Chunk>| {
            let fits = chunk.bytes as u64 <= left;
            left -= if fits { chunk.bytes as u64 } else { 0 };
            fits
        };
        let stays = chunks.iter().rev().map(stay).collect::<Vec<_>>();
        let goes = chunks.into_iter().rev().zip(stays).filter(|(_, stays)| !stays).map(|(chunk, _)| chunk).collect();
        (device, goes)
    });
    let going: Vec<(DeviceId, Vec<Arc<Chunk>>)> = going.collect();
    let mut moved = each_device(moving, &going, |mover, chunks| mover.out(chunks, Rest::Away));
    state.ledger.slot().moved_out.fetch_add(moved.bytes, Ordering::Relaxed);
    if let Some(error) = moved.error.take()
        && moved.chunks == 0
    {
        set_phase(state, Phase::Running);
        drop(closed);
        return Err(Refused::Driver(error));
    }
    set_phase(state, if hold { Phase::Held } else { Phase::Asleep });
    closed.stay();
    note(What::Yielded, moved.bytes, start);
    Ok(done(state, moved.bytes, start))
}

/// Moves all of it back, as far as there is room, and lets the program go on once nothing is away any more.
pub(crate) fn wake_up(moving: &'static Moving, state: &'static State) -> Result<Done, Refused> {
    let start = Instant::now();
    let _turn = quiet::turn(state);
    if phase(state) == Phase::Running {
        return Err(Refused::Awake);
    }
    set_phase(state, Phase::Waking);
    let away = by_device(|backing| matches!(backing, Backing::Away(_)));
    let away: Vec<(DeviceId, Vec<Arc<Chunk>>)> = away.into_iter().collect();
    let mut moved = each_device(moving, &away, Mover::back);
    state.ledger.slot().moved_in.fetch_add(moved.bytes, Ordering::Relaxed);
    if moving.spills() {
        // What the device has no room for stays on the host, behind its addresses.
        let rest = by_device(|backing| matches!(backing, Backing::Away(_)));
        let rest: Vec<_> = rest.into_iter().collect();
        let behind = each_device(moving, &rest, Mover::behind);
        moved.error = behind.error;
        placement::watch();
        if behind.bytes > 0 {
            swap::spilled();
        }
    }
    let missing: u64 = by_device(|backing| matches!(backing, Backing::Away(_)))
        .values()
        .flatten()
        .map(|chunk| chunk.bytes as u64)
        .sum();
    if missing > 0 {
        return Err(moved.error.map_or(Refused::NoRoom(missing), Refused::Driver));
    }
    set_phase(state, Phase::Running);
    state.gate.reopen();
    note(What::Woken, moved.bytes, start);
    Ok(done(state, moved.bytes, start))
}

/// Writes down that all of the process moved.
fn note(what: What, bytes: u64, start: Instant) {
    let memory = Memory { kind: Kind::Spilled, origin: Origin::default(), place: HOST, bytes };
    events::note(what, memory, usize::try_from(start.elapsed().as_micros()).unwrap_or(usize::MAX));
}

/// How the process is.
pub(crate) fn status(state: &State) -> Done {
    done(state, 0, Instant::now())
}

fn done(state: &State, moved: u64, start: Instant) -> Done {
    let held = |devices: std::ops::Range<usize>| {
        let slot = state.ledger.slot();
        devices.map(|device| slot.limited[device].load(Ordering::SeqCst)).sum::<u64>()
    };
    let bytes = held(0..DEVICES);
    Done {
        state: phase(state),
        bytes,
        host: held(DEVICES..DEVICES + 1),
        moved,
        kept: bytes,
        seconds: start.elapsed().as_secs_f64(),
    }
}

pub(crate) fn phase(state: &State) -> Phase {
    Phase::from_number(state.ledger.slot().state.load(Ordering::SeqCst))
}

fn set_phase(state: &State, phase: Phase) {
    state.ledger.slot().state.store(phase as u64, Ordering::SeqCst);
}

/// Chunks that may move and whose content is where `is_there` says, by device, in the order of their addresses.
pub(crate) fn by_device(is_there: impl Fn(&Backing) -> bool) -> BTreeMap<DeviceId, Vec<Arc<Chunk>>> {
    let mut found = BTreeMap::<DeviceId, Vec<Arc<Chunk>>>::new();
    for chunk in converted::chunks().into_iter().chain(paging::mapped_chunks()) {
        let wanted = {
            let inner = chunk.inner();
            can_move(chunk.device, &inner) && inner.backing.as_ref().is_some_and(&is_there)
        };
        if wanted {
            found.entry(chunk.device).or_default().push(chunk);
        }
    }
    found
}

/// Whether a chunk may move just now. What the device may not touch cannot be copied; the program has mapped it and not
/// yet said who may.
pub(crate) fn can_move(device: DeviceId, inner: &Inner) -> bool {
    let reached = inner.access.iter().any(|access| *access == own_access(device));
    !inner.is_pinned && reached && inner.address.is_some()
}

/// Those chunks that are still where they were, and still the program's.
pub(crate) fn still(mut chunks: Vec<Arc<Chunk>>, on_host: bool) -> Vec<Arc<Chunk>> {
    chunks.retain(|chunk| {
        let inner = chunk.inner();
        let is_there = match inner.backing {
            Some(Backing::Device(_)) => !on_host,
            Some(Backing::Host(_)) => on_host,
            _ => false,
        };
        is_there && can_move(chunk.device, &inner)
    });
    chunks
}

/// The way to move chunks of a device. Where a program has no primary context, none is made for this: it would take more
/// than many chunks.
pub(crate) fn mover(moving: &Moving, device: DeviceId) -> Result<Option<Mover<'_>>, Error> {
    if moving.device(device)?.has_context()? { Mover::new(moving, device).map(Some) } else { Ok(None) }
}

/// Does it on each device that has a context, and sums up. An error of one is no reason not to do it on the others.
pub(crate) fn each_device<'a>(
    moving: &'a Moving,
    chunks: &[(DeviceId, Vec<Arc<Chunk>>)],
    work: impl Fn(&Mover<'a>, &[Arc<Chunk>]) -> Moved,
) -> Moved {
    let mut all = Moved::default();
    for (device, chunks) in chunks {
        if chunks.is_empty() {
            continue;
        }
        match mover(moving, *device) {
            Ok(Some(mover)) => all.add(work(&mover, chunks)),
            Ok(None) => {}
            Err(error) => all.add(error.into()),
        }
    }
    all
}
