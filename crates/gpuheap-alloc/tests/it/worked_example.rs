//! A short run of a real program (PyTorch 2.11, H200), block by block.

use gpuheap_alloc::Device;
use gpuheap_alloc::torch::{Allocator, Config, Release, Request, full_release};
use gpuheap_record::BlockState;

const MIB: u64 = 1 << 20;

/// Hands out the addresses that the real driver gave.
struct Recorded(std::vec::IntoIter<u64>);

impl Device for Recorded {
    fn allocate(&mut self, _size: u64) -> Option<u64> {
        self.0.next()
    }

    fn free(&mut self, _address: u64) {}

    fn reserve(&mut self, _handle: u64) -> Option<(u64, u64)> {
        None
    }

    fn map(&mut self, _size: u64) -> bool {
        false
    }

    fn unmap(&mut self, _size: u64) {}
}

#[test]
fn blocks_end_up_where_pytorch_put_them() {
    let segments = vec![0x1200_0000, 0x1340_0000, 0x0e00_0000, 0x0c00_0000, 0x0a00_0000];
    let mut allocator = Allocator::new(Config::default(), None, Recorded(segments.into_iter()));
    let mut allocate = |mib: u64| {
        let before = allocator.heap().totals().reserved;
        let id = allocator.allocate(Request { size: mib * MIB, ..Request::default() }, 0).expect("there is memory");
        let made = allocator.heap().totals().reserved - before;
        (allocator.heap().block(id).address, (made > 0).then_some(made / MIB))
    };
    assert_eq!(allocate(8), (0x1200_0000, Some(20)));
    assert_eq!(allocate(1), (0x1340_0000, Some(2)));
    assert_eq!(allocate(8), (0x1280_0000, None));
    assert_eq!(allocate(8), (0x0e00_0000, Some(20)));
    assert_eq!(allocate(8), (0x0e80_0000, None));
    assert_eq!(allocate(8), (0x0c00_0000, Some(20)));
    assert_eq!(allocate(8), (0x0c80_0000, None));
    assert_eq!(allocate(8), (0x0a00_0000, Some(20)));
    assert_eq!(allocate(8), (0x0a80_0000, None));

    let mut free = |address: u64, segment: u64| {
        let id = allocator.heap().at(address).expect("a block starts there");
        allocator.free(id).expect("it is allocated");
        let view = allocator.heap().segments().find(|view| view.address == segment).expect("the segment is there");
        let blocks = view.blocks.iter().map(|block| (block.size / MIB, block.state == BlockState::Free));
        blocks.collect::<Vec<_>>()
    };
    assert_eq!(free(0x0a00_0000, 0x0a00_0000), [(8, true), (8, false), (4, true)]);
    assert_eq!(free(0x0c80_0000, 0x0c00_0000), [(8, false), (12, true)]);
    assert_eq!(free(0x0c00_0000, 0x0c00_0000), [(20, true)]);
    for address in [0x0e00_0000, 0x0e80_0000, 0x1200_0000, 0x1280_0000] {
        free(address, 0x0e00_0000);
    }
    assert_eq!(free(0x0a80_0000, 0x0a00_0000), [(20, true)]);

    let order = full_release(allocator.heap(), &Config::default(), &[]);
    let order: Vec<u64> = order.into_iter().map(Release::address).collect();
    assert_eq!(order, [0x0a00_0000, 0x0c00_0000, 0x0e00_0000, 0x1200_0000], "equal sizes: ascending address");
    allocator.release_unused();
    assert_eq!(allocator.heap().segment_count(), 1, "the 1 MiB is live");
}
