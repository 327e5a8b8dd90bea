//! What goes back to the driver, and in which order.

use gpuheap_record::{PoolId, SegmentKind};

use super::rules::Config;
use crate::heap::{BlockId, Heap, Lane};

/// Memory that goes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// A whole segment: its first address.
    Segment(u64),
    /// Whole handles of an expandable segment: first address and bytes.
    Handles(u64, u64),
}

impl Release {
    /// The first address of what goes back.
    #[must_use]
    pub fn address(self) -> u64 {
        match self {
            Self::Segment(address) | Self::Handles(address, _) => address,
        }
    }
}

/// What a full release gives back, in order: the large and then the small default pool, each by stream, size and
/// address, whole segments before handles; then the private pools that `unused` names, small and then large.
#[must_use]
pub fn full_release(heap: &Heap, config: &Config, unused: &[PoolId]) -> Vec<Release> {
    full_release_blocks(heap, config, unused).into_iter().map(|(_, release)| release).collect()
}

/// The same with the free block that each part is of.
pub(super) fn full_release_blocks(heap: &Heap, config: &Config, unused: &[PoolId]) -> Vec<(BlockId, Release)> {
    let default = [SegmentKind::Large, SegmentKind::Small].map(|kind| (PoolId::default(), kind));
    let private = unused.iter().flat_map(|&pool| [SegmentKind::Small, SegmentKind::Large].map(|kind| (pool, kind)));
    let mut released = Vec::new();
    for (pool, kind) in default.into_iter().chain(private) {
        let mut handles = Vec::new();
        for (id, block) in heap.releasable(pool, kind) {
            if block.expandable {
                let inside = heap.whole_handles(id, config.handle(kind));
                handles.extend(inside.map(|(address, size)| (id, Release::Handles(address, size))));
            } else if block.is_whole_segment() {
                released.push((id, Release::Segment(block.address)));
            }
        }
        released.append(&mut handles);
    }
    released
}

/// What is released for one request where a split limit is set, and whether that suffices: the smallest unused segment
/// of its lane that is large enough (and not below the limit); else the largest ones until together they are.
///
/// `is_gone` tells segments that were released before within the same request.
#[must_use]
pub fn partial_release(
    heap: &Heap,
    config: &Config,
    lane: Lane,
    rounded: u64,
    is_gone: impl Fn(u64) -> bool,
) -> (Vec<u64>, bool) {
    if config.max_split == u64::MAX {
        return (Vec::new(), false);
    }
    let needed = rounded.max(config.max_split);
    if let Some(first) = heap.free_of(lane, needed).find(|block| !is_gone(block.address)) {
        let whole = first.is_whole_segment() && !first.expandable;
        return (whole.then_some(first.address).into_iter().collect(), whole);
    }
    let mut released = Vec::new();
    let mut sum = 0_u64;
    for block in heap.largest_releasable(lane, config.max_split).filter(|block| !is_gone(block.address)) {
        if sum >= needed {
            break;
        }
        if !block.expandable && block.is_whole_segment() {
            released.push(block.address);
            sum = sum.saturating_add(block.size);
        }
    }
    (released, sum >= needed)
}

/// The unused segments of the large default pool that one pass of the collector gives back, in search order: all that
/// are at least as old as the average of those that are left. Ages count searches, see [`Heap::age`].
///
/// `is_gone` tells segments that earlier passes of the same collection gave back.
#[must_use]
pub fn collection_pass(heap: &Heap, is_gone: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
    let candidates = || {
        heap.releasable(PoolId::default(), SegmentKind::Large)
            .filter(|(_, block)| block.is_whole_segment() && !is_gone(block.address))
    };
    let (sum, count) = candidates().fold((0_u64, 0_u64), |(sum, count), (id, _)| (sum + heap.age(id), count + 1));
    if count == 0 {
        return Vec::new();
    }
    let average = sum as f64 / count as f64;
    candidates()
        .filter(|&(id, block)| !block.expandable && heap.age(id) as f64 >= average)
        .map(|(_, block)| (block.address, block.size))
        .collect()
}
