//! The figures, and budgets, in memory that all processes of a run share and that outlives each of them.
//!
//! Each process has a slot, and only it writes there. So there is nothing to lock and nothing to repair: when a process is
//! killed, at whatever point, its slot says what it held, and is taken out by whoever sees that its owner is dead. To
//! take bytes within a budget a process first enters them in its slot and then adds up all slots: of two that come too
//! close at once at least one sees the other and takes its bytes back.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use crate::charge::{KINDS, Kind};
use crate::identity::Identity;

/// Devices with figures of their own; what is beyond shares the last one's.
pub(crate) const DEVICES: usize = 16;
/// The place of the host among devices.
pub(crate) const HOST: usize = DEVICES;
const SLOTS: usize = 256;
/// Says what the file is, in which form: a file of another form is left alone.
const MAGIC: u64 = u64::from_le_bytes(*b"gpuheap1");

/// A process's figures.
#[repr(C)]
pub(crate) struct Slot {
    owner: AtomicU64,
    /// Tells what the owner was before an exec from what it is after; 0 until the slot is ready.
    program: AtomicU64,
    /// By device, bytes that count against its budget.
    budgeted: [AtomicU64; DEVICES],
    /// By device, by kind.
    bytes: [[AtomicU64; KINDS]; DEVICES + 1],
    /// Functions of our list that a program got from the driver unseen.
    unseen: AtomicU64,
    /// Sums that would have gone below zero.
    violations: AtomicU64,
}

#[repr(C)]
struct Shared {
    magic: AtomicU64,
    /// Slots that were ever taken: those beyond need no look.
    used: AtomicU32,
    reserved: AtomicU32,
    /// By device; 0 is none.
    budgets: [AtomicU64; DEVICES],
    slots: [Slot; SLOTS],
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
    /// Opens the ledger at `path`, or one for this process alone, and takes a slot. `budget` is written if none is there.
    ///
    /// What cannot be opened or is full is no reason to fail for a program that never asked for any of this: it counts
    /// for itself then, with the budget for itself.
    pub(crate) fn open(path: Option<&Path>, budget: u64) -> Self {
        let shared = path.and_then(map_file).or_else(map_private);
        // Memory for the figures is a few hundred KiB. Without it there is a ledger that nobody else sees.
        let shared = shared.unwrap_or_else(|| zeroed());
        let ledger = Self::join(shared).or_else(|| Self::join(zeroed()));
        let ledger = ledger.unwrap_or(Self { shared, own: 0, process: 0 });
        if budget > 0 {
            for device in &ledger.shared.budgets {
                let _ = device.compare_exchange(0, budget, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
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
                slot.clear();
                slot.owner.store(0, Ordering::SeqCst);
            }
        }
        let take = || {
            let free = |slot: &Slot| slot.owner.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            shared.slots.iter().position(free)
        };
        let number = take().or_else(|| {
            sweep(shared, own);
            take()
        })?;
        shared.slots[number].program.store(program, Ordering::SeqCst);
        shared.used.fetch_max(u32::try_from(number + 1).unwrap_or(u32::MAX), Ordering::SeqCst);
        Some(Self { shared, own: number, process: own })
    }

    fn slot(&self) -> &'static Slot {
        &self.shared.slots[self.own]
    }

    /// Charges bytes of a kind to a device, unless that takes the run beyond its budget.
    pub(crate) fn take(&self, kind: Kind, device: usize, bytes: u64) -> bool {
        let budget = self.budget(device);
        if !kind.counts() || budget == 0 {
            self.add(kind, device, bytes);
            return true;
        }
        if bytes > budget {
            return false;
        }
        let slot = self.slot();
        // A few times: another process may be about to take its own back, or may be dead.
        for attempt in 0..4 {
            slot.budgeted[device].fetch_add(bytes, Ordering::SeqCst);
            if self.used(device) <= budget {
                slot.bytes[device][kind.number()].fetch_add(bytes, Ordering::SeqCst);
                return true;
            }
            slot.lower(&slot.budgeted[device], bytes);
            if attempt == 0 {
                sweep(self.shared, self.process);
            }
            // Of two that met, the one with the lower number tries again sooner.
            for _ in 0..=self.own {
                thread::yield_now();
            }
        }
        false
    }

    /// Charges bytes that are taken already, whatever the budget.
    pub(crate) fn add(&self, kind: Kind, device: usize, bytes: u64) {
        let slot = self.slot();
        if kind.counts() && device < DEVICES {
            slot.budgeted[device].fetch_add(bytes, Ordering::SeqCst);
        }
        slot.bytes[device][kind.number()].fetch_add(bytes, Ordering::SeqCst);
    }

    /// Takes charged bytes back.
    pub(crate) fn give_back(&self, kind: Kind, device: usize, bytes: u64) {
        let slot = self.slot();
        slot.lower(&slot.bytes[device][kind.number()], bytes);
        if kind.counts() && device < DEVICES {
            slot.lower(&slot.budgeted[device], bytes);
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

    /// Whether any device has one.
    pub(crate) fn has_budgets(&self) -> bool {
        self.shared.budgets.iter().any(|budget| budget.load(Ordering::Relaxed) > 0)
    }

    /// Bytes that all processes of the run hold on a device, the dead included until someone needs their bytes.
    pub(crate) fn used(&self, device: usize) -> u64 {
        let used = usize::try_from(self.shared.used.load(Ordering::SeqCst)).unwrap_or(SLOTS).min(SLOTS);
        let held = self.shared.slots[..used].iter().map(|slot| slot.budgeted[device].load(Ordering::SeqCst));
        held.fold(0, u64::saturating_add)
    }

    /// The same, once the dead are taken out.
    pub(crate) fn used_by_the_living(&self, device: usize) -> u64 {
        sweep(self.shared, self.process);
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

impl Slot {
    fn clear(&self) {
        let notes = [&self.unseen, &self.violations, &self.program];
        let figures = self.bytes.iter().flatten().chain(&self.budgeted).chain(notes);
        for figure in figures {
            figure.store(0, Ordering::SeqCst);
        }
    }

    /// Lowers one of the figures, not below zero.
    fn lower(&self, figure: &AtomicU64, bytes: u64) {
        let lowered = figure.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| Some(held.saturating_sub(bytes)));
        if lowered.is_ok_and(|held| held < bytes) {
            self.violations.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Takes the slots of dead processes out. Whoever is killed while doing so leaves a slot of a dead process again.
fn sweep(shared: &Shared, own: u64) {
    let used = usize::try_from(shared.used.load(Ordering::SeqCst)).unwrap_or(SLOTS).min(SLOTS);
    for slot in &shared.slots[..used] {
        let owner = slot.owner.load(Ordering::SeqCst);
        if owner == 0 || owner == own || Identity::from_number(owner).is_alive() {
            continue;
        }
        // It becomes this process's, so that only one clears it, and nobody takes it before it is clear.
        if slot.owner.compare_exchange(owner, own, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            slot.clear();
            slot.owner.store(0, Ordering::SeqCst);
        }
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
    use super::*;

    fn ledger(budget: u64) -> Ledger {
        Ledger::open(None, budget)
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
    fn a_file_is_shared_and_the_dead_are_taken_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let first = Ledger::open(Some(&path), 1000);
        assert!(first.take(Kind::Linear, 0, 700));
        // As another process would: the same file, another slot. This process's own slot is not cleared by that, since
        // its owner is made another, one that is dead.
        first.slot().owner.store(Identity::from_number(4 << 32 | 1).number(), Ordering::SeqCst);
        let second = Ledger::open(Some(&path), 5000);
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
        let ledger = Ledger::open(Some(&path), 10);
        assert!(ledger.take(Kind::Linear, 0, 10));
        assert_eq!(std::fs::read(&path).unwrap(), b"something else, and nothing of ours");
        std::fs::write(&path, vec![b'x'; size_of::<Shared>()]).unwrap();
        assert!(Ledger::open(Some(&path), 10).take(Kind::Linear, 0, 10));
        assert_eq!(std::fs::read(&path).unwrap(), vec![b'x'; size_of::<Shared>()]);
        let unwritable = Ledger::open(Some(Path::new("/nowhere/ledger")), 10);
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
