//! The figures, and budgets, in memory that all processes of a run share and that outlives each of them. Its form is that
//! of `gpuheap-ledger`; here it is mapped, and bytes are taken.
//!
//! To take bytes within a limit a process first enters them in its slot and then adds up all slots: of two that come too
//! close at once at least one sees the other and takes its bytes back.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

pub(crate) use gpuheap_ledger::file::Limits;
use gpuheap_ledger::layout::{MAGIC, limit_of};
use gpuheap_ledger::{Identity, Kind, LIMITS, Name, Shared, Slot, Uuid};

use crate::state;

pub(crate) use gpuheap_ledger::{DEVICES, HOST};

/// Whether something was charged since peaks were last noted.
static RAISED: AtomicBool = AtomicBool::new(false);

/// After a call that went well: notes peaks if it charged something.
pub(crate) fn after_success() {
    if RAISED.load(Ordering::Relaxed) {
        RAISED.store(false, Ordering::Relaxed);
        state::get().ledger.note_peaks();
    }
}

/// The figures of a run, and the calling process's place in them.
#[derive(Clone, Copy)]
pub(crate) struct Ledger {
    shared: &'static Shared,
    own: usize,
    /// The calling process.
    process: u64,
}

impl Ledger {
    /// Opens the ledger at `path`, or one for this process alone, and takes a slot. `limits` are written if none are there.
    ///
    /// What cannot be opened or is full is no reason to fail for a program that never asked for any of this: it counts
    /// for itself then, with the budget for itself.
    pub(crate) fn open(path: Option<&Path>, limits: Limits) -> Self {
        let shared = path.and_then(map_file).or_else(map_private);
        // Memory for the figures is a few hundred KiB. Without it there is a ledger that nobody else sees.
        let shared = shared.unwrap_or_else(|| zeroed());
        let ledger = Self::join(shared).or_else(|| Self::join(zeroed()));
        let ledger = ledger.unwrap_or(Self { shared, own: 0, process: 0 });
        ledger.shared.offer(limits);
        ledger
    }

    /// Takes a slot.
    fn join(shared: &'static Shared) -> Option<Self> {
        let magic = shared.magic.compare_exchange(0, MAGIC, Ordering::SeqCst, Ordering::SeqCst);
        if magic.is_err_and(|found| found != MAGIC) {
            return None;
        }
        let own = Identity::own().number();
        // A slot of this process that is another program's is from before an exec: all that was held then is gone.
        let program = program();
        for slot in &shared.slots {
            let other = slot.program.load(Ordering::SeqCst);
            if slot.owner.load(Ordering::SeqCst) == own && other != program && other != 0 {
                shared.clear(slot);
                slot.owner.store(0, Ordering::SeqCst);
            }
        }
        let take = || {
            let free = |slot: &Slot| slot.owner.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            shared.slots.iter().position(free)
        };
        let number = take().or_else(|| {
            shared.sweep(own);
            take()
        })?;
        shared.slots[number].set_name(Name::own());
        shared.slots[number].program.store(program, Ordering::SeqCst);
        shared.used.fetch_max(number as u64 + 1, Ordering::SeqCst);
        shared.joined.fetch_add(1, Ordering::SeqCst);
        Some(Self { shared, own: number, process: own })
    }

    /// This process's figures.
    pub(crate) fn slot(&self) -> &'static Slot {
        &self.shared.slots[self.own]
    }

    /// Charges bytes of a kind to a device, unless that takes the run beyond its limit. That they were refused is noted
    /// for whoever looks at the run.
    pub(crate) fn take(&self, kind: Kind, device: usize, bytes: u64) -> bool {
        let taken = self.try_take(kind, device, bytes);
        if let (false, Some(limit)) = (taken, limit_of(kind, device)) {
            let figures = [bytes, self.used(limit), self.limit(limit)];
            let owner = (Identity::from_number(self.process), self.slot().name());
            self.shared.denials.note(owner, device, kind, figures);
        }
        taken
    }

    /// The same, for a request that has another chance if this fails: nothing is noted.
    pub(crate) fn try_take(&self, kind: Kind, device: usize, bytes: u64) -> bool {
        let Some(limit) = limit_of(kind, device).filter(|limit| self.is_limited(*limit)) else {
            self.add(kind, device, bytes);
            return true;
        };
        let most = self.limit(limit);
        if bytes > most {
            return false;
        }
        let slot = self.slot();
        // A few times: another process may be about to take its own back, or may be dead.
        for attempt in 0..4 {
            slot.limited[limit].fetch_add(bytes, Ordering::SeqCst);
            if self.used(limit) <= most {
                slot.bytes[device][kind.number()].fetch_add(bytes, Ordering::SeqCst);
                RAISED.store(true, Ordering::Relaxed);
                return true;
            }
            slot.lower(&slot.limited[limit], bytes);
            if attempt == 0 {
                self.shared.sweep(self.process);
            }
            // Of two that met, the one with the lower number tries again sooner.
            for _ in 0..=self.own {
                thread::yield_now();
            }
        }
        false
    }

    /// Charges bytes that are taken already, whatever the limit.
    pub(crate) fn add(&self, kind: Kind, device: usize, bytes: u64) {
        let slot = self.slot();
        slot.bytes[device][kind.number()].fetch_add(bytes, Ordering::SeqCst);
        if let Some(limit) = limit_of(kind, device) {
            slot.limited[limit].fetch_add(bytes, Ordering::SeqCst);
            RAISED.store(true, Ordering::Relaxed);
        }
    }

    /// Notes the most that this process and the run ever held. What is charged before the driver is asked is not held
    /// before it says yes: so this is called then.
    pub(crate) fn note_peaks(&self) {
        let slot = self.slot();
        for limit in 0..LIMITS {
            let held = slot.limited[limit].load(Ordering::SeqCst);
            if held == 0 {
                continue;
            }
            let mut used = self.used(limit);
            if self.is_limited(limit) && used > self.limit(limit) {
                // Another one's request that is about to be refused, or bytes that nobody could refuse.
                thread::yield_now();
                used = self.used(limit);
            }
            slot.peak[limit].fetch_max(held.min(used), Ordering::SeqCst);
            self.shared.peaks[limit].fetch_max(used, Ordering::SeqCst);
        }
    }

    /// Takes charged bytes back.
    pub(crate) fn give_back(&self, kind: Kind, device: usize, bytes: u64) {
        let slot = self.slot();
        slot.lower(&slot.bytes[device][kind.number()], bytes);
        if let Some(limit) = limit_of(kind, device) {
            slot.lower(&slot.limited[limit], bytes);
        }
    }

    /// Bytes of a kind that this process holds.
    pub(crate) fn bytes(&self, kind: Kind, device: usize) -> u64 {
        self.slot().bytes[device][kind.number()].load(Ordering::SeqCst)
    }

    /// The budget of a device; 0 is none.
    pub(crate) fn budget(&self, device: usize) -> u64 {
        self.shared.budgets.get(device).map_or(0, |budget| budget.load(Ordering::SeqCst))
    }

    /// Where a device has its figures.
    pub(crate) fn place(&self, device: Uuid) -> usize {
        self.shared.place(device)
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
    pub(crate) fn spill(&self) -> u64 {
        self.limit(HOST)
    }

    /// Whether any device has one.
    pub(crate) fn has_budgets(&self) -> bool {
        self.shared.budgets.iter().any(|budget| budget.load(Ordering::Relaxed) > 0)
    }

    /// Bytes that all processes of the run hold on a device (or spilled, at [`HOST`]), the dead included until someone
    /// needs their bytes.
    pub(crate) fn used(&self, device: usize) -> u64 {
        self.shared.used(device)
    }

    /// The same, once the dead are taken out.
    pub(crate) fn used_by_the_living(&self, device: usize) -> u64 {
        self.shared.sweep(self.process);
        self.used(device)
    }

    /// Notes that a function of our list was given to the program as it is.
    pub(crate) fn note_unseen(&self) {
        self.slot().unseen.fetch_add(1, Ordering::SeqCst);
    }

    /// How many were.
    pub(crate) fn unseen(&self) -> u64 {
        self.slot().unseen.load(Ordering::SeqCst)
    }

    /// How many sums would have gone below zero: 0 unless there is a mistake in this crate.
    pub(crate) fn violations(&self) -> u64 {
        self.slot().violations.load(Ordering::SeqCst)
    }
}

/// A number that each program of a process has anew: the kernel gives random bytes at every exec.
fn program() -> u64 {
    // SAFETY: takes a number only.
    let bytes = unsafe { libc::getauxval(libc::AT_RANDOM) };
    let place: *const u64 = std::ptr::with_exposed_provenance(usize::try_from(bytes).unwrap_or(0));
    if place.is_null() {
        return 1;
    }
    // SAFETY: the kernel puts 16 bytes there, for as long as the program runs.
    unsafe { place.read_unaligned() }.max(1)
}

/// Memory of the process, should mapping fail.
fn zeroed() -> &'static Shared {
    let mut shared = Box::<Shared>::new_uninit();
    // SAFETY: one of them is there.
    unsafe { shared.as_mut_ptr().write_bytes(0, 1) };
    // SAFETY: all of it is atomics, for which zero is a value.
    Box::leak(unsafe { shared.assume_init() })
}

/// Maps the file, made as large as it has to be. Nothing if that does not work.
fn map_file(path: &Path) -> Option<&'static Shared> {
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the name ends in a zero byte.
    let file = unsafe { libc::open(name.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC, 0o600) };
    if file < 0 {
        return None;
    }
    let size = libc::off_t::try_from(size_of::<Shared>()).ok()?;
    // SAFETY: takes numbers only.
    let end = unsafe { libc::lseek(file, 0, libc::SEEK_END) };
    // A file of another size is something else, and stays as it is.
    // SAFETY: takes numbers only. Whoever else makes the file makes it as large.
    let grown = end == size || (end == 0 && unsafe { libc::ftruncate(file, size) } == 0);
    let shared = if grown { map(file, libc::MAP_SHARED) } else { None };
    // SAFETY: opened above; the mapping stays without it.
    unsafe { libc::close(file) };
    shared
}

fn map_private() -> Option<&'static Shared> {
    map(-1, libc::MAP_SHARED | libc::MAP_ANONYMOUS)
}

fn map(file: i32, flags: i32) -> Option<&'static Shared> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, wherever there is room.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), access, flags, file, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: mapped for good, large enough, aligned to a page, and all of it atomics, for which any bytes are values.
    Some(unsafe { &*start.cast::<Shared>() })
}

#[cfg(test)]
mod tests {
    use gpuheap_ledger::{Denial, Reader, file};

    use super::*;

    fn ledger(budget: u64) -> Ledger {
        Ledger::open(None, Limits { budget: budget, spill: 0 })
    }

    #[test]
    fn bytes_are_taken_up_to_the_budget_and_come_back() {
        let ledger = ledger(1000);
        assert!(ledger.take(Kind::Linear, 0, 600));
        assert!(!ledger.take(Kind::Linear, 0, 500));
        assert!(!ledger.take(Kind::Physical, 0, u64::MAX));
        assert!(ledger.take(Kind::Physical, 0, 400));
        assert!(ledger.take(Kind::Linear, 1, 1000), "each device has its own");
        assert!(ledger.take(Kind::HostPinned, HOST, 1 << 40), "the host has none");
        assert_eq!((ledger.used(0), ledger.bytes(Kind::Linear, 0), ledger.bytes(Kind::Physical, 0)), (1000, 600, 400));
        ledger.give_back(Kind::Linear, 0, 600);
        assert!(ledger.take(Kind::Linear, 0, 600));
        assert_eq!(ledger.violations(), 0);
        ledger.give_back(Kind::Physical, 0, 401);
        assert_eq!((ledger.bytes(Kind::Physical, 0), ledger.violations()), (0, 1), "clamped, and noted");
    }

    #[test]
    fn the_most_that_was_held_stays_known() {
        let ledger = ledger(1000);
        let peak = |limit: usize| ledger.slot().peak[limit].load(Ordering::SeqCst);
        assert!(ledger.take(Kind::Linear, 0, 600));
        ledger.note_peaks();
        assert!(ledger.take(Kind::Linear, 0, 300));
        ledger.give_back(Kind::Linear, 0, 300);
        ledger.note_peaks();
        assert_eq!(peak(0), 600, "what the driver did not give was not held");
        ledger.give_back(Kind::Linear, 0, 500);
        assert!(!ledger.take(Kind::Linear, 0, 950));
        ledger.add(Kind::Pools, 0, 200);
        ledger.add(Kind::Graphs, 1, 3000);
        ledger.add(Kind::HostPinned, HOST, 5000);
        ledger.note_peaks();
        assert_eq!((peak(0), peak(1), peak(2), peak(HOST)), (600, 3000, 0, 0));
        assert_eq!(ledger.shared.peaks[1].load(Ordering::SeqCst), 3000, "beyond the budget, if it is so");
    }

    #[test]
    fn spilled_memory_of_all_devices_has_one_limit_and_counts_against_no_budget() {
        let ledger = ledger(1000);
        assert!(!ledger.take(Kind::Spilled, 0, 1), "none is allowed");
        ledger.shared.offer(Limits { budget: 0, spill: 500 });
        assert!(ledger.take(Kind::Spilled, 0, 300));
        assert!(!ledger.take(Kind::Spilled, 1, 201));
        assert!(ledger.take(Kind::Spilled, 1, 200));
        assert!(ledger.take(Kind::Linear, 0, 1000));
        assert_eq!((ledger.used(0), ledger.used(HOST)), (1000, 500));
        assert_eq!((ledger.bytes(Kind::Spilled, 0), ledger.bytes(Kind::Spilled, 1)), (300, 200));
        ledger.note_peaks();
        ledger.give_back(Kind::Spilled, 0, 300);
        ledger.give_back(Kind::Spilled, 1, 200);
        assert_eq!((ledger.used(HOST), ledger.slot().peak[HOST].load(Ordering::SeqCst)), (0, 500));
        assert_eq!(ledger.violations(), 0);
    }

    #[test]
    fn what_is_refused_for_good_can_be_read_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        file::create(&path, Identity::own(), Limits { budget: 1000, spill: 0 }).unwrap();
        let ledger = Ledger::open(Some(&path), Limits { budget: 7, spill: 0 });
        assert!(ledger.take(Kind::Linear, 2, 600));
        assert!(!ledger.try_take(Kind::Pools, 2, 500), "nothing is noted");
        assert!(!ledger.take(Kind::Pools, 2, 500));
        assert!(!ledger.take(Kind::Physical, 0, 1001));
        assert!(!ledger.take(Kind::Spilled, 2, 5));
        ledger.note_peaks();
        let snapshot = Reader::open(&path).unwrap().snapshot().unwrap();
        let told = snapshot.denials.iter().map(|denial| {
            let Denial { number, owner, device, kind, bytes, used, limit, .. } = *denial;
            assert_eq!(owner, Identity::own());
            (number, device, kind, bytes, used, limit)
        });
        let expected = [
            (1, 2, Kind::Pools, 500, 600, 1000),
            (2, 0, Kind::Physical, 1001, 0, 1000),
            (3, 2, Kind::Spilled, 5, 0, 0),
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        assert_eq!((snapshot.denied, snapshot.joined, snapshot.used(2)), (3, 1, 600));
        assert_eq!(snapshot.peaks[2], 600);
    }

    #[test]
    fn a_file_is_shared_and_the_dead_are_taken_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let first = Ledger::open(Some(&path), Limits { budget: 1000, spill: 0 });
        assert!(first.take(Kind::Linear, 0, 700));
        // As another process would: the same file, another slot. This process's own slot is not cleared by that, since
        // its owner is made another, one that is dead.
        first.slot().owner.store(Identity::from_number(4 << 32 | 1).number(), Ordering::SeqCst);
        let second = Ledger::open(Some(&path), Limits { budget: 5000, spill: 0 });
        assert_ne!(first.own, second.own);
        assert_eq!(second.budget(0), 1000, "the first one's word");
        assert_eq!(second.used(0), 700);
        first.slot().owner.store(first.slot().owner.load(Ordering::SeqCst) | 1023 << 54, Ordering::SeqCst);
        assert!(!second.take(Kind::Linear, 0, 400), "of another namespace: alive, as far as one can tell");
        first.slot().owner.store(4 << 32 | 1, Ordering::SeqCst);
        let namespace = Identity::own().number() >> 54 << 54;
        first.slot().owner.store(namespace | 4_000_000 << 32 | 1, Ordering::SeqCst);
        assert!(second.take(Kind::Linear, 0, 400), "there is no such process");
        assert_eq!(second.used(0), 400);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size_of::<Shared>() as u64);
    }

    #[test]
    fn a_file_of_another_form_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other");
        std::fs::write(&path, "something else, and nothing of ours").unwrap();
        let ledger = Ledger::open(Some(&path), Limits { budget: 10, spill: 0 });
        assert!(ledger.take(Kind::Linear, 0, 10));
        assert_eq!(std::fs::read(&path).unwrap(), b"something else, and nothing of ours");
        std::fs::write(&path, vec![b'x'; size_of::<Shared>()]).unwrap();
        assert!(Ledger::open(Some(&path), Limits { budget: 10, spill: 0 }).take(Kind::Linear, 0, 10));
        assert_eq!(std::fs::read(&path).unwrap(), vec![b'x'; size_of::<Shared>()]);
        let unwritable = Ledger::open(Some(Path::new("/nowhere/ledger")), Limits { budget: 10, spill: 0 });
        assert!(!unwritable.take(Kind::Linear, 0, 11));
    }

    #[test]
    fn threads_at_the_edge_never_go_beyond() {
        let ledger = ledger(64);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        if ledger.take(Kind::Linear, 0, 10) {
                            let held = ledger.bytes(Kind::Linear, 0);
                            assert!(held <= 64, "{held}");
                            ledger.give_back(Kind::Linear, 0, 10);
                        }
                    }
                });
            }
        });
        assert_eq!((ledger.used(0), ledger.bytes(Kind::Linear, 0), ledger.violations()), (0, 0, 0));
    }
}
