//! Numbers of launches, of which each is given once.

use std::sync::atomic::{AtomicU64, Ordering};

/// Threads take numbers from so many places, each of them a batch at a time: one place for all would cost more
/// than all the rest as soon as several threads launch at the same time.
const SHARDS: usize = 64;
const BATCH: u64 = 64;
/// A launch is never numbered as if it had been before more launches than that.
const FAR: u64 = SHARDS as u64 * BATCH;

/// The next number of a batch; a multiple of [`BATCH`] if there is none left.
#[repr(align(64))]
struct Shard(AtomicU64);

/// Where threads take them.
pub(super) struct Numbers {
    shards: [Shard; SHARDS],
    /// Where the next batch begins.
    batches: AtomicU64,
}

impl Numbers {
    pub(super) const fn new() -> Self {
        Self { shards: [const { Shard(AtomicU64::new(0)) }; SHARDS], batches: AtomicU64::new(0) }
    }

    /// A number that no other launch has, never 0. Of one thread later launches have greater numbers, of
    /// several those that are some thousand launches apart.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        let next = &self.shards[shard()].0;
        loop {
            let number = next.load(Ordering::Relaxed);
            let stale = self.batches.load(Ordering::Relaxed).saturating_sub(number) > FAR;
            let given = if stale || number.is_multiple_of(BATCH) {
                self.batches.fetch_add(BATCH, Ordering::Relaxed) + 1
            } else {
                number
            };
            let after = given + 1;
            if next.compare_exchange_weak(number, after, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return given;
            }
        }
    }

    /// About how many were given: some thousand more or less with many threads.
    pub(super) fn given(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }
}

/// The place where the calling thread takes its numbers: by its stack, since threads have stacks of their own, far apart.
/// Two threads may share a place.
#[inline]
fn shard() -> usize {
    let here = 0_u8;
    let hash = ((&raw const here).addr() as u64 >> 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(hash >> (u64::BITS - SHARDS.trailing_zeros())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn launches_have_numbers_of_their_own_whoever_shares_a_place() {
        let numbers = Numbers::new();
        let mut all: Vec<u64> = thread::scope(|scope| {
            // Many more than there are places.
            let threads: Vec<_> = (0..200)
                .map(|_| {
                    scope.spawn(|| {
                        let taken: Vec<u64> = (0..500).map(|_| numbers.next()).collect();
                        assert!(taken.iter().all(|number| *number > 0));
                        taken
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200 * 500);
    }

    #[test]
    fn a_thread_that_launches_seldom_is_not_numbered_as_long_ago() {
        let numbers = Numbers::new();
        let first = numbers.next();
        let others = || (0..2 * FAR).map(|_| numbers.next()).max().unwrap();
        let last = thread::scope(|scope| scope.spawn(others).join().unwrap());
        let next = numbers.next();
        assert!(last > first + FAR && next + FAR > last, "{first} {last} {next}");
    }
}
