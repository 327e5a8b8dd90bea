//! Mapping and unmapping ranges of an expandable segment.

use gpuheap_alloc::{Heap, Lane};
use gpuheap_record::{BlockState, SegmentKind};

const MIB: u64 = 1 << 20;
const BASE: u64 = 1 << 40;

fn lane() -> Lane {
    Lane { kind: SegmentKind::Large, ..Lane::default() }
}

fn shape(heap: &Heap) -> Vec<(u64, Vec<(u64, bool)>)> {
    heap.segments()
        .map(|segment| {
            let blocks = segment.blocks.iter().map(|block| (block.size / MIB, block.state == BlockState::Free));
            ((segment.address - BASE) / MIB, blocks.collect())
        })
        .collect()
}

#[test]
fn a_mapped_range_joins_the_free_block_before_it() {
    let mut heap = Heap::new();
    let first = heap.map(BASE, 40 * MIB, lane()).expect("nothing is there yet");
    heap.carve(first, 30 * MIB, 30 * MIB, true, 1).expect("there is room");
    heap.map(BASE + 40 * MIB, 20 * MIB, lane()).expect("the range is vacant");
    assert_eq!(shape(&heap), [(0, vec![(30, false), (30, true)])]);
    assert_eq!(heap.totals().reserved, 60 * MIB);
    assert!(heap.map(BASE + 50 * MIB, 20 * MIB, lane()).is_err(), "mapped twice");
}

#[test]
fn unmapping_splits_a_segment_and_mapping_joins_it_again() {
    let mut heap = Heap::new();
    let first = heap.map(BASE, 100 * MIB, lane()).expect("nothing is there yet");
    heap.carve(first, 10 * MIB, 10 * MIB, true, 1).expect("there is room");
    heap.unmap(BASE + 20 * MIB, 40 * MIB).expect("the range is free");
    assert_eq!(shape(&heap), [(0, vec![(10, false), (10, true)]), (60, vec![(40, true)])]);
    assert_eq!(heap.totals().reserved, 60 * MIB);
    assert!(heap.unmap(BASE, 20 * MIB).is_err(), "in use");
    heap.map(BASE + 20 * MIB, 40 * MIB, lane()).expect("the range is vacant");
    assert_eq!(shape(&heap), [(0, vec![(10, false), (90, true)])]);
    heap.request_free(BASE).expect("it is allocated");
    heap.complete_free(BASE).expect("it is pending");
    heap.unmap(BASE, 100 * MIB).expect("all of it is free");
    assert_eq!(shape(&heap), []);
    assert_eq!(heap.totals(), gpuheap_alloc::Totals::default());
}
