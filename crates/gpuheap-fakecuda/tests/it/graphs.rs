//! Captures and graphs.

use gpuheap_cuda::raw::{
    ALLOCATION_PINNED, AllocNodeParams, Code, DevicePtr, Event, Graph, GraphExec, GraphNode, MemLocation, PoolProps,
    Stream, location,
};

use crate::support::*;

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

#[test]
fn what_is_captured_is_done_at_each_launch_and_not_before() {
    let _fresh = fresh();
    let (stream, side) = (stream(1), stream(1));
    let memory = allocate(1024);
    let (mut graph, mut exec, mut event, mut back) = (Graph::NULL, GraphExec::NULL, Event::NULL, Event::NULL);
    let mut status = 0;
    // SAFETY: all outlive the calls; the memory stays until the end.
    unsafe {
        good(cuMemsetD32_v2(memory, 0, 256));
        good(cuEventCreate(&raw mut event, 2));
        good(cuEventCreate(&raw mut back, 2));
        good(cuStreamBeginCapture_v2(stream, GLOBAL));
        good(cuMemsetD8Async(memory, 1, 512, stream));
        good(cuEventRecord(event, stream));
        good(cuStreamWaitEvent(side, event, 0));
        good(cuStreamIsCapturing(side, &raw mut status));
        assert_eq!(status, 1, "behind an event of the capture");
        good(cuMemsetD8Async(DevicePtr(memory.0 + 512), 2, 512, side));
        good(cuEventRecord(back, side));
        good(cuStreamWaitEvent(stream, back, 0));
        assert_eq!(cuStreamEndCapture(side, &raw mut graph), Code::STREAM_CAPTURE_UNMATCHED);
        good(cuStreamEndCapture(stream, &raw mut graph));
        good(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        good(cuGraphDestroy(graph));
        assert_eq!((byte(memory), byte(DevicePtr(memory.0 + 512))), (0, 0));
        for _ in 0..2 {
            good(cuGraphLaunch(exec, stream));
            good(cuStreamSynchronize(stream));
            assert_eq!((byte(memory), byte(DevicePtr(memory.0 + 1023))), (1, 2));
            good(cuMemsetD8_v2(memory, 0, 1024));
            good(cuCtxSynchronize());
        }
        good(cuGraphExecDestroy(exec));
        assert_eq!(cuGraphLaunch(exec, stream), Code::INVALID_VALUE);
    }
}

#[test]
fn allocating_and_waiting_are_refused_while_a_stream_captures() {
    let _fresh = fresh();
    let stream = stream(1);
    let mut graph = Graph::NULL;
    let mut address = DevicePtr::NULL;
    let mut mode = RELAXED;
    // SAFETY: all outlive the calls.
    unsafe {
        good(cuStreamBeginCapture_v2(stream, GLOBAL));
        assert_eq!(cuMemAlloc_v2(&raw mut address, 512), Code::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(cuCtxSynchronize(), Code::STREAM_CAPTURE_UNSUPPORTED);
        good(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        assert_eq!(mode, GLOBAL);
        good(cuMemAlloc_v2(&raw mut address, 512));
        good(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        assert_eq!(cuStreamSynchronize(stream), Code::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(cuStreamEndCapture(stream, &raw mut graph), Code::STREAM_CAPTURE_INVALIDATED);
        good(cuStreamSynchronize(stream));
        assert_eq!(cuStreamBeginCapture_v2(Stream::NULL, GLOBAL), Code::STREAM_CAPTURE_UNSUPPORTED);
    }
}

#[test]
fn memory_of_a_node_goes_with_the_last_that_was_made_of_the_graph() {
    let _fresh = fresh();
    let before = free();
    let (mut graph, mut exec, mut node) = (Graph::NULL, GraphExec::NULL, GraphNode::NULL);
    let place = MemLocation { kind: location::DEVICE, id: 0 };
    let pool = PoolProps {
        kind: ALLOCATION_PINNED,
        handle_types: 0,
        location: place,
        security: std::ptr::null(),
        max_size: 0,
        usage: 0,
        reserved: [0; 54],
    };
    let mut params =
        AllocNodeParams { pool, access: std::ptr::null(), access_count: 0, bytes: 3 << 20, address: DevicePtr::NULL };
    // SAFETY: all outlive the calls.
    unsafe {
        good(cuGraphCreate(&raw mut graph, 0));
        good(cuGraphAddMemAllocNode(&raw mut node, graph, std::ptr::null(), 0, &raw mut params));
        good(cuMemsetD8_v2(params.address, 1, 3 << 20));
        good(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        good(cuGraphDestroy(graph));
        assert_eq!(before - free(), 4 << 20);
        good(cuGraphExecDestroy(exec));
    }
    assert_eq!(free(), before);
}
