//! A ledger that is cut short while it is mapped, or whose disk fails: the system answers whoever touches what is gone with
//! SIGBUS, which ends programs. A program must not end for figures of ours: other memory is put in the ledger's place, in
//! which the process counts for itself from then on, with the run's budget and what it held. Whoever reads the file sees
//! that it is no ledger any more, and says so: `gpuheap run` does.
//!
//! The signal is taken over while a file is mapped, and what is not about the ledger goes on to whoever had it before. A
//! program that takes it over later, and passes nothing on, ends as it would without this. Nothing here waits for a lock
//! or asks for memory of the program's: it runs in the middle of whatever was interrupted.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use gpuheap_ledger::layout::MAGIC;
use gpuheap_ledger::{Account, DEVICES, Kind, LIMITS, Shared, limit_of};

/// Where the file is mapped; 0 if none is.
static START: AtomicUsize = AtomicUsize::new(0);
/// The place of this process's slot in it, in bytes.
static SLOT: AtomicUsize = AtomicUsize::new(0);
/// What becomes of the ledger: one of those below.
static STATE: AtomicU8 = AtomicU8::new(WHOLE);
const WHOLE: u8 = 0;
const REPLACING: u8 = 1;
const REPLACED: u8 = 2;
const LOST: u8 = 3;

/// What the run may hold and what this process holds, by limit: the ledger's own word may be gone when it is asked.
static MOST: [AtomicU64; LIMITS] = [const { AtomicU64::new(0) }; LIMITS];
static HELD: [AtomicU64; LIMITS] = [const { AtomicU64::new(0) }; LIMITS];

/// What was done about the signal before; null until it is taken over.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Another ledger is opened, in which the process holds nothing yet.
pub(super) fn begin() {
    START.store(0, Ordering::SeqCst);
    SLOT.store(0, Ordering::SeqCst);
    STATE.store(WHOLE, Ordering::SeqCst);
    for held in &HELD {
        held.store(0, Ordering::SeqCst);
    }
}

/// A file is mapped there.
pub(super) fn watch(shared: &'static Shared) {
    START.store(std::ptr::from_ref(shared).addr(), Ordering::SeqCst);
    take_over();
}

/// And this process has a place in it.
pub(super) fn joined(account: &Account<'static>) {
    let shared = account.shared();
    for (limit, most) in MOST.iter().enumerate() {
        let word = shared.budgets.get(limit).unwrap_or(&shared.spill);
        most.store(word.load(Ordering::SeqCst), Ordering::SeqCst);
    }
    let slot = std::ptr::from_ref(account.slot()).addr() - std::ptr::from_ref(shared).addr();
    SLOT.store(slot, Ordering::SeqCst);
}

/// The process holds more.
#[inline]
pub(super) fn taken(kind: Kind, device: usize, bytes: u64) {
    if let Some(limit) = limit_of(kind, device) {
        HELD[limit].fetch_add(bytes, Ordering::Relaxed);
    }
}

/// And less.
#[inline]
pub(super) fn given_back(kind: Kind, device: usize, bytes: u64) {
    if let Some(limit) = limit_of(kind, device) {
        let less = |held: u64| Some(held.saturating_sub(bytes));
        let _ = HELD[limit].fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// Takes the signal over, once a process.
fn take_over() {
    if !BEFORE.load(Ordering::SeqCst).is_null() {
        return;
    }
    let before = Box::leak(Box::new(MaybeUninit::<libc::sigaction>::zeroed()));
    // SAFETY: `before` outlives the call, which is asked for what is there alone.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) } != 0 {
        return;
    }
    // Before the signal can come here. Of two threads one is first, and both install the same.
    let first = BEFORE.compare_exchange(std::ptr::null_mut(), before.as_mut_ptr(), Ordering::SeqCst, Ordering::SeqCst);
    if first.is_err() {
        return;
    }
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_signal;
    // SAFETY: zeroes are a value of it: no flags, an empty mask.
    let mut wanted: libc::sigaction = unsafe { std::mem::zeroed() };
    wanted.sa_sigaction = handler as *const () as usize;
    wanted.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the function is this library's, which is never unloaded, and does what may be done in a signal's handler.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const wanted, std::ptr::null_mut()) };
}

extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the thread's own number of errors.
    let errors = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let error = unsafe { errors.read() };
    // SAFETY: the system tells what the signal is about.
    let told = unsafe { &*info };
    let is_fault = told.si_code > 0;
    // SAFETY: a fault has an address; of another signal these bytes mean something else and are not used.
    let address = unsafe { told.si_addr() }.addr();
    if !(is_fault && is_ledger(address) && replace()) {
        pass_on(signal, is_fault, info, context);
    }
    // SAFETY: as above.
    unsafe { errors.write(error) };
}

fn is_ledger(address: usize) -> bool {
    let start = START.load(Ordering::SeqCst);
    start != 0 && (start..start + size_of::<Shared>()).contains(&address)
}

/// Puts other memory in the ledger's place; false if there is none. Of several threads one does, and the others wait for
/// it: it takes as long as two calls of the system.
fn replace() -> bool {
    match STATE.compare_exchange(WHOLE, REPLACING, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => {
            let put = put_other(START.load(Ordering::SeqCst));
            STATE.store(if put { REPLACED } else { LOST }, Ordering::SeqCst);
        }
        Err(_) => {
            while STATE.load(Ordering::SeqCst) == REPLACING {
                // SAFETY: takes nothing.
                unsafe { libc::sched_yield() };
            }
        }
    }
    STATE.load(Ordering::SeqCst) == REPLACED
}

/// Filled before it is put there, so that no thread ever finds a ledger without a budget.
fn put_other(start: usize) -> bool {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, wherever there is room.
    let fresh = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), access, flags, -1, 0) };
    if fresh == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: as large, aligned to a page, and all of it atomics, for which zero is a value.
    fill(unsafe { &*fresh.cast::<Shared>() });
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let place: *mut c_void = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: both are mappings of that size. What is there is the ledger, whose file is gone; all that is known of it are
    // atomics, so that whoever has a reference finds other values and nothing worse.
    let moved = unsafe { libc::mremap(fresh, size_of::<Shared>(), size_of::<Shared>(), flags, place) };
    moved == place
}

/// Writes what the process may hold and holds. Who asked for it, and of which kind it is, is not known any more.
fn fill(shared: &Shared) {
    for (limit, most) in MOST.iter().enumerate() {
        let word = shared.budgets.get(limit).unwrap_or(&shared.spill);
        word.store(most.load(Ordering::SeqCst), Ordering::SeqCst);
    }
    shared.magic.store(MAGIC, Ordering::SeqCst);
    let place = SLOT.load(Ordering::SeqCst);
    let slots = std::ptr::from_ref(&shared.slots).addr() - std::ptr::from_ref(shared).addr();
    let number = place.saturating_sub(slots) / size_of::<gpuheap_ledger::Slot>();
    shared.used.store(number as u64 + 1, Ordering::SeqCst);
    let Some(slot) = shared.slots.get(number) else { return };
    for (word, held) in slot.limited.iter().zip(&HELD) {
        word.store(held.load(Ordering::SeqCst), Ordering::SeqCst);
    }
    const { assert!(LIMITS == DEVICES + 1) };
}

/// The signal is somebody else's: what would happen to it without this happens.
fn pass_on(signal: c_int, is_fault: bool, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: null, or leaked by `take_over` once it was filled.
    let before = unsafe { BEFORE.load(Ordering::SeqCst).as_ref() };
    let (action, flags) = before.map_or((libc::SIG_DFL, 0), |before| (before.sa_sigaction, before.sa_flags));
    match action {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The instruction is repeated and ends the program as it would have; what was sent is sent again.
            // SAFETY: takes numbers only.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            if !is_fault {
                // SAFETY: takes a number only.
                unsafe { libc::raise(signal) };
            }
        }
        function => {
            let function: *const () = std::ptr::with_exposed_provenance(function);
            if flags & libc::SA_SIGINFO != 0 {
                // SAFETY: that is how such a handler was given.
                let handler = unsafe {
                    std::mem::transmute::<*const (), extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(function)
                };
                handler(signal, info, context);
            } else {
                // SAFETY: as above.
                let handler = unsafe { std::mem::transmute::<*const (), extern "C" fn(c_int)>(function) };
                handler(signal);
            }
        }
    }
}
