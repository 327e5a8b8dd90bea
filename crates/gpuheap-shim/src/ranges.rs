//! Which chunk is at an address: found without a lock, in a few loads, for every word that a launch passes.
//!
//! Chunks begin at multiples of 2 MiB and have multiples of 2 MiB, so a number for each such page is all there is to
//! know. The numbers are in a table of three levels, 12 bits of the address each. Levels below the first are made when
//! they are needed and never taken away, so who looks something up meets no memory that goes. Most words that are no
//! addresses are outside the span of all chunks that ever were, and cost one comparison.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Bytes of a page: what chunks are made of.
pub(crate) const PAGE: u64 = 1 << PAGE_BITS;
/// The first number that is no address of a GPU.
pub(crate) const END: u64 = 1 << 57;
/// The greatest number that a chunk may have.
pub(crate) const LAST_CHUNK: u32 = u32::MAX - 1;

const PAGE_BITS: u32 = 21;
const LEVEL_BITS: u32 = 12;
const FANOUT: usize = 1 << LEVEL_BITS;

/// Numbers of chunks plus one, 0 where there is none; 8 GiB of addresses.
struct Leaf([AtomicU32; FANOUT]);

/// 32 TiB of addresses.
struct Branch([AtomicPtr<Leaf>; FANOUT]);

/// The index of chunks.
pub(crate) struct Ranges {
    root: [AtomicPtr<Branch>; FANOUT],
    /// Bounds of all chunks that ever were: they only widen.
    lowest: AtomicU64,
    highest: AtomicU64,
}

/// Chunks of this process.
pub(crate) static CHUNKS: Ranges = Ranges::new();

impl Ranges {
    #[expect(clippy::large_stack_arrays, reason = "it is made where it stays, by the compiler")]
    pub(crate) const fn new() -> Self {
        Self {
            root: [const { AtomicPtr::new(std::ptr::null_mut()) }; FANOUT],
            lowest: AtomicU64::new(u64::MAX),
            highest: AtomicU64::new(0),
        }
    }

    /// Enters a chunk of `bytes` at `start`, in place of what was there. False, and nothing is entered, if the range is
    /// empty, does not consist of pages, or is no range of addresses, if the number is beyond [`LAST_CHUNK`], or if
    /// there is no memory for the table.
    ///
    /// Several threads may change separate ranges at the same time. A thread that learned of the chunk after this
    /// returned finds it; others may or may not.
    #[must_use]
    pub(crate) fn set(&self, start: u64, bytes: u64, chunk: u32) -> bool {
        let Some(end) = end(start, bytes) else { return false };
        if chunk > LAST_CHUNK {
            return false;
        }
        // First the memory, so that nothing is half entered.
        let made = (start..end).step_by(1 << (PAGE_BITS + LEVEL_BITS)).chain([end - PAGE]);
        if !made.into_iter().all(|address| self.make_leaf(address).is_some()) {
            return false;
        }
        self.lowest.fetch_min(start, Ordering::Release);
        self.highest.fetch_max(end, Ordering::Release);
        self.fill(start, end, chunk + 1);
        true
    }

    /// Takes out what is in a range. Pages that no chunk has are left as they are, and so is everything if the range
    /// does not consist of pages.
    pub(crate) fn clear(&self, start: u64, bytes: u64) {
        if let Some(end) = end(start, bytes) {
            self.fill(start, end, 0);
        }
    }

    /// Whether there never was a chunk.
    #[inline]
    pub(crate) fn is_untouched(&self) -> bool {
        self.highest.load(Ordering::Acquire) == 0
    }

    /// The chunk at an address; nothing for addresses of other memory and for numbers that are no addresses.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<u32> {
        let lowest = self.lowest.load(Ordering::Acquire);
        if address < lowest || address >= self.highest.load(Ordering::Acquire) {
            return None;
        }
        let leaf = self.leaf(address)?;
        leaf.0[leaf_index(address)].load(Ordering::Acquire).checked_sub(1)
    }

    fn fill(&self, start: u64, end: u64, value: u32) {
        let mut address = start;
        while address < end {
            match self.leaf(address) {
                Some(leaf) => {
                    leaf.0[leaf_index(address)].store(value, Ordering::Release);
                    address += PAGE;
                }
                None => address = ((address >> (PAGE_BITS + LEVEL_BITS)) + 1) << (PAGE_BITS + LEVEL_BITS),
            }
        }
    }

    #[inline]
    fn leaf(&self, address: u64) -> Option<&Leaf> {
        let branch = self.root[root_index(address)].load(Ordering::Acquire);
        // SAFETY: null, or made by `make` and never taken away while this is there.
        let branch = unsafe { branch.as_ref() }?;
        let leaf = branch.0[branch_index(address)].load(Ordering::Acquire);
        // SAFETY: as above.
        unsafe { leaf.as_ref() }
    }

    fn make_leaf(&self, address: u64) -> Option<&Leaf> {
        let branch = make(&self.root[root_index(address)])?;
        make(&branch.0[branch_index(address)])
    }
}

impl Drop for Ranges {
    fn drop(&mut self) {
        for branch in self.root.iter_mut().map(AtomicPtr::get_mut).filter(|branch| !branch.is_null()) {
            // SAFETY: made by `make`, and nobody else is left who could reach it.
            for leaf in unsafe { &mut **branch }.0.iter_mut().map(AtomicPtr::get_mut).filter(|leaf| !leaf.is_null()) {
                // SAFETY: as above; its memory has that layout.
                unsafe { dealloc(leaf.cast(), Layout::new::<Leaf>()) };
            }
            // SAFETY: as above.
            unsafe { dealloc(branch.cast(), Layout::new::<Branch>()) };
        }
    }
}

/// A level of the table that consists of atomics alone, whose zeros are "nothing".
trait Level {}
impl Level for Leaf {}
impl Level for Branch {}

/// What is at a place of the table, made if nothing is; nothing if there is no memory.
fn make<L: Level>(place: &AtomicPtr<L>) -> Option<&L> {
    let mut found = place.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: a level has bytes.
        let fresh = unsafe { alloc_zeroed(Layout::new::<L>()) }.cast::<L>();
        if fresh.is_null() {
            return None;
        }
        found = match place.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: another thread was first, so this one was shown to nobody.
                unsafe { dealloc(fresh.cast(), Layout::new::<L>()) };
                other
            }
        };
    }
    // SAFETY: not null, zeroed, which is a valid level, and never taken away while the table is there.
    Some(unsafe { &*found })
}

/// The end of a range that consists of pages.
fn end(start: u64, bytes: u64) -> Option<u64> {
    let end = start.checked_add(bytes)?;
    (bytes > 0 && end <= END && start.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE)).then_some(end)
}

#[inline]
fn index(address: u64, shift: u32) -> usize {
    // The mask leaves 12 bits.
    #[expect(clippy::cast_possible_truncation, reason = "see above")]
    let index = (address >> shift) as usize;
    index & (FANOUT - 1)
}

#[inline]
fn leaf_index(address: u64) -> usize {
    index(address, PAGE_BITS)
}

#[inline]
fn branch_index(address: u64) -> usize {
    index(address, PAGE_BITS + LEVEL_BITS)
}

#[inline]
fn root_index(address: u64) -> usize {
    index(address, PAGE_BITS + 2 * LEVEL_BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    /// Chunks by their pages, as simply as can be.
    #[derive(Default)]
    struct Naive(BTreeMap<u64, u32>);

    impl Naive {
        fn set(&mut self, start: u64, bytes: u64, chunk: Option<u32>) {
            for page in start / PAGE..(start + bytes) / PAGE {
                match chunk {
                    Some(chunk) => self.0.insert(page, chunk),
                    None => self.0.remove(&page),
                };
            }
        }

        fn find(&self, address: u64) -> Option<u32> {
            self.0.get(&(address / PAGE)).copied()
        }
    }

    /// Pages around places where the table changes from one part to another, and anywhere.
    fn page() -> impl Strategy<Value = u64> {
        let edges = prop::sample::select(vec![0, 1 << 12, 1 << 24, (1 << 24) + (5 << 12), (1 << 36) - 64]);
        prop_oneof![
            4 => (edges, 0_u64..40).prop_map(|(edge, distance)| (edge + distance).saturating_sub(20)),
            1 => 0_u64..(1 << 36) - 64,
        ]
    }

    proptest! {
        #[test]
        fn it_finds_what_a_map_of_pages_finds(
            changes in prop::collection::vec((page(), 1_u64..24, prop::option::of(0..=LAST_CHUNK)), 1..40),
            inside in 0..PAGE,
        ) {
            let (ranges, mut naive) = (Box::new(Ranges::new()), Naive::default());
            for (page, pages, chunk) in &changes {
                let (start, bytes) = (page * PAGE, pages * PAGE);
                match chunk {
                    Some(chunk) => prop_assert!(ranges.set(start, bytes, *chunk)),
                    None => ranges.clear(start, bytes),
                }
                naive.set(start, bytes, *chunk);
            }
            for (page, pages, _) in &changes {
                for page in page.saturating_sub(2)..page + pages + 2 {
                    let address = page * PAGE + inside;
                    prop_assert_eq!(ranges.find(address), naive.find(address), "{:#x}", address);
                }
            }
        }

        #[test]
        fn numbers_that_are_no_addresses_are_in_no_chunk(number in any::<u64>(), small in 0_u64..100_000) {
            let ranges = Box::new(Ranges::new());
            prop_assert_eq!(ranges.find(number), None);
            prop_assert!(ranges.set(0x7f00_0000_0000, 512 * PAGE, 3));
            prop_assert_eq!(ranges.find(small), None);
            prop_assert_eq!(ranges.find(number | END), None);
            prop_assert_eq!(ranges.find(0x3f80_0000_3f80_0000), None);
            prop_assert_eq!(ranges.find(0x7f00_0000_0000 + small), Some(3));
        }
    }

    #[test]
    fn ranges_that_are_none_are_refused() {
        let ranges = Box::new(Ranges::new());
        assert!(ranges.is_untouched());
        for (start, bytes) in [(0, 0), (1, PAGE), (PAGE, PAGE + 1), (END, PAGE), (END - PAGE, 2 * PAGE), (PAGE, !0)] {
            assert!(!ranges.set(start, bytes, 1), "{start:#x} {bytes:#x}");
            ranges.clear(start, bytes);
        }
        assert!(!ranges.set(0, PAGE, LAST_CHUNK + 1));
        assert!(ranges.is_untouched());
        assert!(ranges.set(END - PAGE, PAGE, LAST_CHUNK));
        assert!(!ranges.is_untouched());
        assert_eq!((ranges.find(END - 1), ranges.find(END), ranges.find(!0)), (Some(LAST_CHUNK), None, None));
    }

    #[test]
    fn the_last_leaf_of_a_range_is_made_wherever_it_begins() {
        let ranges = Box::new(Ranges::new());
        let leaf = PAGE << LEVEL_BITS;
        assert!(ranges.set(leaf - PAGE, leaf + 2 * PAGE, 9));
        for address in [leaf - PAGE, leaf, 2 * leaf - PAGE, 2 * leaf] {
            assert_eq!(ranges.find(address), Some(9), "{address:#x}");
        }
        assert_eq!((ranges.find(leaf - PAGE - 1), ranges.find(2 * leaf + PAGE)), (None, None));
    }

    /// Who looks a page up while it changes gets one of the numbers that it had, and what does not change is always
    /// found.
    #[test]
    fn lookups_beside_a_writer_find_what_was_or_what_is() {
        let ranges = Box::new(Ranges::new());
        let (stays, changes) = (7 << 40, 8 << 40);
        assert!(ranges.set(stays, 64 * PAGE, 1));
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut page = 0;
                    while !ended.load(Ordering::Relaxed) {
                        page = (page + 7) % 64;
                        assert_eq!(ranges.find(stays + page * PAGE + 5), Some(1));
                        let found = ranges.find(changes + page * PAGE);
                        assert!([None, Some(2), Some(3)].contains(&found), "{found:?}");
                    }
                });
            }
            for turn in 0..2000 {
                let start = changes + (turn % 32) * PAGE;
                assert!(ranges.set(start, 32 * PAGE, 2 + u32::from(turn % 2 == 0)));
                ranges.clear(start, 16 * PAGE);
            }
            ended.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn two_writers_make_the_same_part_of_the_table_once() {
        for _ in 0..50 {
            let ranges = Box::new(Ranges::new());
            thread::scope(|scope| {
                for chunk in 0..4_u32 {
                    let ranges = &ranges;
                    scope.spawn(move || assert!(ranges.set(u64::from(chunk) * PAGE, PAGE, chunk)));
                }
            });
            for chunk in 0..4_u32 {
                assert_eq!(ranges.find(u64::from(chunk) * PAGE), Some(chunk));
            }
        }
    }
}
