//! The rules, as functions of the heap's state.

use gpuheap_record::{AllocatorSettings, ROUNDUP_INTERVALS, SegmentKind};

use super::conf::parse_conf;
use crate::heap::{BlockId, Growth, Heap, Lane};

/// Every block is a multiple of this many bytes.
pub const MIN_BLOCK: u64 = 512;
/// Rounded requests of at most this many bytes go to the small pool.
pub const SMALL_LIMIT: u64 = 1 << 20;
/// Bytes of a segment of the small pool.
pub const SMALL_SEGMENT: u64 = 2 << 20;
/// From this many bytes on a segment is made to measure.
const DIRECT_LIMIT: u64 = 10 << 20;
/// Segments made to measure are rounded up to this many bytes.
const DIRECT_GRANULARITY: u64 = 2 << 20;

/// What the settings change about sizes and places.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Blocks of at least this many bytes are not split (`max_split_size_mb`); `u64::MAX`: no limit.
    pub max_split: u64,
    /// How much larger than an unsplittable request a block may be (`max_non_split_rounding_mb`), in bytes.
    pub max_non_split_rounding: u64,
    /// Bytes of a segment for requests above 1 MiB and below 10 MiB (`large_segment_size_mb`).
    pub large_segment: u64,
    /// Divisions between powers of two by interval of the size (`roundup_power2_divisions`); 0 and 1 are off.
    pub roundup_power2_divisions: [u64; ROUNDUP_INTERVALS],
    /// Whether segments are expandable: every rest is split off then.
    pub expandable: bool,
    /// The share of the cap from which unused segments are collected (`garbage_collection_threshold`); 0 is off. It does
    /// nothing without a cap.
    pub garbage_collection_threshold: f64,
    /// The share of the device that the program may take (`per_process_memory_fraction`), from 0 to 1.
    pub memory_fraction: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_split: u64::MAX,
            max_non_split_rounding: 20 << 20,
            large_segment: 20 << 20,
            roundup_power2_divisions: [0; ROUNDUP_INTERVALS],
            expandable: false,
            garbage_collection_threshold: 0.0,
            memory_fraction: 1.0,
        }
    }
}

impl From<&AllocatorSettings> for Config {
    /// The settings that a recording names. Its string has what its fields do not, and its fields say what counts.
    fn from(settings: &AllocatorSettings) -> Self {
        let named = parse_conf(&settings.conf).unwrap_or_default();
        if !settings.known {
            return named;
        }
        Self {
            max_split: settings.max_split_size.unwrap_or(u64::MAX),
            roundup_power2_divisions: settings.roundup_power2_divisions,
            expandable: settings.expandable_segments,
            garbage_collection_threshold: settings.garbage_collection_threshold,
            ..named
        }
    }
}

/// What the allocator does about a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It takes this free block.
    Take(BlockId),
    /// It asks the driver for a segment of this many bytes.
    NewSegment(u64),
    /// It maps memory behind, or instead of, a free block of an expandable segment.
    Grow(Growth),
    /// It reserves a new address range and maps this many bytes at its start.
    NewRange(u64),
}

impl Config {
    /// The bytes that a request of `size` bytes takes, a multiple of [`MIN_BLOCK`].
    #[must_use]
    pub fn round(&self, size: u64) -> u64 {
        if size < MIN_BLOCK {
            return MIN_BLOCK;
        }
        let divisions = self.roundup_power2_divisions[interval(size)];
        if divisions > 1 && size > MIN_BLOCK.saturating_mul(divisions) {
            if size.is_power_of_two() {
                return size;
            }
            let floor = 1_u64 << size.ilog2();
            let step = floor / divisions;
            return if step == 0 { floor.saturating_mul(2) } else { next_multiple(size, step) };
        }
        next_multiple(size, MIN_BLOCK)
    }

    /// Whether a rounded request goes to the small or the large pool.
    #[must_use]
    pub fn kind(&self, rounded: u64) -> SegmentKind {
        if rounded <= SMALL_LIMIT { SegmentKind::Small } else { SegmentKind::Large }
    }

    /// Bytes of the segment that is made for a rounded request.
    #[must_use]
    pub fn segment_size(&self, rounded: u64) -> u64 {
        if rounded <= SMALL_LIMIT {
            SMALL_SEGMENT
        } else if rounded < DIRECT_LIMIT {
            self.large_segment
        } else {
            next_multiple(rounded, DIRECT_GRANULARITY)
        }
    }

    /// Bytes of a handle: what expandable segments of a kind of pool grow and shrink by.
    #[must_use]
    pub fn handle(&self, kind: SegmentKind) -> u64 {
        match kind {
            SegmentKind::Small => SMALL_SEGMENT,
            SegmentKind::Large => self.large_segment,
        }
    }

    /// Whether a block of `block` bytes that serves a rounded request is split.
    #[must_use]
    pub fn splits(&self, kind: SegmentKind, block: u64, rounded: u64) -> bool {
        let rest = block.saturating_sub(rounded);
        match kind {
            SegmentKind::Small => rest >= MIN_BLOCK,
            SegmentKind::Large if self.expandable => rest >= MIN_BLOCK,
            SegmentKind::Large => rounded < self.max_split && rest > SMALL_LIMIT,
        }
    }
}

/// What the allocator does about a request of `rounded` bytes in `lane`, if nothing limits it.
#[must_use]
pub fn decide(heap: &Heap, config: &Config, lane: Lane, rounded: u64) -> Decision {
    match find(heap, config, lane, rounded) {
        Some(block) => Decision::Take(block),
        None => new_memory(heap, config, lane, rounded),
    }
}

/// The free block that serves a request, if one may.
#[must_use]
pub fn find(heap: &Heap, config: &Config, lane: Lane, rounded: u64) -> Option<BlockId> {
    let candidate = match (heap.has_ranges(), config.expandable) {
        (false, _) => heap.best_fit(lane, rounded),
        (true, true) => heap.best_fit_expandable(lane, rounded),
        (true, false) => heap.best_fit_native(lane, rounded),
    }?;
    let size = heap.block(candidate).size;
    // There is no second candidate: a best fit that may not be used is a miss.
    let usable = if rounded < config.max_split {
        size < config.max_split
    } else {
        size < rounded.saturating_add(config.max_non_split_rounding)
    };
    usable.then_some(candidate)
}

/// The memory that is made for a request that no free block serves.
#[must_use]
pub fn new_memory(heap: &Heap, config: &Config, lane: Lane, rounded: u64) -> Decision {
    if !config.expandable {
        return Decision::NewSegment(config.segment_size(rounded));
    }
    let handle = config.handle(lane.kind);
    match heap.growth(lane, rounded, handle) {
        Some(growth) => Decision::Grow(growth),
        None => Decision::NewRange(next_multiple(rounded, handle)),
    }
}

fn interval(size: u64) -> usize {
    let log2_mib = size.max(1).ilog2().saturating_sub(20) as usize;
    log2_mib.min(ROUNDUP_INTERVALS - 1)
}

fn next_multiple(size: u64, step: u64) -> u64 {
    size.checked_next_multiple_of(step).unwrap_or(u64::MAX / step * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_specification() {
        let stock = Config::default();
        for (size, rounded) in [(1, 512), (512, 512), (513, 1024), (1 << 20, 1 << 20), ((1 << 20) + 1, (1 << 20) + 512)]
        {
            assert_eq!(stock.round(size), rounded);
        }
        for (rounded, segment) in [
            (512, 2),
            (1 << 20, 2),
            ((1 << 20) + 512, 20),
            ((10 << 20) - 512, 20),
            (10 << 20, 10),
            ((10 << 20) + 512, 12),
        ] {
            assert_eq!(stock.segment_size(rounded), segment << 20);
        }
        let eight = Config { roundup_power2_divisions: [8; ROUNDUP_INTERVALS], ..Config::default() };
        for (size, rounded) in [(4096, 4096), (4097, 4608), (1200 << 20, 1280 << 20), (1 << 30, 1 << 30), (600, 1024)] {
            assert_eq!(eight.round(size), rounded);
        }
    }

    #[test]
    fn rests_are_split_as_the_pool_says() {
        let stock = Config::default();
        assert!(stock.splits(SegmentKind::Small, 1024, 512));
        assert!(!stock.splits(SegmentKind::Large, 3 << 20, 2 << 20));
        assert!(stock.splits(SegmentKind::Large, (3 << 20) + 512, 2 << 20));
        assert!(Config { expandable: true, ..Config::default() }.splits(SegmentKind::Large, (2 << 20) + 512, 2 << 20));
    }

    #[test]
    fn among_equal_sizes_the_lowest_address_wins() {
        let lane = Lane { kind: SegmentKind::Large, ..Lane::default() };
        let mut heap = Heap::new();
        for address in [3 << 30, 1 << 30, 2 << 30] {
            heap.add_segment(address, 20 << 20, lane).expect("the ranges are apart");
        }
        let Decision::Take(block) = decide(&heap, &Config::default(), lane, 5 << 20) else { panic!("there is room") };
        assert_eq!(heap.block(block).address, 1 << 30);
        let elsewhere = Lane { stream: 7, ..lane };
        assert_eq!(decide(&heap, &Config::default(), elsewhere, 5 << 20), Decision::NewSegment(20 << 20));
    }
}
