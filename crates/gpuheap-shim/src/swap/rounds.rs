//! Carrying a plan out: at the beginning of a round chunks change places, all at once, while nothing runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use gpuheap_cuda::raw::DeviceId;
use gpuheap_ledger::State as Phase;

use super::schedule::{ROUNDS, Row};
use crate::chunks::{Backing, Chunk};
use crate::quiet;
use crate::sleep::{can_move, mover, phase};
use crate::state::State;
use crate::{ahead, devices, moving};

/// How long the program may be held back until the device is idle: it may have many launches before it.
const SETTLE: Duration = Duration::from_secs(3);
/// Milliseconds between looks at what stays.
const LOOK: u64 = 100;

/// A chunk of a plan. The program may free it at any time.
pub(crate) struct Entry {
    chunk: Weak<Chunk>,
    device: DeviceId,
    row: Row,
    /// The rounds that use it.
    used: Row,
}

impl Entry {
    pub(crate) fn new(chunk: Weak<Chunk>, device: DeviceId, row: Row, used: Row) -> Self {
        Self { chunk, device, row, used }
    }
}

/// Where chunks are in each round.
pub(crate) struct Schedule {
    entries: Vec<Entry>,
    /// The rounds at whose beginnings something moves.
    moves: Row,
    /// Whether all was in its place when that was last looked at.
    is_in_place: AtomicBool,
    begun: Instant,
    /// Milliseconds from then to the next look.
    next_look: AtomicU64,
}

/// What goes and what comes, on one device.
#[derive(Default)]
struct Changes {
    outs: Vec<Arc<Chunk>>,
    backs: Vec<Arc<Chunk>>,
}

impl Schedule {
    /// The chunks of a device one after the other.
    pub(crate) fn new(entries: Vec<Entry>) -> Self {
        let moves = entries.iter().fold(0, |moves, entry| moves | (entry.row ^ entry.row.rotate_left(1)));
        Self {
            entries,
            moves,
            is_in_place: AtomicBool::new(false),
            begun: Instant::now(),
            next_look: AtomicU64::new(0),
        }
    }

    /// Whether no chunk comes or goes, once all are where they are planned to be.
    pub(crate) fn stays(&self) -> bool {
        self.moves == 0
    }

    /// Whether a chunk that is on the host, and used, would have room by now: others were freed.
    pub(crate) fn is_outgrown(&self, state: &State) -> bool {
        let fits = |entry: &Entry| {
            let chunk = entry.chunk.upgrade().filter(|chunk| chunk.is_spilled());
            let room = || state.ledger.room(devices::place(Some(entry.device)));
            chunk.is_some_and(|chunk| room().is_some_and(|room| room >= chunk.bytes as u64))
        };
        self.stays() && self.entries.iter().any(|entry| entry.row == 0 && entry.used != 0 && fits(entry))
    }

    /// Whether it is time to look whether all is still as it was planned: not at the beginning of each period, as some are
    /// short.
    pub(crate) fn is_time_to_look(&self) -> bool {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let is_time = !self.stays() || now >= self.next_look.load(Ordering::Relaxed);
        if is_time {
            self.next_look.store(now.saturating_add(LOOK), Ordering::Relaxed);
        }
        is_time
    }

    /// Makes it as it is planned for a round. What is not as expected is left as it is. It is looked at even if there was
    /// nothing to do before: somebody else may have moved some. False if nothing could be done.
    pub(crate) fn carry_out(&self, state: &'static State, round: usize, looks: bool) -> bool {
        let Some(moving) = moving::get() else { return true };
        if self.has_nothing_to_do(round) && !looks {
            return true;
        }
        self.is_in_place.store(false, Ordering::Relaxed);
        // Somebody else moves memory, or the process is about to sleep: the next round will do.
        let Some(mut turn) = quiet::try_turn(&state.turn) else { return true };
        if phase(state) != Phase::Running {
            return true;
        }
        if self.misplaced(round, |_| true).next().is_none() {
            self.is_in_place.store(true, Ordering::Relaxed);
            return true;
        }
        let Ok(closed) = quiet::settle(moving, state, &mut turn, SETTLE) else { return false };
        let mut bytes = 0;
        // Asked again, as the program may have freed or taken some until the gate was closed.
        for (device, changes) in self.changes(round) {
            let Ok(Some(mover)) = mover(moving, device) else { continue };
            let (gone, came) = mover.exchange(&changes.outs, &changes.backs);
            state.ledger.moved(gone.bytes, came.bytes);
            bytes += gone.bytes + came.bytes;
        }
        drop(closed);
        // What could not move now has no room, and will have none in the next round either.
        self.is_in_place.store(self.stays(), Ordering::Relaxed);
        bytes > 0 || !self.stays()
    }

    /// Begins to copy what goes when the next round begins, as far as there is something to copy to: at the beginning of a
    /// round what it does not use, and in its middle the rest.
    pub(crate) fn prepare(&self, state: &'static State, round: usize, is_begun: bool) {
        let Some(moving) = moving::get() else { return };
        if self.has_nothing_to_do((round + 1) % ROUNDS) {
            return;
        }
        let is_used = |entry: &&Entry| (entry.used >> round & 1 == 1) == is_begun;
        let going = self.misplaced((round + 1) % ROUNDS, is_used).filter(|(_, _, comes)| !comes);
        let going = going.map(|(_, chunk, _)| chunk);
        let going: Vec<Arc<Chunk>> = going.filter(|chunk| !moving.ahead.has(chunk)).take(ahead::MOST).collect();
        if !going.is_empty() {
            ahead::prepare(state, &going);
        }
    }

    /// Whether all is where it was planned to be, and nothing moves at the beginning of that round.
    fn has_nothing_to_do(&self, round: usize) -> bool {
        self.is_in_place.load(Ordering::Relaxed) && self.moves >> round & 1 == 0
    }

    /// What is not as it is planned for a round, by device.
    fn changes(&self, round: usize) -> Vec<(DeviceId, Changes)> {
        let mut all: Vec<(DeviceId, Changes)> = Vec::new();
        for (device, chunk, comes) in self.misplaced(round, |_| true) {
            if all.last().is_none_or(|(other, _)| *other != device) {
                all.push((device, Changes::default()));
            }
            if let Some((_, changes)) = all.last_mut() {
                if comes { changes.backs.push(chunk) } else { changes.outs.push(chunk) }
            }
        }
        all
    }

    /// Each of some chunks that is not where it is planned to be in a round, and whether it is to come.
    fn misplaced(
        &self,
        round: usize,
        which: impl Fn(&&Entry) -> bool,
    ) -> impl Iterator<Item = (DeviceId, Arc<Chunk>, bool)> {
        self.entries.iter().filter(which).filter_map(move |entry| {
            let chunk = entry.chunk.upgrade()?;
            let is_wanted = entry.row >> round & 1 == 1;
            let is_here = {
                let inner = chunk.inner();
                match inner.backing {
                    _ if !can_move(entry.device, &inner) => return None,
                    Some(Backing::Device(_)) => true,
                    Some(Backing::Host(_)) => false,
                    _ => return None,
                }
            };
            (is_wanted != is_here).then_some((entry.device, chunk, is_wanted))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{MIB, control, rig};
    use crate::state;

    #[test]
    fn what_stays_is_put_in_its_place_and_then_looked_at_once_a_period() {
        let rig = rig(64 * MIB, 64 * MIB);
        let chunks: Vec<Arc<Chunk>> = (0..4).map(|number| rig.chunk(2 * MIB, number)).collect();
        let (host, device) = chunks.split_at(2);
        rig.exchange(device, &[]);
        let entry = |chunk: &Arc<Chunk>, row| Entry::new(Arc::downgrade(chunk), chunk.device, row, Row::MAX);
        let entries = host.iter().map(|chunk| entry(chunk, 0)).chain(device.iter().map(|chunk| entry(chunk, Row::MAX)));
        let schedule = Schedule::new(entries.collect());
        let carry_out = |round| {
            assert!(schedule.carry_out(state::get(), round, round == 0));
            chunks.iter().map(|chunk| chunk.is_spilled()).collect::<Vec<_>>()
        };
        let planned = [true, true, false, false];
        assert_eq!(carry_out(5), planned, "wherever the program is when it begins");
        assert_eq!(carry_out(6), planned);
        // Somebody else moves some.
        rig.exchange(&device[..1], &host[..1]);
        assert_eq!(carry_out(7), [false, true, true, false], "not looked at");
        assert_eq!(carry_out(0), planned);
        assert!(schedule.is_outgrown(state::get()), "there is room for all of them");
    }

    #[test]
    fn what_has_no_room_is_not_tried_again_in_each_round() {
        let rig = rig(64 * MIB, 64 * MIB);
        let chunks: Vec<Arc<Chunk>> = (0..4).map(|number| rig.chunk(2 * MIB, number)).collect();
        rig.exchange(&chunks, &[]);
        let entry = |chunk: &Arc<Chunk>| Entry::new(Arc::downgrade(chunk), chunk.device, Row::MAX, Row::MAX);
        let schedule = Schedule::new(chunks.iter().map(entry).collect());
        control("fail cuMemCreate 1 2 999");
        assert!(!schedule.carry_out(state::get(), 3, false), "it is told");
        control("reset");
        assert!(schedule.carry_out(state::get(), 4, false));
        assert!(chunks.iter().all(|chunk| chunk.is_spilled()));
        assert!((schedule.is_time_to_look(), schedule.is_time_to_look()) == (true, false));
        assert!(schedule.carry_out(state::get(), 5, true));
        assert!(!chunks.iter().any(|chunk| chunk.is_spilled()), "when the period begins");
    }

    #[test]
    fn rounds_in_which_something_moves_are_told_from_others() {
        let entry = |row| Entry::new(Weak::new(), 0, row, 0);
        let schedule = Schedule::new(vec![entry(0b1100), entry(Row::MAX), entry(0)]);
        schedule.is_in_place.store(true, Ordering::Relaxed);
        let moves: Vec<usize> = (0..ROUNDS).filter(|round| !schedule.has_nothing_to_do(*round)).collect();
        assert_eq!(moves, [2, 4]);
    }
}
