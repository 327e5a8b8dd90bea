//! The figures, and budgets, in memory that all processes of a run share and that outlives each of them. Its form is that
//! of `gpuheap-ledger`, and so is how bytes are taken; here it is mapped.

mod mapped;
mod torn;

use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use gpuheap_ledger::file::Limits;
use gpuheap_ledger::{Account, Identity, Kind, Member, Name};

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

/// The calling process's account in the figures of its run.
#[derive(Clone, Copy)]
pub(crate) struct Ledger(Account<'static>);

impl Deref for Ledger {
    type Target = Account<'static>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Ledger {
    /// Opens the ledger at `path`, or one for this process alone, and takes a slot. `limits` are written if none are there.
    ///
    /// What cannot be opened or is full is no reason to fail for a program that never asked for any of this: it counts
    /// for itself then, with the budget for itself.
    pub(crate) fn open(path: Option<&Path>, limits: Limits) -> Self {
        let (process, name) = (Identity::own(), Name::own());
        let member = Member { process, name, program: program(), is_alive: Identity::is_alive };
        torn::begin();
        let mapped = path.and_then(mapped::file).inspect(|shared| torn::watch(shared));
        if let Some(account) = mapped.and_then(|shared| Account::join(shared, member)) {
            account.shared().offer(limits);
            torn::joined(&account);
            return Self(account);
        }
        let joined = mapped::private().and_then(|shared| Account::join(shared, member));
        // Memory for the figures is a MiB.
        let account = joined.unwrap_or_else(|| Account::alone(mapped::zeroed(), member));
        account.shared().offer(limits);
        Self(account)
    }

    /// Bytes of a device's budget that nobody who is alive holds; nothing if it has no budget.
    pub(crate) fn room(&self, device: usize) -> Option<u64> {
        let budget = self.budget(device);
        (budget > 0).then(|| budget.saturating_sub(self.used_by_the_living(device)))
    }

    /// So many bytes of this process went to the host, and so many came back.
    pub(crate) fn moved(&self, out: u64, back: u64) {
        self.slot().moved_out.fetch_add(out, Ordering::Relaxed);
        self.slot().moved_in.fetch_add(back, Ordering::Relaxed);
    }

    /// [`Account::take`], after which there may be a new peak.
    pub(crate) fn take(&self, kind: Kind, device: usize, bytes: u64) -> bool {
        let taken = self.0.take(kind, device, bytes);
        raised(taken.then_some((kind, device, bytes)));
        taken
    }

    /// Notes that a request was refused, if it is the limit that refused it.
    pub(crate) fn refuse(&self, kind: Kind, device: usize, bytes: u64) -> bool {
        let refused = self.0.exceeds(kind, device, bytes);
        if refused {
            self.0.refuse(kind, device, bytes);
        }
        refused
    }

    /// [`Account::try_take`], likewise.
    pub(crate) fn try_take(&self, kind: Kind, device: usize, bytes: u64) -> bool {
        let taken = self.0.try_take(kind, device, bytes);
        raised(taken.then_some((kind, device, bytes)));
        taken
    }

    /// [`Account::add`], likewise.
    pub(crate) fn add(&self, kind: Kind, device: usize, bytes: u64) {
        self.0.add(kind, device, bytes);
        raised(Some((kind, device, bytes)));
    }

    /// [`Account::give_back`].
    pub(crate) fn give_back(&self, kind: Kind, device: usize, bytes: u64) {
        self.0.give_back(kind, device, bytes);
        torn::given_back(kind, device, bytes);
    }
}

fn raised(charged: Option<(Kind, usize, u64)>) {
    if let Some((kind, device, bytes)) = charged {
        torn::taken(kind, device, bytes);
        RAISED.store(true, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use std::thread;

    use gpuheap_ledger::{Denial, Reader, Shared, file};

    use super::*;

    fn ledger(budget: u64) -> Ledger {
        Ledger::open(None, Limits { budget, spill: 0 })
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
        assert_eq!(ledger.shared().peaks[1].load(Ordering::SeqCst), 3000, "beyond the budget, if it is so");
    }

    #[test]
    fn spilled_memory_of_all_devices_has_one_limit_and_counts_against_no_budget() {
        let ledger = ledger(1000);
        assert!(!ledger.take(Kind::Spilled, 0, 1), "none is allowed");
        ledger.shared().offer(Limits { budget: 0, spill: 500 });
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
        assert!(!std::ptr::eq(first.slot(), second.slot()));
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
