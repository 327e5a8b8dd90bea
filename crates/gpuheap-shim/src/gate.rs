//! The gate: whoever puts work on a device, or changes what is behind its addresses, passes it. Closed, it holds all of
//! them back, so that whoever closed it can move memory.
//!
//! A pass is two atomic additions to a counter that few threads share. Nobody waits in an open gate, and nothing but the
//! call itself happens between the two. A call that takes long, because the driver waits for the device, keeps the gate
//! from closing; so closing has an end ([`Gate::close`]), and a program whose threads wait for each other goes on.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::depth;
use crate::state::lock;

const SHARDS: usize = 64;

/// A counter that has its cache lines for itself: two, as processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicU32);

/// See the head of the file.
pub(crate) struct Gate {
    closed: AtomicBool,
    passing: [Counter; SHARDS],
    lock: Mutex<()>,
    opened: Condvar,
    waiting: AtomicU32,
    /// A descriptor to write to when someone waits at the closed gate; −1 if nobody wants to know.
    bell: AtomicI32,
}

/// Passing: dropped when the call is over.
pub(crate) struct Pass<'a>(&'a AtomicU32);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The gate is closed for others as long as this is there.
pub(crate) struct Closed<'a>(&'a Gate);

impl Closed<'_> {
    /// Leaves it closed, until [`Gate::reopen`].
    pub(crate) fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.reopen();
    }
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            closed: AtomicBool::new(false),
            passing: std::array::from_fn(|_| Counter::default()),
            lock: Mutex::new(()),
            opened: Condvar::new(),
            waiting: AtomicU32::new(0),
            bell: AtomicI32::new(-1),
        }
    }

    /// Passes, as soon as the gate is open.
    #[inline]
    pub(crate) fn enter(&self) -> Pass<'_> {
        let counter = &self.passing[shard()].0;
        loop {
            // Either whoever closes sees the count, or this sees the gate closed: one order for both, hence `SeqCst`.
            counter.fetch_add(1, Ordering::SeqCst);
            let pass = Pass(counter);
            if !self.closed.load(Ordering::SeqCst) {
                return pass;
            }
            drop(pass);
            self.wait();
        }
    }

    /// Passes if the gate is open just now.
    pub(crate) fn try_enter(&self) -> Option<Pass<'_>> {
        let counter = &self.passing[shard()].0;
        counter.fetch_add(1, Ordering::SeqCst);
        let pass = Pass(counter);
        (!self.closed.load(Ordering::SeqCst)).then_some(pass)
    }

    /// Steps out for a while, so that the gate can close meanwhile, and passes again before it comes back. Only for a
    /// thread that passes, and for work that touches nothing that moves: such as to wait for another process, which may
    /// be waiting for this one to come to rest.
    pub(crate) fn outside<T>(&self, work: impl FnOnce() -> T) -> T {
        /// In again, even if the work panics: the pass will be counted down once more.
        struct In<'a>(&'a Gate);
        impl Drop for In<'_> {
            fn drop(&mut self) {
                std::mem::forget(self.0.enter());
            }
        }
        self.passing[shard()].0.fetch_sub(1, Ordering::Release);
        let _in = In(self);
        work()
    }

    #[cold]
    fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.ring();
        let mut guard = lock(&self.lock);
        while self.closed.load(Ordering::SeqCst) {
            guard = self.opened.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        drop(guard);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes up whoever [`Gate::set_bell`] is for.
    pub(crate) fn ring(&self) {
        let bell = self.bell.load(Ordering::SeqCst);
        if bell >= 0 {
            let one = 1_u64;
            // SAFETY: eight bytes from a number that outlives the call, to an event counter of this library's.
            unsafe { libc::write(bell, (&raw const one).cast(), size_of::<u64>()) };
        }
    }

    /// Whom to tell that someone waits.
    pub(crate) fn set_bell(&self, descriptor: i32) {
        self.bell.store(descriptor, Ordering::SeqCst);
    }

    /// Whether someone waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Closes the gate and waits until nobody passes. Nothing, and the gate is open again, if somebody still does after
    /// `patience`, or if it was closed already.
    pub(crate) fn close(&self, patience: Duration) -> Option<Closed<'_>> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return None;
        }
        let closed = Closed(self);
        let start = Instant::now();
        let mut rounds = 0_u32;
        while self.passing.iter().any(|counter| counter.0.load(Ordering::SeqCst) > 0) {
            if start.elapsed() > patience {
                return None;
            }
            rounds += 1;
            if rounds < 100 {
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_micros(100));
            }
        }
        Some(closed)
    }

    /// Opens it, for all who wait.
    pub(crate) fn reopen(&self) {
        let guard = lock(&self.lock);
        self.closed.store(false, Ordering::SeqCst);
        self.opened.notify_all();
        drop(guard);
    }
}

/// The counter of the calling thread. Several may share one; most have one to themselves.
fn shard() -> usize {
    // Threads' static storage lies apart by the size of their stacks: the upper bits of a product depend on all of it.
    let mixed = depth::thread().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
    usize::try_from(mixed).unwrap_or(0) % SHARDS
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn closed_it_holds_others_back_and_whoever_is_inside_holds_the_closing_back() {
        let gate = Gate::new();
        let pass = gate.enter();
        assert!(gate.close(Duration::from_millis(5)).is_none(), "someone is passing");
        drop(gate.enter());
        assert!(gate.try_enter().is_some());
        drop(pass);
        let closed = gate.close(Duration::from_secs(5)).unwrap();
        assert!(gate.close(Duration::ZERO).is_none(), "it is closed already");
        assert!(gate.try_enter().is_none());
        thread::scope(|scope| {
            let late = scope.spawn(|| drop(gate.enter()));
            while !gate.is_wanted() {
                thread::yield_now();
            }
            assert!(!late.is_finished());
            drop(closed);
        });
        assert!(!gate.is_wanted());
    }

    #[test]
    fn whoever_steps_out_lets_it_close_and_comes_in_again_when_it_opens() {
        let gate = Gate::new();
        let pass = gate.enter();
        gate.outside(|| drop(gate.close(Duration::ZERO).unwrap()));
        assert!(gate.close(Duration::ZERO).is_none(), "in again");
        drop(pass);
        drop(gate.close(Duration::ZERO).unwrap());
    }

    #[test]
    fn nobody_is_inside_while_it_is_closed() {
        let gate = Arc::new(Gate::new());
        let inside = Arc::new(AtomicU64::new(0));
        let end = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (gate, inside, end) = (Arc::clone(&gate), Arc::clone(&inside), Arc::clone(&end));
                thread::spawn(move || {
                    while !end.load(Ordering::Relaxed) {
                        let pass = gate.enter();
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(pass);
                    }
                })
            })
            .collect();
        for _ in 0..200 {
            let closed = gate.close(Duration::from_secs(20)).unwrap();
            for _ in 0..100 {
                assert_eq!(inside.load(Ordering::SeqCst), 0);
            }
            drop(closed);
        }
        end.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn left_closed_it_opens_when_told_and_whoever_waits_rings() {
        let gate = Gate::new();
        // SAFETY: takes numbers only.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        gate.set_bell(bell);
        gate.close(Duration::from_secs(5)).unwrap().stay();
        thread::scope(|scope| {
            scope.spawn(|| drop(gate.enter()));
            let mut count = 0_u64;
            // SAFETY: eight bytes, to a number that outlives the call.
            let read = unsafe { libc::read(bell, (&raw mut count).cast(), 8) };
            assert_eq!((read, count), (8, 1));
            gate.reopen();
        });
        // SAFETY: made above.
        unsafe { libc::close(bell) };
    }
}
