//! How a process counts in the shared memory of its run, and takes bytes within the run's limits.
//!
//! To take bytes within a limit a process first enters them in its slot and then adds up all slots: of two that come too
//! close at once at least one sees the other and takes its bytes back.
//!
//! A slot is free again once its owner is dead: whoever sees that makes itself the owner and clears it. A program that is
//! run in place of another (exec) is the same process, alive, and nobody else can take out what the former program held.
//! So each slot also says which program it is of, and who clears it puts its own there first: of two that try, one does.
//! Neither number is ever used again, so that whoever comes late finds another one.

use crate::identity::Identity;
use crate::kind::Kind;
use crate::layout::{HOST, LIMITS, MAGIC, Shared, Slot, limit_of};
use crate::name::Name;
use crate::sync::{Ordering, in_one_order, yield_now};
use crate::uuid::Uuid;

/// How often bytes are tried to be taken: another process may be about to take its own back, or may be dead.
const TRIES: usize = if cfg!(loom) { 2 } else { 4 };

/// Who counts.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// The process.
    pub process: Identity,
    /// What the system calls it.
    pub name: Name,
    /// A number that each program of a process has anew; not 0.
    pub program: u64,
    /// Whether another process is alive, as far as one can tell: [`Identity::is_alive`].
    pub is_alive: fn(Identity) -> bool,
}

/// A process's place in the figures of its run.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    shared: &'a Shared,
    own: usize,
    member: Member,
}

impl<'a> Account<'a> {
    /// Takes a slot, and gives those up that a former program of the process had. Nothing if none is free, or the memory
    /// is of another form.
    #[must_use]
    pub fn join(shared: &'a Shared, member: Member) -> Option<Self> {
        let magic = shared.magic.compare_exchange(0, MAGIC, Ordering::SeqCst, Ordering::SeqCst);
        if magic.is_err_and(|found| found != MAGIC) {
            return None;
        }
        let own = member.process.number();
        for slot in &shared.slots {
            let program = slot.program.load(Ordering::SeqCst);
            // What is no program's yet may be another copy of this library's, in this process.
            if program != member.program && program != 0 && slot.owner.load(Ordering::SeqCst) == own {
                give_up(shared, slot, program, member);
            }
        }
        let take = || {
            let free = |slot: &Slot| slot.owner.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            shared.slots.iter().position(free)
        };
        let number = take().or_else(|| {
            sweep(shared, member);
            take()
        })?;
        shared.slots[number].set_name(member.name);
        shared.slots[number].program.store(member.program, Ordering::SeqCst);
        shared.used.fetch_max(number as u64 + 1, Ordering::SeqCst);
        shared.joined.fetch_add(1, Ordering::SeqCst);
        Some(Self { shared, own: number, member })
    }

    /// The place in memory of zeroes that nobody else has.
    #[must_use]
    pub fn alone(shared: &'a Shared, member: Member) -> Self {
        shared.used.store(1, Ordering::SeqCst);
        Self { shared, own: 0, member }
    }

    /// The place of a process that joined before, in another thread of it.
    #[cfg(loom)]
    #[must_use]
    pub fn in_slot(shared: &'a Shared, own: usize, member: Member) -> Self {
        Self { shared, own, member }
    }

    /// All figures.
    #[must_use]
    pub fn shared(&self) -> &'a Shared {
        self.shared
    }

    /// This process's figures.
    #[must_use]
    pub fn slot(&self) -> &'a Slot {
        &self.shared.slots[self.own]
    }

    /// Charges bytes of a kind to a device, unless that takes the run beyond its limit. That they were refused is noted
    /// for whoever looks at the run.
    #[must_use]
    pub fn take(&self, kind: Kind, device: usize, bytes: u64) -> bool {
        let taken = self.try_take(kind, device, bytes);
        if !taken {
            self.refuse(kind, device, bytes);
        }
        taken
    }

    /// Notes that a request of so many bytes was refused.
    pub fn refuse(&self, kind: Kind, device: usize, bytes: u64) {
        if let Some(limit) = limit_of(kind, device) {
            let figures = [bytes, self.used(limit), self.limit(limit)];
            self.shared.denials.note((self.member.process, self.member.name), device, kind, figures);
        }
    }

    /// Whether so many bytes more would go beyond the limit, just now.
    #[must_use]
    pub fn exceeds(&self, kind: Kind, device: usize, bytes: u64) -> bool {
        limit_of(kind, device)
            .filter(|limit| self.is_limited(*limit))
            .is_some_and(|limit| self.used(limit).saturating_add(bytes) > self.limit(limit))
    }

    /// The same, for a request that has another chance if this fails: nothing is noted.
    #[must_use]
    pub fn try_take(&self, kind: Kind, device: usize, bytes: u64) -> bool {
        let Some(limit) = limit_of(kind, device).filter(|limit| self.is_limited(*limit)) else {
            self.add(kind, device, bytes);
            return true;
        };
        let most = self.limit(limit);
        if bytes > most {
            return false;
        }
        let slot = self.slot();
        for attempt in 0..TRIES {
            slot.limited[limit].fetch_add(bytes, Ordering::SeqCst);
            in_one_order();
            if self.used(limit) <= most {
                slot.bytes[device][kind.number()].fetch_add(bytes, Ordering::SeqCst);
                return true;
            }
            slot.lower(&slot.limited[limit], bytes);
            if attempt == 0 {
                sweep(self.shared, self.member);
            }
            // Of two that met, the one with the lower number tries again sooner.
            for _ in 0..=self.own {
                yield_now();
            }
        }
        false
    }

    /// Charges bytes that are taken already, whatever the limit.
    pub fn add(&self, kind: Kind, device: usize, bytes: u64) {
        let slot = self.slot();
        slot.bytes[device][kind.number()].fetch_add(bytes, Ordering::SeqCst);
        if let Some(limit) = limit_of(kind, device) {
            slot.limited[limit].fetch_add(bytes, Ordering::SeqCst);
        }
    }

    /// Notes the most that this process and the run ever held. What is charged before the driver is asked is not held
    /// before it says yes: so this is called then.
    pub fn note_peaks(&self) {
        let slot = self.slot();
        for limit in 0..LIMITS {
            let held = slot.limited[limit].load(Ordering::SeqCst);
            if held == 0 {
                continue;
            }
            let mut used = self.used(limit);
            if self.is_limited(limit) && used > self.limit(limit) {
                // Another one's request that is about to be refused, or bytes that nobody could refuse.
                yield_now();
                used = self.used(limit);
            }
            slot.peak[limit].fetch_max(held.min(used), Ordering::SeqCst);
            self.shared.peaks[limit].fetch_max(used, Ordering::SeqCst);
        }
    }

    /// Takes charged bytes back.
    pub fn give_back(&self, kind: Kind, device: usize, bytes: u64) {
        let slot = self.slot();
        slot.lower(&slot.bytes[device][kind.number()], bytes);
        if let Some(limit) = limit_of(kind, device) {
            slot.lower(&slot.limited[limit], bytes);
        }
    }

    /// Bytes of a kind that this process holds.
    #[must_use]
    pub fn bytes(&self, kind: Kind, device: usize) -> u64 {
        self.slot().bytes[device][kind.number()].load(Ordering::SeqCst)
    }

    /// Where a device has its figures.
    #[must_use]
    pub fn place(&self, device: Uuid) -> usize {
        self.shared.place(device)
    }

    /// The budget of a device; 0 is none.
    #[must_use]
    pub fn budget(&self, device: usize) -> u64 {
        self.shared.budgets.get(device).map_or(0, |budget| budget.load(Ordering::SeqCst))
    }

    /// The most that the run may hold within a limit.
    fn limit(&self, limit: usize) -> u64 {
        if limit == HOST { self.shared.spill.load(Ordering::SeqCst) } else { self.budget(limit) }
    }

    /// Whether there is a most: a device without a budget has none, spilled memory always has.
    fn is_limited(&self, limit: usize) -> bool {
        limit == HOST || self.budget(limit) > 0
    }

    /// The most bytes of the host that may stand behind addresses of devices; 0 is none.
    #[must_use]
    pub fn spill(&self) -> u64 {
        self.limit(HOST)
    }

    /// Whether any device has one.
    #[must_use]
    pub fn has_budgets(&self) -> bool {
        self.shared.budgets.iter().any(|budget| budget.load(Ordering::Relaxed) > 0)
    }

    /// Bytes that all processes of the run hold on a device (or spilled, at [`HOST`]), the dead included until someone
    /// needs their bytes.
    #[must_use]
    pub fn used(&self, limit: usize) -> u64 {
        self.shared.used(limit)
    }

    /// The same, once the dead are taken out.
    #[must_use]
    pub fn used_by_the_living(&self, limit: usize) -> u64 {
        sweep(self.shared, self.member);
        self.used(limit)
    }

    /// Notes that a function of the shim's list was given to the program as it is.
    pub fn note_unseen(&self) {
        self.slot().unseen.fetch_add(1, Ordering::SeqCst);
    }

    /// How many were.
    #[must_use]
    pub fn unseen(&self) -> u64 {
        self.slot().unseen.load(Ordering::SeqCst)
    }

    /// How many sums would have gone below zero: 0 unless there is a mistake of ours.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.slot().violations.load(Ordering::SeqCst)
    }
}

/// Takes the slots of dead processes out. Whoever is killed while doing so leaves a slot of a dead process again.
fn sweep(shared: &Shared, member: Member) {
    for slot in shared.taken() {
        let owner = slot.owner.load(Ordering::SeqCst);
        let is_dead =
            owner != 0 && owner != member.process.number() && !(member.is_alive)(Identity::from_number(owner));
        if !is_dead {
            continue;
        }
        // Before the owner changes: afterwards it may be given up and taken again by the time that it is read.
        let program = slot.program.load(Ordering::SeqCst);
        let own = member.process.number();
        if slot.owner.compare_exchange(owner, own, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            give_up(shared, slot, program, member);
        }
    }
}

/// Clears a slot of this process that another program has, and lets others take it; unless somebody else is doing that.
fn give_up(shared: &Shared, slot: &Slot, program: u64, member: Member) {
    let claim = slot.program.compare_exchange(program, member.program, Ordering::SeqCst, Ordering::SeqCst);
    if claim.is_ok() {
        shared.clear(slot);
        slot.owner.store(0, Ordering::SeqCst);
    }
}
