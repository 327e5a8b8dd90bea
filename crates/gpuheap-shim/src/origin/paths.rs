//! Ways up the stack that were walked before, to be told without a walk.
//!
//! A way is a chain of return addresses. It is kept as steps, by a hash over the addresses up to there: either how far
//! from the base the next address lies, or who asked. The number of libraries that were ever removed is part of the
//! hash, so that nothing of what was known before counts afterwards.

use gpuheap_ledger::Origin;

use super::walk::Walk;

#[cfg(not(target_arch = "x86_64"))]
mod here {
    use super::{Origin, Walk};

    /// Where return addresses lie is a function's own business here: nothing is kept.
    pub(in super::super) fn base() -> usize {
        0
    }

    pub(in super::super) fn find(_base: usize, _loaded: u64) -> Option<Origin> {
        None
    }

    pub(in super::super) fn keep(_base: usize, _loaded: u64, _walk: &Walk) {}
}

#[cfg(target_arch = "x86_64")]
mod here {
    use std::arch::asm;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::{Origin, Walk};
    use crate::origin::walk::{Frame, MOST};

    const WORD: usize = size_of::<usize>();
    /// Beyond this distance nothing is compared.
    const MOST_DISTANCE: usize = 64 << 10;

    /// What is known of a place on the way.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Step {
        /// How far from the base the next return address lies.
        Next(usize),
        /// Who asked.
        End(Origin),
        /// Frames have different sizes there.
        Varies,
    }

    impl Step {
        fn pack(self) -> u64 {
            match self {
                Self::Next(distance) => 1 | (distance as u64) << 2,
                Self::End(origin) => 2 | (origin.number() as u64) << 2,
                Self::Varies => 3,
            }
        }

        fn unpack(packed: u64) -> Self {
            match packed & 3 {
                1 => Self::Next(usize::try_from(packed >> 2).unwrap_or(usize::MAX)),
                2 => Self::End(Origin::from_number(packed >> 2)),
                _ => Self::Varies,
            }
        }
    }

    struct Slot {
        /// The hash; 0 while there is nothing or it is being written.
        key: AtomicU64,
        step: AtomicU64,
    }

    const SLOTS: usize = 2048;
    /// How many neighbours a step may be put in.
    const REACH: usize = 8;

    pub(super) struct Table {
        slots: [Slot; SLOTS],
        /// Whether somebody writes.
        writing: AtomicBool,
    }

    static KEPT: Table = Table::new();

    impl Table {
        #[expect(clippy::large_stack_arrays, reason = "made by the compiler, in place")]
        const fn new() -> Self {
            Self {
                slots: [const { Slot { key: AtomicU64::new(0), step: AtomicU64::new(0) } }; SLOTS],
                writing: AtomicBool::new(false),
            }
        }

        fn near(&self, key: u64) -> impl Iterator<Item = &Slot> {
            let home = usize::try_from(key >> 32).unwrap_or(0);
            (0..REACH).map(move |step| &self.slots[(home + step) % SLOTS])
        }

        fn get(&self, key: u64) -> Option<Step> {
            let slot = self.near(key).find(|slot| slot.key.load(Ordering::Acquire) == key)?;
            let step = slot.step.load(Ordering::Acquire);
            // It may have become another's meanwhile.
            (slot.key.load(Ordering::Relaxed) == key).then(|| Step::unpack(step))
        }

        /// By one thread at a time.
        fn put(&self, key: u64, step: Step) {
            let is = |wanted: u64| move |slot: &&Slot| slot.key.load(Ordering::Relaxed) == wanted;
            let slot = self.near(key).find(is(key)).or_else(|| self.near(key).find(is(0)));
            let Some(slot) = slot.or_else(|| self.near(key).next()) else { return };
            slot.key.store(0, Ordering::Release);
            slot.step.store(step.pack(), Ordering::Release);
            slot.key.store(key, Ordering::Release);
        }

        /// Follows what is kept from `base`; `word` reads the stack at a distance from there.
        fn follow(&self, loaded: u64, word: impl Fn(usize) -> Option<usize>) -> Option<Origin> {
            let mut key = begin(loaded);
            for _ in 0..=MOST {
                match self.get(key)? {
                    Step::Next(distance) => key = mix(key, word(distance)? as u64),
                    Step::End(origin) => return Some(origin),
                    Step::Varies => return None,
                }
            }
            None
        }

        /// Keeps a way: distances with the addresses that lie there, and who asked at its end.
        fn keep(&self, loaded: u64, way: &[(usize, usize)], origin: Origin) {
            if self.writing.swap(true, Ordering::Acquire) {
                // The next walk keeps it.
                return;
            }
            let mut key = begin(loaded);
            let mut whole = true;
            for &(distance, code) in way {
                match self.get(key) {
                    Some(Step::Next(known)) if known == distance => {}
                    None => self.put(key, Step::Next(distance)),
                    Some(_) => {
                        self.put(key, Step::Varies);
                        whole = false;
                        break;
                    }
                }
                key = mix(key, code as u64);
            }
            if whole {
                self.put(key, Step::End(origin));
            }
            self.writing.store(false, Ordering::Release);
        }
    }

    fn begin(loaded: u64) -> u64 {
        mix(0x6770_7568_6561_7021, loaded)
    }

    /// Never 0.
    fn mix(key: u64, word: u64) -> u64 {
        let mixed = (key ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1
    }

    thread_local! {
        /// The highest address of the thread's stack that a walk has seen.
        static TOP: Cell<usize> = const { Cell::new(0) };
    }

    /// The stack pointer in the function that this is inlined in.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "in a frame of its own it would be another's stack pointer")]
    pub(in super::super) fn base() -> usize {
        let base;
        // SAFETY: reads a register.
        unsafe { asm!("mov {}, rsp", out(reg) base, options(nomem, nostack, preserves_flags)) };
        base
    }

    fn read(place: usize) -> usize {
        let place: *const usize = std::ptr::with_exposed_provenance(place);
        // SAFETY: the callers have seen that it is part of the thread's stack.
        unsafe { place.read_volatile() }
    }

    /// Who asked, if the stack above `base` is one that was walked before.
    pub(in super::super) fn find(base: usize, loaded: u64) -> Option<Origin> {
        let top = TOP.get();
        KEPT.follow(loaded, |distance| {
            let place = base.checked_add(distance)?;
            // Between here and what a walk has seen is the thread's stack.
            (place.checked_add(WORD)? <= top).then(|| read(place))
        })
    }

    /// Keeps what a walk found.
    pub(in super::super) fn keep(base: usize, loaded: u64, walk: &Walk) {
        let frames = walk.frames();
        if let Some(highest) = frames.iter().map(|frame| frame.stack).max() {
            TOP.set(TOP.get().max(highest));
        }
        let mut way = [(0, 0); MOST];
        let mut count = 0;
        // A call leaves its return address right below the caller's stack pointer. Frames below the base are the walk's.
        for &Frame { stack, code } in frames.iter().filter(|frame| frame.stack > base) {
            let place = stack - WORD;
            let distance = place - base;
            if distance > MOST_DISTANCE || read(place) != code {
                return;
            }
            way[count] = (distance, code);
            count += 1;
        }
        if walk.ended_well {
            KEPT.keep(loaded, &way[..count], walk.origin);
        }
    }

    #[cfg(test)]
    mod tests {
        use std::collections::BTreeMap;
        use std::collections::btree_map::Entry;

        use proptest::prelude::*;

        use super::*;

        fn stack(way: &[(usize, usize)]) -> impl Fn(usize) -> Option<usize> {
            let words: BTreeMap<usize, usize> = way.iter().copied().collect();
            move |distance| words.get(&distance).copied()
        }

        #[test]
        fn a_way_is_known_again_and_only_that_one() {
            let table = Table::new();
            let (first, second) = ([(8, 100), (40, 200), (72, 300)], [(8, 100), (40, 200), (72, 301)]);
            assert_eq!(table.follow(0, stack(&first)), None);
            table.keep(0, &first, Origin::PyTorch);
            assert_eq!(table.follow(0, stack(&first)), Some(Origin::PyTorch));
            assert_eq!(table.follow(0, stack(&second)), None);
            table.keep(0, &second, Origin::Nccl);
            assert_eq!(table.follow(0, stack(&second)), Some(Origin::Nccl));
            assert_eq!(table.follow(0, stack(&first)), Some(Origin::PyTorch));
            assert_eq!(table.follow(1, stack(&first)), None, "a library was removed");
            assert_eq!(table.follow(0, |_| None), None, "beyond the stack");
        }

        #[test]
        fn behind_frames_of_different_sizes_nothing_is_told() {
            let table = Table::new();
            table.keep(0, &[(8, 100), (40, 200)], Origin::PyTorch);
            table.keep(0, &[(8, 100), (56, 200)], Origin::PyTorch);
            for way in [[(8, 100), (40, 200)], [(8, 100), (56, 200)]] {
                assert_eq!(table.follow(0, stack(&way)), None);
                table.keep(0, &way, Origin::PyTorch);
            }
            assert_eq!(table.follow(0, stack(&[(8, 100), (40, 200)])), None);
        }

        /// Where code of that number was called, its caller's address lies behind as many words.
        fn way(codes: &[usize], last: usize) -> Vec<(usize, usize)> {
            let mut distance = WORD;
            let inner = codes.iter().map(|&code| {
                let here = distance;
                distance += WORD * code;
                (here, code)
            });
            let mut way: Vec<_> = inner.collect();
            way.push((distance, last));
            way
        }

        proptest! {
            #[test]
            fn what_is_told_was_kept_and_most_is_told(
                ways in prop::collection::vec((prop::collection::vec(1..5_usize, 0..6), 100..110_usize), 1..300),
            ) {
                let table = Table::new();
                let mut kept = BTreeMap::new();
                for (number, (codes, last)) in ways.into_iter().enumerate() {
                    let (way, origin) = (way(&codes, last), Origin::from_number(number as u64 % 16));
                    if let Entry::Vacant(new) = kept.entry(way) {
                        table.keep(0, new.key(), origin);
                        new.insert(origin);
                    }
                }
                let mut told = 0;
                for (way, origin) in &kept {
                    if let Some(found) = table.follow(0, stack(way)) {
                        prop_assert_eq!(found, *origin);
                        told += 1;
                    }
                }
                prop_assert!(told * 10 >= kept.len() * 9, "{} of {}", told, kept.len());
            }
        }
    }
}

pub(super) use here::{base, find, keep};
