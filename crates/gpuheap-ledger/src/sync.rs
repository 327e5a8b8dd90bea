//! Atomics and threads: the standard library's, or for the model checker (`cfg(loom)`) stand-ins that it can order in all
//! ways that the memory model allows, and at which a process can be killed.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

/// Between what a process writes of its own and what it reads of others. All accesses are in one order that everybody
/// agrees on (`SeqCst`), so this is nothing: only the model checker, which knows that order of fences alone, needs it.
#[cfg(not(loom))]
#[inline]
pub(crate) fn in_one_order() {}

#[cfg(loom)]
pub use self::model::{AtomicU64, Killed, kill_after, killed};
#[cfg(loom)]
pub(crate) use self::model::{in_one_order, yield_now};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::Ordering;

#[cfg(loom)]
mod model {
    use std::cell::Cell;
    use std::panic;

    use loom::sync::atomic::{self, Ordering};

    pub(crate) use loom::thread::yield_now;

    loom::thread_local! {
        /// How many more accesses the calling thread makes before it is killed.
        static LEFT: Cell<Option<u32>> = Cell::new(None);
    }

    /// What a killed thread ends with.
    #[derive(Debug)]
    pub struct Killed;

    /// The calling thread, which stands for a process, is killed before the access after the next `accesses`.
    pub fn kill_after(accesses: u32) {
        LEFT.with(|left| left.set(Some(accesses)));
    }

    /// Whether what the thread did ended because it was killed.
    pub fn killed<T>(function: impl FnOnce() -> T) -> bool {
        let ended = panic::catch_unwind(panic::AssertUnwindSafe(function));
        LEFT.with(|left| left.set(None));
        match ended {
            Ok(_) => false,
            Err(payload) if payload.is::<Killed>() => true,
            Err(payload) => panic::resume_unwind(payload),
        }
    }

    fn step() {
        let left = LEFT.with(Cell::get);
        if left == Some(0) {
            // Nothing is printed, and nothing is put right: as it is for a process.
            panic::resume_unwind(Box::new(Killed));
        }
        LEFT.with(|place| place.set(left.map(|left| left - 1)));
    }

    pub(crate) fn in_one_order() {
        atomic::fence(Ordering::SeqCst);
    }

    /// loom's, at which a process can be killed.
    #[derive(Debug)]
    pub struct AtomicU64(atomic::AtomicU64);

    macro_rules! accesses {
        ($($name:ident($($argument:ident),*) -> $result:ty;)*) => {
            $(
                #[allow(missing_docs, reason = "as the standard library's")]
                pub fn $name(&self, $($argument: u64,)* order: Ordering) -> $result {
                    step();
                    self.0.$name($($argument,)* order)
                }
            )*
        };
    }

    impl AtomicU64 {
        /// A new one.
        #[must_use]
        pub fn new(value: u64) -> Self {
            Self(atomic::AtomicU64::new(value))
        }

        accesses! {
            load() -> u64;
            store(value) -> ();
            swap(value) -> u64;
            fetch_add(value) -> u64;
            fetch_max(value) -> u64;
        }

        /// As the standard library's.
        pub fn compare_exchange(&self, old: u64, new: u64, good: Ordering, bad: Ordering) -> Result<u64, u64> {
            step();
            self.0.compare_exchange(old, new, good, bad)
        }

        /// As the standard library's.
        pub fn fetch_update(
            &self,
            set: Ordering,
            fetch: Ordering,
            function: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            step();
            self.0.fetch_update(set, fetch, function)
        }
    }
}
