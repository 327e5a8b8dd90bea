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
    Release,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let size = prop_oneof![1..2_000_u64, 1_u64..2 << 20, 1_u64..64 << 20, Just(1 << 20), Just(10 << 20)];
    let action = prop_oneof![
        6 => (size, 0..3_u64).prop_map(|(size, stream)| Action::Allocate { size, stream }),
        5 => any::<usize>().prop_map(|index| Action::Free { index }),
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

fn run(config: &Config, limit: Option<u64>, actions: &[Action]) -> Vec<(u64, u64)> {
    let mut allocator = Allocator::new(config.clone(), SimulatedDevice::new(limit));
    let mut naive: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut order = Vec::new();
    let mut trace = Vec::new();
    for action in actions {
        match *action {
            Action::Allocate { size, stream } => {
                match allocator.allocate(Request { size, stream, ..Request::default() }) {
                    Ok(given) => {
                        assert!(given.size >= size, "less than asked for");
                        let below = naive.range(..given.address + given.size).next_back();
                        let free = below.is_none_or(|(&start, &(size, _))| start + size <= given.address);
                        assert!(free, "memory given twice");
                        naive.insert(given.address, (given.size, size));
                        order.push(given.address);
                        trace.push((given.address, given.size));
                    }
                    Err(error) => {
                        let limit = limit.expect("an endless device never runs out");
                        assert!(error.reserved <= limit);
                        // Nothing that could have gone back is still reserved.
                        let whole_free = allocator
                            .heap()
                            .segments()
                            .any(|segment| segment.blocks.len() == 1 && segment.blocks[0].state == BlockState::Free);
                        assert!(!whole_free, "an unused segment was kept");
                    }
                }
            }
            Action::Free { index } if !order.is_empty() => {
                let address = order.swap_remove(index % order.len());
                naive.remove(&address).expect("every address stands in the naive map");
                allocator.free(address).expect("a block that was given can be freed");
                assert!(allocator.free(address).is_err(), "freed twice");
            }
            Action::Free { .. } => {}
            Action::Release => allocator.release_unused(),
        }
        check_invariants(allocator.heap());
        let held: u64 = naive.values().map(|&(size, _)| size).sum();
        assert_eq!(allocator.heap().totals().allocated, held);
        assert_eq!(allocator.device().used(), allocator.heap().totals().reserved);
    }
    for address in order {
        allocator.free(address).expect("a block that was given can be freed");
    }
    allocator.release_unused();
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
