//! Where kernels have parameters that can hold addresses: asked of the driver at the first launch of a kernel, then
//! known by its handle.
//!
//! Kernels are many, layouts few: a layout is kept once and for good, under a number. A slot of the table is one word,
//! 48 bits of the kernel's handle and 16 of its layout's number, so what a launch reads is never half of one kernel and
//! half of another, and the table can be emptied at any time. A launch takes no lock; learning tries to take one, and if
//! another thread has it, the next launch learns. Nothing here waits, so a child of a fork cannot wait for a thread that
//! it does not have.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};

/// Bytes of an address.
pub(crate) const WORD: usize = 8;
/// The most bytes that all parameters of a kernel may have, beyond what drivers allow (32,764).
pub(crate) const MOST_BYTES: usize = 1 << 15;

/// Slots of the table, twice what it holds at most.
const SLOTS: usize = 1 << 15;
/// The most different layouts; kernels with others are asked about at each launch.
const LAYOUTS: usize = 1 << 13;

const HANDLE_BITS: u32 = 48;

/// A parameter that can hold addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Piece {
    /// Its number among all parameters of the kernel.
    pub(crate) number: u32,
    /// Its first byte, counted from that of the first parameter.
    pub(crate) offset: u32,
    /// How many whole words it has, from its first byte on; at least one.
    pub(crate) words: u32,
}

/// Parameters that can hold addresses, in order: those of at least 8 bytes.
pub(crate) type Layout = [Piece];

/// What is known of kernels.
pub(crate) struct Parameters {
    slots: [AtomicU64; SLOTS],
    layouts: [AtomicPtr<Kept>; LAYOUTS],
    /// Slots in use, as far as those who fill and empty at the same time can tell.
    kernels: AtomicUsize,
    /// How often all was forgotten.
    forgotten: AtomicU64,
    /// The number of each layout. Whoever has it enters what was learned; no call of the driver is made meanwhile.
    learning: Mutex<BTreeMap<&'static Layout, u16>>,
}

/// A layout that is there for good.
struct Kept(Box<Layout>);

/// Kernels of this process.
pub(crate) static KERNELS: Parameters = Parameters::new();

/// Everything about kernels is to be asked again.
///
/// Handles are used again, so this belongs before each call of the driver that takes kernels away: `cuModuleUnload`,
/// `cuLibraryUnload`, and the end or the reset of a context. Not after it, when another thread may have got the same
/// handle for another kernel already. A launch of a kernel while it is unloaded is the program's mistake.
pub(crate) fn forget_all() {
    KERNELS.forget_all();
}

impl Parameters {
    #[expect(clippy::large_stack_arrays, reason = "it is made where it stays, by the compiler")]
    pub(crate) const fn new() -> Self {
        Self {
            slots: [const { AtomicU64::new(0) }; SLOTS],
            layouts: [const { AtomicPtr::new(std::ptr::null_mut()) }; LAYOUTS],
            kernels: AtomicUsize::new(0),
            forgotten: AtomicU64::new(0),
            learning: Mutex::new(BTreeMap::new()),
        }
    }

    /// Gives the layout of a kernel to `use_it`. If it is not known, `parameter` is asked for offset and bytes of one
    /// after the other, and says [`Answer::End`] after the last. If it cannot say, nothing is used and nothing kept.
    #[inline]
    pub(crate) fn with<T>(
        &self,
        function: usize,
        parameter: impl FnMut(usize) -> Answer,
        use_it: impl FnOnce(&Layout) -> T,
    ) -> Option<T> {
        match self.find(function) {
            Some(layout) => Some(use_it(layout)),
            None => Some(use_it(&self.learn(function, parameter)?)),
        }
    }

    #[inline]
    fn find(&self, function: usize) -> Option<&'static Layout> {
        let handle = handle(function)?;
        for slot in probe(handle) {
            let word = self.slots[slot].load(Ordering::Acquire);
            if word >> (u64::BITS - HANDLE_BITS) == handle {
                return self.layout(word);
            }
            if word == 0 {
                return None;
            }
        }
        None
    }

    #[inline]
    fn layout(&self, word: u64) -> Option<&'static Layout> {
        let number = usize::from(number(word)) % LAYOUTS;
        // SAFETY: null, or leaked when it was entered, before any slot had its number.
        unsafe { self.layouts[number].load(Ordering::Acquire).as_ref() }.map(|kept| &*kept.0)
    }

    /// Asks for a layout, and keeps it if nobody else is about to.
    #[cold]
    fn learn(&self, function: usize, parameter: impl FnMut(usize) -> Answer) -> Option<Box<Layout>> {
        let forgotten = self.forgotten.load(Ordering::SeqCst);
        let layout = ask(parameter)?;
        let mut known = match self.learning.try_lock() {
            Ok(known) => known,
            Err(TryLockError::Poisoned(known)) => known.into_inner(),
            Err(TryLockError::WouldBlock) => return Some(layout),
        };
        if let (Some(handle), Some(number)) = (handle(function), self.number(&mut known, &layout)) {
            self.enter(handle, number, forgotten);
        }
        Some(layout)
    }

    /// The number of a layout, which gets one if there is one left.
    fn number(&self, known: &mut BTreeMap<&'static Layout, u16>, layout: &Layout) -> Option<u16> {
        if let Some(number) = known.get(layout) {
            return Some(*number);
        }
        let number = u16::try_from(known.len()).ok().filter(|number| usize::from(*number) < LAYOUTS)?;
        let kept: &'static Kept = Box::leak(Box::new(Kept(layout.into())));
        self.layouts[usize::from(number)].store(std::ptr::from_ref(kept).cast_mut(), Ordering::Release);
        known.insert(&kept.0, number);
        Some(number)
    }

    /// Writes a slot; the caller has the lock. What was asked before all was forgotten for the last time is not kept: either
    /// it is seen here that this happened, or the slot is written before it is emptied. A slot that is emptied may hide one
    /// behind it, whose kernel is asked about again then.
    fn enter(&self, handle: u64, number: u16, forgotten: u64) {
        if self.kernels.load(Ordering::Relaxed) >= SLOTS / 2 {
            // Those that are still in use come back.
            self.empty();
        }
        let word = handle << (u64::BITS - HANDLE_BITS) | u64::from(number);
        for slot in probe(handle) {
            let found = self.slots[slot].load(Ordering::Relaxed);
            if found == 0 {
                self.kernels.fetch_add(1, Ordering::SeqCst);
            } else if found >> (u64::BITS - HANDLE_BITS) != handle {
                continue;
            }
            self.slots[slot].store(word, Ordering::SeqCst);
            if self.forgotten.load(Ordering::SeqCst) != forgotten {
                self.slots[slot].store(0, Ordering::SeqCst);
            }
            return;
        }
    }

    fn empty(&self) {
        self.kernels.store(0, Ordering::SeqCst);
        for slot in &self.slots {
            if slot.load(Ordering::SeqCst) != 0 {
                slot.store(0, Ordering::SeqCst);
            }
        }
    }

    /// See [`forget_all`].
    pub(crate) fn forget_all(&self) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        self.empty();
    }
}

/// What there is to say about a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Parameter {
        /// Its first byte, counted from that of the first parameter.
        offset: usize,
        bytes: usize,
    },
    /// There is none of that number.
    End,
    /// The driver cannot tell, or it failed.
    Unknown,
}

/// The layout that the answers make.
fn ask(mut parameter: impl FnMut(usize) -> Answer) -> Option<Box<Layout>> {
    let mut pieces = Vec::new();
    // No kernel has more parameters than their bytes; one who says so goes on for ever.
    for number in 0..MOST_BYTES {
        let (offset, bytes) = match parameter(number) {
            Answer::Parameter { offset, bytes } => (offset, bytes),
            Answer::End => return Some(pieces.into()),
            Answer::Unknown => return None,
        };
        if offset.checked_add(bytes).is_none_or(|end| end > MOST_BYTES) {
            return None;
        }
        if bytes >= WORD {
            let [number, offset, words] = [number, offset, bytes / WORD].map(u32::try_from);
            pieces.push(Piece { number: number.ok()?, offset: offset.ok()?, words: words.ok()? });
        }
    }
    None
}

/// A handle as it is in a slot; nothing for what does not fit, or is no handle.
#[inline]
fn handle(function: usize) -> Option<u64> {
    let handle = function as u64;
    (handle != 0 && handle >> HANDLE_BITS == 0).then_some(handle)
}

/// The number of a layout in a slot.
#[inline]
fn number(word: u64) -> u16 {
    (word & u64::from(u16::MAX)).try_into().unwrap_or(0)
}

/// The slots in which a handle may be, in order.
#[inline]
fn probe(handle: u64) -> impl Iterator<Item = usize> {
    // Handles are addresses some hundred bytes apart.
    let hash = handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOTS.trailing_zeros());
    // The shift leaves as many bits as slots have.
    #[expect(clippy::cast_possible_truncation, reason = "see above")]
    let first = hash as usize;
    (0..SLOTS).map(move |step| (first + step) % SLOTS)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    /// Parameters as the C compiler lays them out: sizes and alignments one after the other.
    fn laid_out(sizes: &[(usize, u32)]) -> Vec<(usize, usize)> {
        let mut end = 0_usize;
        let place = |(bytes, alignment): &(usize, u32)| {
            let offset = end.next_multiple_of(1 << alignment);
            end = offset + bytes;
            (offset, *bytes)
        };
        sizes.iter().map(place).collect()
    }

    fn answers(parameters: &[(usize, usize)]) -> impl Fn(usize) -> Answer {
        |number| match parameters.get(number) {
            Some((offset, bytes)) => Answer::Parameter { offset: *offset, bytes: *bytes },
            None => Answer::End,
        }
    }

    fn table() -> Box<Parameters> {
        Box::new(Parameters::new())
    }

    proptest! {
        #[test]
        fn a_layout_has_the_words_that_are_in_parameters(
            sizes in prop::collection::vec((0_usize..200, 0_u32..5), 0..40),
        ) {
            let parameters = laid_out(&sizes);
            let layout = ask(answers(&parameters)).unwrap();
            let words: Vec<(usize, usize)> = layout
                .iter()
                .flat_map(|piece| (0..piece.words).map(|word| (piece.number as usize, (piece.offset + 8 * word) as usize)))
                .collect();
            let mut naive = Vec::new();
            for (number, (offset, bytes)) in parameters.iter().enumerate() {
                naive.extend((0..*bytes).step_by(8).filter(|at| at + 8 <= *bytes).map(|at| (number, offset + at)));
            }
            prop_assert_eq!(words, naive);
        }

        /// The table against a plain map, through launches, unloads and handles that come again with other parameters.
        #[test]
        fn a_kernel_is_asked_about_once_until_all_is_forgotten(
            steps in prop::collection::vec((0_usize..30, 0_usize..4, prop::bool::weighted(0.05)), 1..200),
        ) {
            let kernels = table();
            let mut known: BTreeMap<usize, usize> = BTreeMap::new();
            for (which, shape, unload) in steps {
                if unload {
                    kernels.forget_all();
                    known.clear();
                }
                let handle = 0x5555_0000_0000 + which * 0x40;
                let asked = Cell::new(false);
                let parameter = |number| {
                    asked.set(true);
                    answers(&[(0, 8), (8, 8), (16, 8), (24, 8)][..=shape])(number)
                };
                let found = kernels.with(handle, parameter, <[Piece]>::len);
                prop_assert_eq!(asked.get(), !known.contains_key(&handle));
                prop_assert_eq!(found, Some(*known.entry(handle).or_insert(shape + 1)));
            }
        }
    }

    #[test]
    fn what_the_driver_cannot_tell_is_asked_again() {
        let kernels = table();
        assert_eq!(kernels.with(64, |_| Answer::Unknown, <[Piece]>::len), None);
        // Some of it is as good as nothing.
        let half = |number| if number == 0 { Answer::Parameter { offset: 0, bytes: 8 } } else { Answer::Unknown };
        assert_eq!(kernels.with(64, half, <[Piece]>::len), None);
        assert_eq!(kernels.with(64, answers(&[(0, 8)]), <[Piece]>::len), Some(1));
        assert_eq!(kernels.with(64, |_| Answer::Unknown, <[Piece]>::len), Some(1));
    }

    #[test]
    fn answers_without_end_or_beyond_all_bounds_are_no_layout() {
        let kernels = table();
        for (offset, bytes) in [(0, 8), (0, 0), (usize::MAX, 8), (8, usize::MAX), (MOST_BYTES, 8)] {
            assert_eq!(kernels.with(64, |_| Answer::Parameter { offset, bytes }, <[Piece]>::len), None);
        }
    }

    #[test]
    fn handles_that_fit_in_no_slot_are_asked_about_each_time() {
        let kernels = table();
        for handle in [0, 1 << 48, usize::MAX] {
            for _ in 0..2 {
                let asked = Cell::new(false);
                let parameter = |number| {
                    asked.set(true);
                    answers(&[(0, 8)])(number)
                };
                assert_eq!(kernels.with(handle, parameter, <[Piece]>::len), Some(1));
                assert!(asked.get());
            }
        }
    }

    #[test]
    fn more_kernels_and_layouts_than_there_is_room_for_are_no_mistake() {
        let kernels = table();
        for which in 1..=SLOTS {
            let offset = which % (LAYOUTS + 100);
            let found = kernels.with(which * 16, answers(&[(offset, 8)]), <[Piece]>::to_vec);
            assert_eq!(found.unwrap()[0].offset as usize, offset);
            assert!(kernels.kernels.load(Ordering::Relaxed) <= SLOTS / 2);
        }
        let full = kernels.slots.iter().filter(|slot| slot.load(Ordering::Relaxed) != 0).count();
        assert_eq!(full, kernels.kernels.load(Ordering::Relaxed));
        kernels.forget_all();
        assert!(kernels.slots.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn what_was_asked_before_all_was_forgotten_is_not_kept() {
        let kernels = table();
        // The kernel goes while the driver is asked, and another gets its handle.
        let while_asked = |number| {
            kernels.forget_all();
            answers(&[(0, 8)])(number)
        };
        assert_eq!(kernels.with(64, while_asked, <[Piece]>::len), Some(1));
        assert_eq!(kernels.with(64, answers(&[(0, 8), (8, 8)]), <[Piece]>::len), Some(2));
        assert_eq!(kernels.with(64, |_| unreachable!(), <[Piece]>::len), Some(2));
    }

    /// Whatever is learned and forgotten meanwhile, a launch never uses another kernel's parameters.
    #[test]
    fn lookups_beside_learning_and_forgetting_find_the_kernel_s_own() {
        let kernels = table();
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            for start in 0..3_usize {
                let (kernels, ended) = (&kernels, &ended);
                scope.spawn(move || {
                    let mut which = start;
                    while !ended.load(Ordering::Relaxed) {
                        which = (which + 1) % 500;
                        let own = which % 40;
                        // Handles that share slots.
                        let found = kernels.with((which + 1) << 40, answers(&[(own, 8)]), |layout| layout[0].offset);
                        assert_eq!(found, Some(u32::try_from(own).unwrap()));
                    }
                });
            }
            for _ in 0..300 {
                kernels.forget_all();
                thread::yield_now();
            }
            ended.store(true, Ordering::Relaxed);
        });
    }
}
