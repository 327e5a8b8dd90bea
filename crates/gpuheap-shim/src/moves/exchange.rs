//! Chunks that go and chunks that come at the same time.
//!
//! Two things take time: copies, and putting the host's memory behind addresses, as it has many page table entries. The
//! link carries as much in one direction whether or not something goes the other way. What writes page table entries
//! is the engine that copies out of the device, so mappings and copies out take turns, and copies in go on beside both.
//! Measured on an H200, 24 chunks of 20 MiB:
//!
//! | what | milliseconds |
//! | --- | --- |
//! | copies out; in; both ways at once | 9.2; 9.2; 10.0 to 11.6 |
//! | the host's memory mapped; taken away | 6.5 to 7.5; 1.9 |
//! | the device's memory mapped; taken away | 0.9; 0.5 |
//! | the host's memory mapped beside copies in; beside copies out | 8.6 to 9.9; 13 to 14 |
//!
//! Taking away waits for nothing. So those that go are divided into groups, and for each group there are two phases:
//!
//! ```text
//!              phase 1                          phase 2                                 phase 1 of the next group
//!  link, out   group k leaves                   nothing                                 group k + 1 leaves
//!  link, in    what is left of the last phase   some come, one after the other          what is left
//!  processor   takes the host's memory from     device's memory behind two that come;   …
//!              behind some that come            for each of the group: device's memory
//!                                               off, host's behind it; the former goes
//!                                               behind the next that comes
//! ```
//!
//! Those that come are spread evenly over the phases, with one more in each than its share, so that the last one's are
//! not what the end waits for. Two of each phase come ahead of those whose memory they could have: the budget has some
//! room in most cases ([`crate::swap`] leaves some). If it has none, they come as soon as the first have gone. If twice as
//! many come as go, the link inwards is what takes longest, and begins at once.
//!
//! What was copied ahead ([`crate::ahead`]) goes first, in a second phase of its own.
//!
//! If nothing comes, there is nothing to put beside the mappings, and they take turns with copies out as the engine likes:
//! that is shorter than one after the other ([`Mover::out`]).

use std::collections::VecDeque;
use std::sync::Arc;

use gpuheap_cuda::raw::Event;

use super::mappings::{Lifted, Memory};
use super::{AHEAD, Moved, Mover, Rest, Store};
use crate::charge::{Charge, Kind};
use crate::chunks::Chunk;
use crate::devices;
use crate::host::Mapped;
use crate::state;

/// The most that go as one group: larger ones leave the link inwards idle at first, smaller ones wait more often.
const GROUP: usize = 8;
/// So many that go are at least two groups, so that copies in begin beside the mappings of the first.
const WORTH_TWO: usize = 4;
/// How many come ahead of those that make room for them.
const EARLY: usize = 2;
/// The most that come in one phase, where more come than go.
const MOST: usize = 2 * GROUP;

/// A chunk that goes: where its content goes, and what it is charged as there.
type Going = (Arc<Chunk>, Store, Charge);

/// Chunks whose content is on its way in, and the event behind their copies.
struct Batch {
    event: Event,
    chunks: Vec<(Arc<Chunk>, Store)>,
}

/// One exchange that is under way.
struct Exchange<'a> {
    mover: &'a Mover<'a>,
    outs: &'a [Arc<Chunk>],
    backs: &'a [Arc<Chunk>],
    /// Those of a group.
    group: usize,
    /// Taken from `backs`: nothing is behind them.
    lifted: VecDeque<Lifted>,
    coming: VecDeque<Batch>,
    /// How many batches there were.
    batches: usize,
    gone: Moved,
    came: Moved,
}

impl Mover<'_> {
    /// Moves some chunks to the host, behind their addresses, and others back, each as far as there is room. Tells what
    /// went and what came.
    pub(crate) fn exchange(&self, outs: &[Arc<Chunk>], backs: &[Arc<Chunk>]) -> (Moved, Moved) {
        let ready = self.ready(outs);
        let rest: Vec<Arc<Chunk>>;
        let outs = if ready.is_empty() {
            outs
        } else {
            let is_ready = |chunk: &Arc<Chunk>| ready.iter().any(|(other, ..)| Arc::ptr_eq(chunk, other));
            rest = outs.iter().filter(|chunk| !is_ready(chunk)).cloned().collect();
            &rest
        };
        if outs.iter().map(|chunk| chunk.bytes as u64).sum::<u64>() > self.moving.host_room() {
            self.moving.ahead.forget_all(self.moving);
        }
        let mut exchange = Exchange::new(self, outs, backs);
        let moved = if backs.is_empty() {
            exchange.come_and_go(ready, 0);
            exchange.gone.add(self.out(outs, Rest::Behind));
            (exchange.gone, exchange.came)
        } else {
            exchange.run(ready)
        };
        self.moving.keep_to_limit();
        self.moving.ahead.furnish(self.moving, &self.context);
        moved
    }

    /// Those that go whose content is on the host already, as far as the host has room ([`crate::ahead`]).
    fn ready(&self, outs: &[Arc<Chunk>]) -> Vec<Going> {
        let proven = self.moving.ahead.proven(self.moving, &self.context, outs);
        let going = |(number, piece): (usize, Mapped)| {
            let chunk = &outs[number];
            let origin = chunk.inner().charge.origin();
            match Charge::try_take_for(origin, Kind::Spilled, Some(chunk.device), chunk.bytes) {
                Some(charge) => Some((Arc::clone(chunk), Store::Mapped(piece), charge)),
                None => {
                    self.moving.mapped.give(piece);
                    None
                }
            }
        };
        proven.into_iter().filter_map(going).collect()
    }
}

impl<'a> Exchange<'a> {
    fn new(mover: &'a Mover<'a>, outs: &'a [Arc<Chunk>], backs: &'a [Arc<Chunk>]) -> Self {
        let least = if outs.len() >= WORTH_TWO { 2 } else { 1 };
        let groups = outs.len().div_ceil(GROUP).max(least);
        Self {
            mover,
            outs,
            backs,
            group: outs.len().div_ceil(groups).max(1),
            lifted: VecDeque::new(),
            coming: VecDeque::new(),
            batches: 0,
            gone: Moved::default(),
            came: Moved::default(),
        }
    }

    /// `ready` go without a copy, beside the first that come.
    fn run(mut self, ready: Vec<Going>) -> (Moved, Moved) {
        if !ready.is_empty() {
            let quota = self.quota(ready.len());
            self.come_and_go(ready, quota);
        } else if self.backs.len() > 2 * self.outs.len() {
            self.come_and_go(Vec::new(), EARLY);
        }
        while self.is_well() {
            let quota = self.quota(0);
            self.find_pieces();
            let going = self.begin_to_go();
            if !going.is_empty() {
                self.lift(&going, quota);
                // A copy that failed has broken the context, and the program with it: what was begun is finished anyway.
                if let Err(error) = self.mover.finish(self.mover.lanes.outward) {
                    self.gone.add(error.into());
                }
            }
            // Those of the phase before last came meanwhile.
            self.receive(1);
            let before = (self.gone.chunks, self.batches);
            self.come_and_go(going, quota);
            if (self.gone.chunks, self.batches) == before {
                break;
            }
            if !self.outs.is_empty() && self.gone.chunks == before.0 {
                // The host had no room. What has come makes some.
                self.receive(0);
            }
        }
        for lifted in std::mem::take(&mut self.lifted) {
            self.mover.put_back(lifted);
        }
        self.receive(0);
        (self.gone, self.came)
    }

    fn is_well(&self) -> bool {
        self.gone.error.is_none() && self.came.error.is_none()
    }

    /// How many are to come beside the mappings of so many that go, or of the next group.
    fn quota(&self, ready: usize) -> usize {
        let (left, more) = (self.backs.len() + self.lifted.len(), self.outs.len());
        let (now, all) = if ready > 0 { (ready, ready + more) } else { (self.group.min(more), more) };
        if all == 0 { MOST } else { ((left * now).div_ceil(all) + 1).min(MOST) }
    }

    /// Waits for what is on its way in if its memory is what the next group goes to: to make other takes longer.
    fn find_pieces(&mut self) {
        let next = self.outs.len().min(self.group);
        if let Some(first) = self.outs.first()
            && self.mover.moving.mapped.count(first.bytes) < next
        {
            self.receive(0);
        }
    }

    /// Begins to copy the next group to the host, as far as there is room.
    fn begin_to_go(&mut self) -> Vec<Going> {
        let group = &self.outs[..self.outs.len().min(self.group)];
        let mut charges = VecDeque::with_capacity(group.len());
        for chunk in group {
            let origin = chunk.inner().charge.origin();
            let Some(charge) = Charge::try_take_for(origin, Kind::Spilled, Some(chunk.device), chunk.bytes) else {
                break;
            };
            charges.push_back(charge);
        }
        let sizes: Vec<usize> = group.iter().take(charges.len()).map(|chunk| chunk.bytes).collect();
        let pieces = self.mover.moving.mapped.take_all(self.mover.context.device(), &sizes);
        self.outs = &self.outs[pieces.len()..];
        let mut going = Vec::with_capacity(pieces.len());
        for ((chunk, piece), charge) in group.iter().zip(pieces).zip(charges) {
            let store = Store::Mapped(piece);
            let address = chunk.inner().address;
            match address.map(|address| self.mover.save(&store, address, chunk.bytes)) {
                Some(Ok(())) => going.push((Arc::clone(chunk), store, charge)),
                // What cannot be begun stays where it is.
                begun => {
                    store.keep(self.mover.moving);
                    if let Some(Err(error)) = begun {
                        self.gone.add(error.into());
                    }
                }
            }
        }
        going
    }

    /// Takes the host's memory from behind some that come, beside copies out: as many as will surely find memory.
    fn lift(&mut self, going: &[Going], quota: usize) {
        if !self.is_well() {
            return;
        }
        let place = devices::place(Some(self.mover.context.device().id()));
        let made: u64 = going.iter().map(|(chunk, ..)| chunk.bytes as u64).sum();
        let taken: u64 = self.lifted.iter().map(|lifted| lifted.chunk().bytes as u64).sum();
        let room = state::get().ledger.room(place).unwrap_or(u64::MAX).saturating_add(made);
        let mut room = room.saturating_sub(taken);
        while self.lifted.len() < quota
            && let Some((chunk, rest)) = self.backs.split_first()
            && chunk.bytes as u64 <= room
        {
            self.backs = rest;
            room -= chunk.bytes as u64;
            match self.mover.lift(chunk) {
                Ok(lifted) => self.lifted.extend(lifted),
                Err(error) => return self.came.add(error.into()),
            }
        }
    }

    /// The copies out are done: what is behind those that go is exchanged, and `quota` others come.
    fn come_and_go(&mut self, going: Vec<Going>, quota: usize) {
        let mut batch = Vec::with_capacity(quota);
        // No more ahead than the others leave for those that take over memory.
        let early = if going.is_empty() { quota } else { EARLY.min(quota) };
        while batch.len() < early && self.come(None, &mut batch) {}
        for (chunk, store, charge) in going {
            match self.mover.leave(&chunk, store, charge) {
                Ok(Some(memory)) => {
                    self.gone.add(Moved { chunks: 1, bytes: chunk.bytes as u64, error: None });
                    if batch.len() < quota {
                        self.come(Some(memory), &mut batch);
                    } else {
                        self.mover.release(memory);
                    }
                }
                Ok(None) => {}
                Err(error) => self.gone.add(error.into()),
            }
        }
        while batch.len() < quota && self.come(None, &mut batch) {}
        if batch.is_empty() {
            return;
        }
        let event = self.mover.lanes.events[self.batches % AHEAD];
        self.mover.mark(event, self.mover.lanes.inward);
        self.batches += 1;
        self.coming.push_back(Batch { event, chunks: batch });
    }

    /// Lets the next one come, with memory that another left behind or with new memory. False if none comes.
    fn come(&mut self, memory: Option<Memory>, batch: &mut Vec<(Arc<Chunk>, Store)>) -> bool {
        let next = match self.lifted.front() {
            Some(lifted) if self.is_well() => Some(lifted.chunk()),
            None if self.is_well() => self.backs.first().map(Arc::as_ref),
            _ => None,
        };
        let memory = match (next, memory) {
            (Some(chunk), Some(memory)) => self.mover.pass_on(memory, chunk),
            (Some(chunk), None) => self.mover.make_memory(chunk),
            (None, memory) => {
                if let Some(memory) = memory {
                    self.mover.release(memory);
                }
                None
            }
        };
        let Some(memory) = memory else { return false };
        let lifted = match self.lifted.pop_front() {
            Some(lifted) => lifted,
            None => {
                let Some((chunk, rest)) = self.backs.split_first() else { return false };
                self.backs = rest;
                match self.mover.lift(chunk) {
                    Ok(Some(lifted)) => lifted,
                    other => {
                        self.mover.release(memory);
                        if let Err(error) = other {
                            self.came.add(error.into());
                        }
                        // One that is not where it was expected is passed over.
                        return self.is_well();
                    }
                }
            }
        };
        match self.mover.land(lifted, memory) {
            Ok((chunk, store, address)) => match self.mover.load(address, &store, chunk.bytes) {
                Ok(()) => batch.push((chunk, store)),
                Err(error) => self.came.add(self.mover.go_back(&chunk, store, error).into()),
            },
            Err(error) => self.came.add(error.into()),
        }
        self.is_well()
    }

    /// Waits for what is on its way, but for so many batches. Its memory on the host is free then.
    fn receive(&mut self, but: usize) {
        while self.coming.len() > but {
            let Some(batch) = self.coming.pop_front() else { break };
            if let Err(error) = self.mover.reach(batch.event) {
                self.came.add(error.into());
            }
            for (chunk, store) in batch.chunks {
                store.keep(self.mover.moving);
                self.came.add(Moved { chunks: 1, bytes: chunk.bytes as u64, error: None });
            }
        }
    }
}
