//! What holds of the shared memory in every order in which processes come to it: `cargo xtask loom`.
//!
//! Threads stand for processes. Of all orders those are run in which threads are interrupted at most as often as each model
//! says: with fewer, faults that were put in on purpose were not found. Where a process may be killed, that is before
//! each of its accesses, in one run of the model after the other.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::atomic::{AtomicU64 as Plain, Ordering};

use gpuheap_ledger::file::Limits;
use gpuheap_ledger::sync::{kill_after, killed};
use gpuheap_ledger::{Account, Identity, Kind, Member, Name, Shared, Slot, Uuid};
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::thread::{self, JoinHandle};

const BUDGET: u64 = 10;

loom::lazy_static! {
    /// By process.
    static ref DEAD: [AtomicBool; 8] = std::array::from_fn(|_| AtomicBool::new(false));
    /// Bytes that processes have been granted just now.
    static ref GRANTED: AtomicU64 = AtomicU64::new(0);
}

fn is_alive(process: Identity) -> bool {
    !DEAD[usize::try_from(process.number()).unwrap()].load(Ordering::Acquire)
}

fn die(process: u64) {
    DEAD[usize::try_from(process).unwrap()].store(true, Ordering::Release);
}

/// A process with the program that it was started with.
fn member(process: u64) -> Member {
    Member { process: Identity::from_number(process), name: Name::of(b"process"), program: 100 + process, is_alive }
}

/// The same process with the program that it runs now.
fn after_exec(process: u64) -> Member {
    Member { program: 200 + process, ..member(process) }
}

fn check(interruptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// The memory of a run in which processes 1, 2, … have joined, each in the slot before its number.
fn run(processes: u64) -> Arc<Shared> {
    let shared = Arc::new(Shared::default());
    shared.offer(Limits { budget: BUDGET, spill: 0 });
    for process in 1..=processes {
        Account::join(&shared, member(process)).unwrap();
    }
    shared
}

fn account(shared: &Shared, process: u64) -> Account<'_> {
    Account::in_slot(shared, usize::try_from(process - 1).unwrap(), member(process))
}

fn spawn(shared: &Arc<Shared>, process: impl FnOnce(&Shared) + 'static) -> JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || process(&shared))
}

fn end<const N: usize>(processes: [JoinHandle<()>; N]) {
    for process in processes {
        process.join().unwrap();
    }
}

fn take(account: &Account<'_>, bytes: u64) -> bool {
    account.try_take(Kind::Linear, 0, bytes)
}

fn give_back(account: &Account<'_>, bytes: u64) {
    account.give_back(Kind::Linear, 0, bytes);
}

/// What a slot says, of what counts and of what is held.
fn held(slot: &Slot) -> [u64; 2] {
    [&slot.limited[0], &slot.bytes[0][Kind::Linear.number()]].map(|figure| figure.load(Ordering::SeqCst))
}

/// Whose slots are, and what they say; a free one is as new.
fn slots(shared: &Shared) -> Vec<(u64, [u64; 2])> {
    let slot = |slot: &Slot| {
        let found = (slot.owner.load(Ordering::SeqCst), held(slot));
        assert!(found.0 != 0 || (found.1, slot.program.load(Ordering::SeqCst)) == ([0, 0], 0), "{found:?}");
        found
    };
    shared.slots.iter().map(slot).collect()
}

/// Takes bytes, holds them for a while if they were granted, and gives them back, or is killed.
fn hold(account: &Account<'_>, bytes: u64) {
    if take(account, bytes) {
        let held = Held::new(bytes);
        assert!(account.bytes(Kind::Linear, 0) >= bytes);
        drop(held);
        give_back(account, bytes);
    }
}

/// Bytes that a process was granted, until it gives them back or is killed.
struct Held(u64);

impl Held {
    fn new(bytes: u64) -> Self {
        // It orders nothing between processes, and the checker sees that they meet here.
        let granted = GRANTED.fetch_add(bytes, Ordering::Relaxed) + bytes;
        assert!(granted <= BUDGET, "{granted} bytes are held of {BUDGET}");
        Self(bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        GRANTED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[test]
fn two_processes_never_hold_more_than_the_budget() {
    check(7, || {
        let shared = run(2);
        let process = |number| {
            spawn(&shared, move |shared| {
                let account = account(shared, number);
                hold(&account, 6);
                assert_eq!((held(account.slot()), account.violations()), ([0, 0], 0));
            })
        };
        end([process(1), process(2)]);
        assert_eq!(slots(&shared), [(1, [0, 0]), (2, [0, 0]), (0, [0, 0])]);
        assert!(take(&account(&shared, 1), BUDGET));
    });
}

#[test]
fn threads_of_one_process_never_hold_more_than_the_budget() {
    check(6, || {
        let shared = run(1);
        let thread = || {
            spawn(&shared, |shared| {
                hold(&account(shared, 1), 6);
            })
        };
        end([thread(), thread()]);
        assert_eq!(slots(&shared)[0], (1, [0, 0]));
        assert_eq!(account(&shared, 1).violations(), 0);
    });
}

/// Another process takes bytes at the same time, and in the end nothing is missing.
#[test]
fn a_process_that_is_killed_anywhere_leaves_nothing_behind() {
    static KILLED: Plain = Plain::new(0);
    for accesses in 0.. {
        KILLED.store(0, Ordering::SeqCst);
        check(5, move || {
            let shared = run(1);
            let victim = spawn(&shared, move |shared| {
                kill_after(accesses);
                let killed = killed(|| hold(&Account::join(shared, member(2)).unwrap(), 6));
                KILLED.fetch_max(u64::from(killed), Ordering::SeqCst);
                die(2);
            });
            let survivor = spawn(&shared, |shared| {
                hold(&account(shared, 1), 5);
            });
            end([victim, survivor]);
            let account = account(&shared, 1);
            assert_eq!(account.used_by_the_living(0), 0);
            assert!(take(&account, BUDGET));
            assert_eq!(account.violations(), 0);
        });
        if KILLED.load(Ordering::SeqCst) == 0 {
            assert!(accesses > 15, "it was killed at {accesses} places");
            break;
        }
    }
}

/// Its slot is needed: there is no other. Nobody's figures are cleared but the dead one's.
#[test]
fn a_dead_one_s_slot_is_cleared_once_and_the_next_one_s_figures_stay() {
    check(4, || {
        let shared = run(3);
        account(&shared, 1).add(Kind::Linear, 0, 6);
        die(1);
        let sweeper = spawn(&shared, |shared| {
            assert!(account(shared, 2).used_by_the_living(0) <= 9);
        });
        let other = spawn(&shared, |shared| {
            let _ = account(shared, 3).used_by_the_living(0);
        });
        // Where another one is just clearing it, there is none yet.
        let joined = Account::join(&shared, member(4)).map(|account| account.add(Kind::Linear, 0, 3)).is_some();
        end([sweeper, other]);
        let first = if joined { (4, [3, 3]) } else { (0, [0, 0]) };
        assert_eq!(slots(&shared), [first, (2, [0, 0]), (3, [0, 0])]);
    });
}

#[test]
fn whoever_is_killed_while_clearing_is_cleared_after() {
    static KILLED: Plain = Plain::new(0);
    for accesses in 0.. {
        KILLED.store(0, Ordering::SeqCst);
        check(5, move || {
            let shared = run(3);
            account(&shared, 1).add(Kind::Linear, 0, 6);
            die(1);
            let victim = spawn(&shared, move |shared| {
                kill_after(accesses);
                let killed = killed(|| account(shared, 2).used_by_the_living(0));
                KILLED.fetch_max(u64::from(killed), Ordering::SeqCst);
                die(2);
            });
            let _ = account(&shared, 3).used_by_the_living(0);
            end([victim]);
            assert_eq!(account(&shared, 3).used_by_the_living(0), 0);
            assert_eq!(slots(&shared), [(0, [0, 0]), (0, [0, 0]), (3, [0, 0])]);
        });
        if KILLED.load(Ordering::SeqCst) == 0 {
            assert!(accesses > 30, "it was killed at {accesses} places");
            break;
        }
    }
}

/// Two copies of the library in one process, whose former program held something.
#[test]
fn what_a_former_program_held_is_given_up_once() {
    check(5, || {
        let shared = run(1);
        account(&shared, 1).add(Kind::Linear, 0, 6);
        let copy = || {
            spawn(&shared, |shared| {
                let account = Account::join(shared, after_exec(1)).unwrap();
                account.add(Kind::Linear, 0, 3);
                assert_eq!(held(account.slot()), [3, 3]);
            })
        };
        end([copy(), copy()]);
        let mut found = slots(&shared);
        found.sort_unstable();
        assert_eq!(found, [(0, [0, 0]), (1, [3, 3]), (1, [3, 3])]);
    });
}

/// One copy of the library takes a dead process out while another one comes to the same process, and a third process
/// takes the slot at once.
#[test]
fn a_copy_that_joins_does_not_take_a_slot_that_is_being_cleared_for_a_former_program_s() {
    check(3, || {
        let shared = run(2);
        account(&shared, 1).add(Kind::Linear, 0, 6);
        die(1);
        let sweeper = spawn(&shared, |shared| {
            let _ = account(shared, 2).used_by_the_living(0);
        });
        let copy_joined = std::sync::Arc::new(Plain::new(0));
        let note = copy_joined.clone();
        let copy = spawn(&shared, move |shared| {
            if let Some(account) = Account::join(shared, member(2)) {
                account.add(Kind::Linear, 0, 3);
                note.store(1, Ordering::SeqCst);
            }
        });
        let third = Account::join(&shared, member(3)).map(|account| account.add(Kind::Linear, 0, 2));
        end([sweeper, copy]);
        let copy = (copy_joined.load(Ordering::SeqCst) == 1).then_some((2, [3, 3]));
        let mut expected: Vec<_> = copy.into_iter().chain(third.map(|()| (3, [2, 2]))).collect();
        expected.resize(2, (0, [0, 0]));
        expected.sort_unstable();
        let all = slots(&shared);
        let mut found = vec![all[0], all[2]];
        found.sort_unstable();
        assert_eq!((all[1], found), ((2, [0, 0]), expected));
    });
}

#[test]
fn a_device_has_one_place() {
    check(8, || {
        let shared = run(0);
        let [first, second] = [1, 2].map(|number| Uuid::from_bytes([number; 16]));
        let found = Arc::new([Plain::new(0), Plain::new(0)]);
        let process = |devices: [Uuid; 2], number: usize| {
            let found = found.clone();
            spawn(&shared, move |shared| {
                let places = devices.map(|device| (device == second, shared.place(device)));
                let [one, other] = places.map(|(is_second, place)| u64::from(is_second) * 10 + place as u64);
                found[number].store(one.min(other) * 100 + one.max(other), Ordering::SeqCst);
            })
        };
        end([process([first, second], 0), process([second, first], 1)]);
        let [one, other] = [0, 1].map(|number| found[number].load(Ordering::SeqCst));
        assert!(one == other && [11, 110].contains(&one), "{one} {other}");
    });
}

/// Bytes, used and limit of a refused request that process `number` notes.
fn figures(number: u64) -> [u64; 3] {
    [number, number * 2, number * 3]
}

fn note(shared: &Shared, number: u64) {
    shared.denials.note((Identity::from_number(number), Name::of(b"process")), 0, Kind::Linear, figures(number));
}

/// Whose requests are there, each of them as it was noted.
fn noted(shared: &Shared) -> Vec<u64> {
    let whole = shared.denials.read().into_iter().map(|denial| {
        let number = denial.owner.number();
        assert_eq!([denial.bytes, denial.used, denial.limit], figures(number));
        number
    });
    whole.collect()
}

#[test]
fn refused_requests_are_read_whole_or_not_at_all_while_another_takes_their_place() {
    check(8, || {
        let shared = run(0);
        note(&shared, 1);
        let writer = spawn(&shared, |shared| note(shared, 2));
        noted(&shared);
        end([writer]);
        assert_eq!(noted(&shared), [2]);
    });
}

#[test]
fn of_two_refused_requests_in_one_place_one_is_whole_or_none() {
    check(2, || {
        let shared = run(0);
        let writer = spawn(&shared, |shared| note(shared, 1));
        note(&shared, 2);
        end([writer]);
        noted(&shared);
        note(&shared, 3);
        assert_eq!(noted(&shared), [3], "what is torn is mended by the next one");
    });
}
