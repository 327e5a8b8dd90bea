//! How warm chunks are: when each was last touched by a launch, and how often in the present window and the last.
//!
//! A window ends when its owner says so, at a step of the program for example. What is here is for choosing what to
//! move, so it may be a little wrong and has to be cheap: a touch is a few loads and stores without a locked
//! instruction. Of touches of one chunk by several threads in the same moment some are lost.

// By their paths, since the benchmark takes this file in by its own.
#[path = "temperature/counts.rs"]
mod counts;
#[path = "temperature/numbers.rs"]
mod numbers;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use self::counts::{Counts, MOST, Top, start_bit, tensors};
use self::numbers::Numbers;
use crate::ranges::Ranges;

/// The first chunk number that has no temperature: it is always cold.
pub(crate) const CHUNKS: u32 = 1 << 22;

const BLOCK_BITS: u32 = 12;
const BLOCK: usize = 1 << BLOCK_BITS;
const BLOCKS: usize = CHUNKS as usize >> BLOCK_BITS;

/// What a touch changes is in one line of the processor's cache.
#[repr(align(64))]
#[derive(Default)]
struct Chunk {
    /// The launch that touched it last; 0 if none did.
    last: AtomicU64,
    /// The window of the last touch, touches in it, and touches in the window before it: see [`Counts`].
    counts: AtomicU64,
    /// Where launches pointed to in the window of the last touch, as bits of a hash: see [`counts`].
    starts: AtomicU64,
    /// The greatest address that a launch pointed to in that window, and how many did: see [`Top`].
    top: AtomicU64,
    /// The launch that used it last, by an address in it or by a tensor that goes on from a chunk before.
    used: AtomicU64,
    /// The address behind it.
    end: AtomicU64,
    /// How often kernels read it since it is on the host, and one more; 0 if it is not.
    debt: AtomicU32,
    /// How often a graph reads it: the lower half of its launch's number, and how often.
    weight: AtomicU64,
}

impl Chunk {
    /// How often that launch reads it.
    fn weight(&self, launch: u64) -> u32 {
        let weight = self.weight.load(Ordering::Relaxed);
        let is_of_it = weight >> u32::BITS == launch & u64::from(u32::MAX);
        if is_of_it { u32::try_from(weight & u64::from(u32::MAX)).unwrap_or(u32::MAX) } else { 0 }
    }

    /// A kernel reads it so many times. True if it is on the host and it would pay to move it.
    #[inline]
    fn read(&self, launch: u64, times: u32) -> bool {
        self.used.store(launch, Ordering::Relaxed);
        let debt = self.debt.load(Ordering::Relaxed);
        debt > 0 && self.owe(debt, times)
    }

    /// The same for one that is on the host.
    #[cold]
    fn owe(&self, debt: u32, times: u32) -> bool {
        let owed = debt.saturating_add(times);
        // What another thread took away meanwhile, and what has come, owes nothing.
        let is_there = self.debt.compare_exchange(debt, owed, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        is_there && owed > WORTH
    }
}

/// Reads of a chunk on the host after which it is worth to be moved: each takes half as long as a move to and fro, so at
/// worst it costs twice what it would have cost to know before (the rule of the ski rental).
pub(crate) const WORTH: u32 = 3;

/// Addresses that were named before so many launches may be something else by now, if the program never waits.
pub(crate) const UNNAMED: u64 = 2000;
/// A program that waits after fewer launches than that does not begin something new each time.
const FEW: u64 = 200;
/// A tensor is followed through so many chunks at most.
const LONG: usize = 8;

struct Block([Chunk; BLOCK]);

/// Temperatures by chunk number.
pub(crate) struct Temperature {
    blocks: [AtomicPtr<Block>; BLOCKS],
    window: AtomicU32,
    /// The launch before which the program waited for the device last.
    rest: AtomicU64,
    numbers: Numbers,
}

/// Chunks of this process.
pub(crate) static TEMPERATURE: Temperature = Temperature::new();

/// How warm a chunk is.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Heat {
    /// Launches that touched it in the window that runs; at most 1,048,575 are counted.
    pub(crate) touches_this_window: u32,
    /// Those of the window before.
    pub(crate) touches_last_window: u32,
    /// The launch that touched it last; 0 if none did.
    pub(crate) last_touch: u64,
    /// About how many tensors begin in it, by the addresses of this window.
    pub(crate) starts: f64,
    /// Touches, in this window, of the last tensor that begins in it: it may go on in the chunks behind.
    pub(crate) top_touches: u32,
}

impl Temperature {
    pub(crate) const fn new() -> Self {
        Self {
            blocks: [const { AtomicPtr::new(std::ptr::null_mut()) }; BLOCKS],
            window: AtomicU32::new(0),
            rest: AtomicU64::new(0),
            numbers: Numbers::new(),
        }
    }

    /// A number for a launch that no other launch has: see [`Numbers::next`].
    #[inline]
    pub(crate) fn launch(&self) -> u64 {
        self.numbers.next()
    }

    /// About how many launches there were: some thousand more or less with many threads.
    pub(crate) fn launches(&self) -> u64 {
        self.numbers.given()
    }

    /// A launch touches a chunk at an address, so many times. True if it is on the host and it would pay to move it.
    #[inline]
    pub(crate) fn touch(&self, chunk: u32, launch: u64, address: u64, times: u32) -> bool {
        let Some(chunk) = self.chunk(chunk).or_else(|| self.make(chunk)) else { return false };
        chunk.last.store(launch, Ordering::Relaxed);
        let window = self.window.load(Ordering::Relaxed);
        let before = Counts::unpack(chunk.counts.load(Ordering::Relaxed));
        let counts = before.at(window);
        let (starts, top) = if counts.window == before.window {
            (chunk.starts.load(Ordering::Relaxed), Top(chunk.top.load(Ordering::Relaxed)))
        } else {
            (0, Top(0))
        };
        chunk.starts.store(starts | 1 << start_bit(address), Ordering::Relaxed);
        chunk.top.store(top.with(address, times).0, Ordering::Relaxed);
        let counts = Counts { now: (counts.now + u64::from(times)).min(MOST), ..counts };
        chunk.counts.store(counts.pack(), Ordering::Relaxed);
        chunk.read(launch, times)
    }

    /// Follows a tensor from a chunk that a launch touches through those behind it in which no launch named an address since
    /// the one that is `recent`: it may use them as well, and reads them as often. `wanted` is told those on the host that it
    /// would pay to move.
    #[inline]
    pub(crate) fn go_on(
        &self,
        first: u32,
        (launch, times, recent): (u64, u32, u64),
        ranges: &Ranges,
        mut wanted: impl FnMut(u32),
    ) {
        let mut number = first;
        for _ in 0..LONG {
            let Some(next) = ranges.find(self.end(number)) else { break };
            let Some(chunk) = self.chunk(next) else { break };
            let last = chunk.last.load(Ordering::Relaxed);
            if last >= recent && last > 0 {
                break;
            }
            if chunk.used.load(Ordering::Relaxed) != launch && chunk.read(launch, times) {
                wanted(next);
            }
            number = next;
        }
    }

    /// What launches before that one named may be something else by now.
    #[inline]
    pub(crate) fn recent(&self, launch: u64) -> u64 {
        self.rest.load(Ordering::Relaxed).max(launch.saturating_sub(UNNAMED))
    }

    /// The program waited for the device: what was named before that may be something else by now.
    pub(crate) fn rested(&self) {
        let (now, before) = (self.launches(), self.rest.load(Ordering::Relaxed));
        if now.saturating_sub(before) > FEW {
            self.rest.store(now, Ordering::Relaxed);
        }
    }

    /// Changes when the program has waited for the device.
    #[inline]
    pub(crate) fn rest(&self) -> u64 {
        self.rest.load(Ordering::Relaxed)
    }

    /// The address behind a chunk; 0 if it is not mapped.
    #[inline]
    pub(crate) fn end(&self, chunk: u32) -> u64 {
        self.chunk(chunk).map_or(0, |chunk| chunk.end.load(Ordering::Relaxed))
    }

    /// Whether a chunk is on the host.
    #[inline]
    pub(crate) fn is_on_host(&self, chunk: u32) -> bool {
        self.chunk(chunk).is_some_and(|chunk| chunk.debt.load(Ordering::Relaxed) > 0)
    }

    /// The launch that used a chunk last.
    pub(crate) fn last_use(&self, chunk: u32) -> u64 {
        self.chunk(chunk).map_or(0, |chunk| chunk.used.load(Ordering::Relaxed))
    }

    /// A graph that is launched reads a chunk so many times.
    pub(crate) fn weigh(&self, chunk: u32, launch: u64, times: u32) {
        if let Some(chunk) = self.chunk(chunk) {
            let before = chunk.weight(launch);
            let weight = u64::from(before.saturating_add(times));
            chunk.weight.store(launch << u32::BITS | weight, Ordering::Relaxed);
        }
    }

    /// How often the launch of a graph reads a chunk; 0 if that is not known.
    pub(crate) fn weight(&self, chunk: u32, launch: u64) -> u32 {
        self.chunk(chunk).map_or(0, |chunk| chunk.weight(launch))
    }

    /// A chunk is mapped up to there.
    pub(crate) fn ends_at(&self, chunk: u32, end: u64) {
        if let Some(chunk) = self.chunk(chunk).or_else(|| self.make(chunk)) {
            chunk.end.store(end, Ordering::Relaxed);
        }
    }

    /// A chunk is on the host from now on, or no longer.
    pub(crate) fn on_host(&self, chunk: u32, is_there: bool) {
        if let Some(chunk) = self.chunk(chunk).or_else(|| self.make(chunk)) {
            chunk.debt.store(u32::from(is_there), Ordering::Relaxed);
        }
    }

    /// Ends the window: the one that ran is the last now, and another begins.
    pub(crate) fn turn(&self) {
        self.window.fetch_add(1, Ordering::Relaxed);
    }

    /// How warm a chunk is. One that was not touched since the last window is cold, whatever was before.
    pub(crate) fn heat(&self, chunk: u32) -> Heat {
        let Some(chunk) = self.chunk(chunk) else { return Heat::default() };
        let last = Counts::unpack(chunk.counts.load(Ordering::Relaxed));
        let counts = last.at(self.window.load(Ordering::Relaxed));
        let is_of_this = counts.window == last.window && counts.now > 0;
        let of_this = |value: &AtomicU64| if is_of_this { value.load(Ordering::Relaxed) } else { 0 };
        let [now, before] = [counts.now, counts.before].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        Heat {
            touches_this_window: now,
            touches_last_window: before,
            last_touch: chunk.last.load(Ordering::Relaxed),
            starts: tensors(of_this(&chunk.starts)),
            top_touches: Top(of_this(&chunk.top)).touches(),
        }
    }

    /// Forgets a chunk, whose number goes to another one.
    pub(crate) fn reset(&self, chunk: u32) {
        if let Some(chunk) = self.chunk(chunk) {
            chunk.last.store(0, Ordering::Relaxed);
            chunk.counts.store(0, Ordering::Relaxed);
            chunk.starts.store(0, Ordering::Relaxed);
            chunk.top.store(0, Ordering::Relaxed);
            chunk.debt.store(0, Ordering::Relaxed);
            chunk.used.store(0, Ordering::Relaxed);
            chunk.end.store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn chunk(&self, number: u32) -> Option<&Chunk> {
        let number = number as usize;
        let block = self.blocks.get(number >> BLOCK_BITS)?.load(Ordering::Acquire);
        // SAFETY: null, or made by `make` and never taken away while this is there.
        unsafe { block.as_ref() }.map(|block| &block.0[number % BLOCK])
    }

    /// Makes the block of a chunk: once for 4,096 of them. Nothing if there is no memory, or for numbers beyond all.
    #[cold]
    #[expect(clippy::cast_ptr_alignment, reason = "the memory is asked for with the alignment of a block")]
    fn make(&self, number: u32) -> Option<&Chunk> {
        let place = self.blocks.get(number as usize >> BLOCK_BITS)?;
        // SAFETY: a block has bytes.
        let fresh = unsafe { alloc_zeroed(Layout::new::<Block>()) }.cast::<Block>();
        if fresh.is_null() {
            return None;
        }
        if place.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread was first, so this one was shown to nobody.
            unsafe { dealloc(fresh.cast(), Layout::new::<Block>()) };
        }
        self.chunk(number)
    }
}

impl Drop for Temperature {
    fn drop(&mut self) {
        for block in self.blocks.iter_mut().map(AtomicPtr::get_mut).filter(|block| !block.is_null()) {
            // SAFETY: made by `make` with that layout, and nobody else is left who could reach it.
            unsafe { dealloc(block.cast(), Layout::new::<Block>()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Launch(Vec<u32>),
        Turn,
        Reset(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let chunk = || prop_oneof![0_u32..6, 4094_u32..4098, CHUNKS - 1..CHUNKS];
        prop_oneof![
            8 => prop::collection::vec(chunk(), 0..6).prop_map(Step::Launch),
            2 => Just(Step::Turn),
            1 => chunk().prop_map(Step::Reset),
        ]
    }

    proptest! {
        /// Against all touches written down one by one.
        #[test]
        fn touches_are_counted_by_window(steps in prop::collection::vec(step(), 1..200)) {
            let temperature = Box::new(Temperature::new());
            let (mut window, mut touches) = (1_u32, BTreeMap::<u32, Vec<(u32, u64)>>::new());
            for step in steps {
                match step {
                    Step::Launch(chunks) => {
                        let launch = temperature.launch();
                        for chunk in chunks {
                            temperature.touch(chunk, launch, 0, 1);
                            touches.entry(chunk).or_default().push((window, launch));
                        }
                    }
                    Step::Turn => {
                        temperature.turn();
                        window += 1;
                    }
                    Step::Reset(chunk) => {
                        temperature.reset(chunk);
                        touches.remove(&chunk);
                    }
                }
                for (chunk, of_chunk) in &touches {
                    let count = |wanted| of_chunk.iter().filter(|(window, _)| *window == wanted).count();
                    let heat = temperature.heat(*chunk);
                    prop_assert_eq!(heat.touches_this_window as usize, count(window));
                    prop_assert_eq!(heat.touches_last_window as usize, count(window - 1));
                    prop_assert_eq!(heat.last_touch, of_chunk.last().map_or(0, |(_, launch)| *launch));
                }
            }
        }

    }

    #[test]
    fn tensors_are_told_by_where_they_begin_and_the_last_one_by_its_touches() {
        let temperature = Box::new(Temperature::new());
        let start = 0x7f00_0020_0000_u64;
        for _ in 0..3 {
            for tensor in 0..10 {
                temperature.touch(4, temperature.launch(), start + tensor * (1 << 20), 1);
            }
        }
        temperature.touch(4, temperature.launch(), start + (9 << 20), 1);
        let heat = temperature.heat(4);
        assert_eq!((heat.touches_this_window, heat.top_touches), (31, 4));
        assert!((heat.starts - 10.0).abs() < 3.0, "{}", heat.starts);
        temperature.turn();
        assert_eq!((temperature.heat(4).top_touches, temperature.heat(4).touches_last_window), (0, 31));
        temperature.touch(4, temperature.launch(), start, 1);
        assert_eq!((temperature.heat(4).top_touches, temperature.heat(4).touches_this_window), (1, 1));
    }

    #[test]
    fn what_a_tensor_goes_on_in_is_wanted_unless_something_else_was_named_there_of_late() {
        let temperature = Box::new(Temperature::new());
        let ranges = Ranges::new();
        for number in 0..4_u32 {
            let start = u64::from(number + 1) * (32 << 20);
            assert!(ranges.set(start, 32 << 20, number));
            temperature.ends_at(number, start + (32 << 20));
            temperature.on_host(number, number > 0);
        }
        let goes_on = |launch, recent| {
            let mut wanted = Vec::new();
            temperature.go_on(0, (launch, 12, recent), &ranges, |number| wanted.push(number));
            wanted
        };
        assert_eq!(goes_on(1, 0), [1, 2, 3], "of a program that has not launched much");
        temperature.touch(2, 2, 96 << 20, 1);
        assert_eq!(goes_on(3, 0), [1]);
        assert_eq!(goes_on(4, 3), [1, 2, 3]);
        assert!(goes_on(4, 3).is_empty(), "once a launch");
    }

    #[test]
    fn weights_are_those_of_one_launch() {
        let temperature = Box::new(Temperature::new());
        temperature.touch(1, 1, 0, 1);
        let launch = (7 << u32::BITS) + 5;
        assert_eq!(temperature.weight(1, launch), 0);
        temperature.weigh(1, launch, 12);
        temperature.weigh(1, launch, 3);
        assert_eq!((temperature.weight(1, launch), temperature.weight(1, launch + 1)), (15, 0));
        temperature.weigh(1, launch + 1, u32::MAX);
        temperature.weigh(1, launch + 1, 1);
        assert_eq!(temperature.weight(1, launch + 1), u32::MAX);
        temperature.weigh(CHUNKS, launch, 1);
        assert_eq!(temperature.weight(CHUNKS, launch), 0);
    }

    #[test]
    fn numbers_beyond_all_are_cold() {
        let temperature = Box::new(Temperature::new());
        for chunk in [CHUNKS, u32::MAX] {
            temperature.touch(chunk, temperature.launch(), 0, 1);
            temperature.reset(chunk);
            assert_eq!(temperature.heat(chunk), Heat::default());
        }
    }

    #[test]
    fn counts_stop() {
        let temperature = Box::new(Temperature::new());
        for _ in 0..MOST + 10 {
            temperature.touch(1, temperature.launch(), 0, 1);
        }
        assert_eq!(u64::from(temperature.heat(1).touches_this_window), MOST);
    }

    #[test]
    fn threads_with_chunks_of_their_own_lose_nothing() {
        let temperature = Box::new(Temperature::new());
        thread::scope(|scope| {
            for chunk in 0..4 {
                let temperature = &temperature;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        temperature.touch(chunk, temperature.launch(), 0, 1);
                    }
                });
            }
        });
        for chunk in 0..4 {
            assert_eq!(temperature.heat(chunk).touches_this_window, 10_000);
        }
    }
}
