//! One suite for every policy: random programs against a naive map of intervals.

use std::collections::BTreeMap;

use gpuheap_alloc::torch::{Allocator, Config, Request};
use gpuheap_alloc::{Heap, SimulatedDevice};
use gpuheap_record::{BlockState, ROUNDUP_INTERVALS};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Action {
    Allocate { size: u64, stream: u64 },
    Free { index: usize },
    Defer { index: usize },
    Complete { index: usize },
    Release,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let size = prop_oneof![1..2_000_u64, 1_u64..2 << 20, 1_u64..64 << 20, Just(1 << 20), Just(10 << 20)];
    let action = prop_oneof![
        6 => (size, 0..3_u64).prop_map(|(size, stream)| Action::Allocate { size, stream }),
        4 => any::<usize>().prop_map(|index| Action::Free { index }),
        1 => any::<usize>().prop_map(|index| Action::Defer { index }),
        1 => any::<usize>().prop_map(|index| Action::Complete { index }),
        1 => Just(Action::Release),
    ];
    prop::collection::vec(action, 1..200)
}

/// Blocks tile their segments, no two free blocks touch, and the totals are the sums.
fn check_invariants(heap: &Heap) {
    let (mut reserved, mut allocated, mut requested) = (0, 0, 0);
    let mut last_end = 0;
    for segment in heap.segments() {
        assert!(segment.address >= last_end, "segments overlap");
        let mut at = segment.address;
        let mut after_free = false;
        for block in &segment.blocks {
            assert_eq!(block.address, at, "a gap between blocks");
            assert!(!(after_free && block.state == BlockState::Free), "two free blocks touch");
            after_free = block.state == BlockState::Free;
            at += block.size;
            if block.state == BlockState::Allocated {
                allocated += block.size;
            }
            if block.state != BlockState::Free {
                requested += block.requested;
            }
            assert_eq!(block.size % 512, 0);
            assert_eq!(heap.at(block.address).map(|id| *heap.block(id)), Some(*block));
        }
        assert_eq!(at, segment.address + segment.size, "blocks do not fill the segment");
        last_end = at;
        reserved += segment.size;
    }
    let totals = heap.totals();
    assert_eq!((totals.reserved, totals.allocated, totals.requested), (reserved, allocated, requested));
}

/// A full release waits for the other streams: what was pending is free then.
fn forget_completed(heap: &Heap, deferred: &mut Vec<(u32, u64)>, naive: &mut BTreeMap<u64, (u64, u64)>) {
    deferred.retain(|&(owner, address)| {
        let block = heap.at(address).map(|id| heap.block(id));
        let pending = block.is_some_and(|block| block.state == BlockState::PendingFree && block.owner == owner);
        if !pending {
            naive.remove(&address);
        }
        pending
    });
}

fn run(config: &Config, limit: Option<u64>, actions: &[Action]) -> Vec<(u64, u64)> {
    let mut allocator = Allocator::new(config.clone(), limit, SimulatedDevice::new(None));
    let mut naive: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut live = Vec::new();
    let mut deferred = Vec::new();
    let mut trace = Vec::new();
    // PyTorch compares the cap with the segment that it would make, and then maps whole handles.
    let slack = if config.expandable { config.large_segment } else { 0 };
    for (owner, action) in (0..).zip(actions) {
        match *action {
            Action::Allocate { size, stream } => {
                match allocator.allocate(Request { size, stream, ..Request::default() }, owner) {
                    Ok(id) => {
                        forget_completed(allocator.heap(), &mut deferred, &mut naive);
                        let given = *allocator.heap().block(id);
                        assert!(given.size >= size, "less than asked for");
                        assert_eq!((given.owner, given.requested), (owner, size));
                        let below = naive.range(..given.address + given.size).next_back();
                        let free = below.is_none_or(|(&start, &(size, _))| start + size <= given.address);
                        assert!(free, "memory given twice");
                        naive.insert(given.address, (given.size, size));
                        live.push((id, given.address));
                        trace.push((given.address, given.size));
                    }
                    Err(error) => {
                        let limit = limit.expect("an endless device never runs out");
                        assert!(error.reserved <= limit + slack);
                        // Nothing that could have gone back is still reserved.
                        let whole_free = allocator.heap().segments().any(|segment| {
                            segment.blocks.len() == 1
                                && segment.blocks[0].state == BlockState::Free
                                && !segment.expandable
                        });
                        assert!(!whole_free, "an unused segment was kept");
                    }
                }
            }
            Action::Free { index } if !live.is_empty() => {
                let (id, address) = live.swap_remove(index % live.len());
                naive.remove(&address).expect("every address stands in the naive map");
                allocator.free(id).expect("a block that was given can be freed");
            }
            Action::Defer { index } if !live.is_empty() => {
                let (id, address) = live.swap_remove(index % live.len());
                let owner = allocator.heap().block(id).owner;
                allocator.defer(id).expect("a block that was given can be freed");
                assert!(allocator.defer(id).is_err(), "freed twice");
                deferred.push((owner, address));
            }
            Action::Complete { index } if !deferred.is_empty() => {
                let (owner, address) = deferred.swap_remove(index % deferred.len());
                allocator.complete(owner).expect("a dropped block can be completed");
                allocator.complete(owner).expect("completing twice changes nothing");
                naive.remove(&address);
            }
            Action::Free { .. } | Action::Defer { .. } | Action::Complete { .. } => {}
            Action::Release => allocator.release_unused(),
        }
        forget_completed(allocator.heap(), &mut deferred, &mut naive);
        check_invariants(allocator.heap());
        let held: u64 = naive.values().map(|&(size, _)| size).sum();
        let totals = allocator.heap().totals();
        assert_eq!(totals.active, held);
        assert!(totals.allocated <= totals.active && totals.active <= totals.reserved);
        assert!(limit.is_none_or(|limit| totals.reserved <= limit + slack), "more than the cap");
        assert_eq!(allocator.device().used(), totals.reserved);
    }
    for (id, _) in live {
        allocator.free(id).expect("a block that was given can be freed");
    }
    allocator.release_unused();
    assert_eq!(allocator.heap().totals().active, 0);
    assert_eq!(allocator.heap().segment_count(), 0, "all memory goes back in the end");
    assert_eq!(allocator.device().used(), 0);
    trace
}

macro_rules! conforms {
    ($name:ident, $config:expr) => {
        mod $name {
            use super::*;

            proptest! {
                #[test]
                fn on_an_endless_device(actions in actions()) {
                    let first = run(&$config, None, &actions);
                    prop_assert_eq!(first, run(&$config, None, &actions), "the same program, another placement");
                }

                #[test]
                fn under_a_limit(actions in actions(), limit in 1..256_u64) {
                    run(&$config, Some(limit << 20), &actions);
                }
            }
        }
    };
}

conforms!(stock, Config::default());
conforms!(split_limit, Config { max_split: 32 << 20, ..Config::default() });
conforms!(power_of_two_divisions, Config { roundup_power2_divisions: [4; ROUNDUP_INTERVALS], ..Config::default() });
conforms!(expandable, Config { expandable: true, ..Config::default() });
conforms!(expandable_with_split_limit, Config { expandable: true, max_split: 32 << 20, ..Config::default() });
conforms!(collected, Config { garbage_collection_threshold: 0.5, ..Config::default() });
conforms!(large_segments, Config { large_segment: 64 << 20, max_non_split_rounding: 64 << 20, ..Config::default() });
