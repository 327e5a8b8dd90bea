//! Stream capture and graphs, as far as frameworks use them: what streams of a capture are given is kept in order, and
//! done in that order whenever the graph is launched.
//!
//! Simpler than the real driver: of nodes only what kernels get can be looked at, nothing can be changed, and memory of allocation nodes is taken when the
//! node is made and given back when the graph and all that was made of it are destroyed.

use std::cell::Cell;
use std::ffi::{c_char, c_uint, c_void};
use std::sync::Arc;
use std::thread;

use gpuheap_cuda::raw::{self, AllocNodeParams, Code, DeviceId, KernelNodeParams};

use crate::entry::{Done, Out, exports, give, stream_exports};
use crate::pages::{Backing, GRANULARITY, round_up};
use crate::space::Kind;
use crate::state::{State, lock, ready};
use crate::work::{Captured, Work};

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

/// A graph.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    work: Vec<Work>,
    memory: Vec<Arc<Memory>>,
    /// Handles of its nodes, and what they are.
    nodes: Vec<(usize, Node)>,
}

#[derive(Clone)]
enum Node {
    Kernel(Arc<KernelNode>),
    /// Of that sort.
    Other(u32),
}

/// What a kernel of a graph gets.
pub(crate) struct KernelNode {
    function: raw::Function,
    size: ([u32; 3], [u32; 3]),
    /// Values of all parameters, and a pointer to each.
    values: Vec<u8>,
    pointers: Vec<usize>,
}

impl KernelNode {
    pub(crate) fn new(function: raw::Function, size: ([u32; 3], [u32; 3]), values: Vec<u8>, offsets: &[usize]) -> Self {
        let start = values.as_ptr().expose_provenance();
        Self { function, size, values, pointers: offsets.iter().map(|offset| start + offset).collect() }
    }

    /// As it is told. The driver's own memory is given away, which nobody may write to.
    fn told(&self) -> KernelNodeParams {
        debug_assert!(self.pointers.len() < self.values.len());
        KernelNodeParams {
            function: self.function,
            grid: self.size.0,
            block: self.size.1,
            shared_bytes: 0,
            parameters: self.pointers.as_ptr().cast_mut().cast(),
            extra: std::ptr::null_mut(),
            kernel: raw::Kernel(0),
            context: raw::Context::NULL,
        }
    }
}

/// Memory of an allocation node, given back with the last graph that has it.
struct Memory {
    address: usize,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A graph is taken out of the state before it is dropped, when the lock is free again.
        let _ = lock().drop_range(self.address);
    }
}

thread_local! {
    /// Whether the thread may do what a capture elsewhere forbids.
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

exports! {
    fn cuThreadExchangeStreamCaptureMode(mode: Option<&mut u32>) {
        let mode = mode.ok_or(Code::INVALID_VALUE)?;
        if *mode > RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        *mode = MODE.replace(*mode);
        Ok(())
    }

    fn cuGraphCreate(graph: Out<'_, raw::Graph>, flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = ready()?;
        let handle = state.handle();
        state.graphs.insert(handle, Graph::default());
        give(graph, raw::Graph(handle))
    }

    fn cuGraphDestroy(graph: raw::Graph) {
        let removed = ready()?.graphs.remove(&graph.0);
        removed.map(drop).ok_or(Code::INVALID_VALUE)
    }

    fn cuGraphGetNodes(graph: raw::Graph, nodes: *mut raw::GraphNode, count: Option<&mut usize>) {
        let state = ready()?;
        let found = &state.graphs.get(&graph.0).ok_or(Code::INVALID_VALUE)?.nodes;
        let count = count.ok_or(Code::INVALID_VALUE)?;
        if nodes.is_null() {
            *count = found.len();
            return Ok(());
        }
        for (number, (handle, _)) in found.iter().enumerate().take(*count) {
            // SAFETY: the caller has room for so many.
            let place = unsafe { nodes.add(number) };
            // SAFETY: as above.
            unsafe { place.write(raw::GraphNode(*handle)) };
        }
        *count = found.len().min(*count);
        Ok(())
    }

    fn cuGraphNodeGetType(node: raw::GraphNode, kind: Out<'_, c_uint>) {
        let state = ready()?;
        give(kind, match state.node(node)? {
            Node::Kernel(_) => raw::node::KERNEL,
            Node::Other(kind) => *kind,
        })
    }

    fn cuGraphKernelNodeGetParams_v2(node: raw::GraphNode, params: Out<'_, KernelNodeParams>) {
        let state = ready()?;
        match state.node(node)? {
            Node::Kernel(kernel) => give(params, kernel.told()),
            Node::Other(_) => Err(Code::INVALID_VALUE),
        }
    }

    fn cuGraphInstantiateWithFlags(exec: Out<'_, raw::GraphExec>, graph: raw::Graph, _flags: u64) {
        instantiate(exec, graph)
    }

    fn cuGraphInstantiate_v2(
        exec: Out<'_, raw::GraphExec>, graph: raw::Graph, _node: *const raw::GraphNode, _log: *const c_char,
        _bytes: usize,
    ) {
        instantiate(exec, graph)
    }

    fn cuGraphExecDestroy(exec: raw::GraphExec) {
        let removed = ready()?.execs.remove(&exec.0);
        removed.map(drop).ok_or(Code::INVALID_VALUE)
    }

    fn cuGraphAddMemAllocNode(
        node: Out<'_, raw::GraphNode>, graph: raw::Graph, _after: *const raw::GraphNode, _count: usize,
        params: Option<&mut AllocNodeParams>,
    ) {
        let mut state = ready()?;
        if !state.graphs.contains_key(&graph.0) {
            return Err(Code::INVALID_VALUE);
        }
        let params = params.ok_or(Code::INVALID_VALUE)?;
        let node = node.ok_or(Code::INVALID_VALUE)?;
        let device = state.device(params.pool.location.id)?;
        if params.pool.location.kind != raw::location::DEVICE || params.bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let taken = round_up(params.bytes, GRANULARITY)?;
        state.charge(device, taken)?;
        let mapped = Backing::new(taken).and_then(|backing| Ok((backing.map_anywhere()?, backing)));
        let (address, backing) = match mapped {
            Ok(mapped) => mapped,
            Err(code) => {
                state.refund(device, taken);
                return Err(code);
            }
        };
        state.put_range(address, params.bytes, taken, Kind::Foreign, (0, device), Some(backing));
        params.address = raw::DevicePtr(address);
        let handle = state.handle();
        if let Some(graph) = state.graphs.get_mut(&graph.0) {
            graph.memory.push(Arc::new(Memory { address }));
            graph.nodes.push((handle, Node::Other(raw::node::ALLOC)));
        }
        node.write(raw::GraphNode(handle));
        Ok(())
    }

    fn cuGraphAddMemFreeNode(
        node: Out<'_, raw::GraphNode>, graph: raw::Graph, _after: *const raw::GraphNode, _count: usize,
        address: raw::DevicePtr,
    ) {
        let mut state = ready()?;
        if state.space.ranges.get(&address.0).is_none_or(|range| range.kind != Kind::Foreign) {
            return Err(Code::INVALID_VALUE);
        }
        let handle = state.handle();
        let nodes = &mut state.graphs.get_mut(&graph.0).ok_or(Code::INVALID_VALUE)?.nodes;
        nodes.push((handle, Node::Other(raw::node::FREE)));
        give(node, raw::GraphNode(handle))
    }

    fn cuDeviceGetGraphMemAttribute(device: DeviceId, attribute: c_uint, value: Out<'_, u64>) {
        let state = ready()?;
        let device = state.device(device)?;
        if attribute > 3 {
            return Err(Code::INVALID_VALUE);
        }
        let own = state.space.ranges.values().filter(|range| range.kind == Kind::Foreign && range.device == device);
        // In use and held, now and at most: all the same here.
        give(value, own.map(|range| range.taken as u64).sum())
    }

    fn cuDeviceGraphMemTrim(device: DeviceId) {
        ready()?.device(device).map(drop)
    }
}

stream_exports! {
    fn cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz [thread] (stream: raw::Stream, mode: c_uint) {
        let mut state = ready()?;
        let handle = state.stream(stream, thread)?;
        let found = state.streams.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
        if found.kind == crate::work::Kind::Legacy {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if found.capture.is_some() || mode > RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        found.capture = Some(handle);
        found.captured = Captured { mode, thread: Some(thread::current().id()), ..Captured::default() };
        Ok(())
    }

    fn cuStreamEndCapture / cuStreamEndCapture_ptsz [thread] (stream: raw::Stream, graph: Out<'_, raw::Graph>) {
        let mut state = ready()?;
        let handle = state.stream(stream, thread)?;
        let out = graph.ok_or(Code::INVALID_VALUE)?;
        match state.streams[&handle].capture {
            Some(origin) if origin == handle => {}
            Some(_) => return Err(Code::STREAM_CAPTURE_UNMATCHED),
            None => return Err(Code::ILLEGAL_STATE),
        }
        let mut captured = Captured::default();
        for (other, found) in &mut state.streams {
            if found.capture == Some(handle) {
                found.capture = None;
                if *other == handle {
                    captured = std::mem::take(&mut found.captured);
                }
            }
        }
        if captured.invalid {
            out.write(raw::Graph::NULL);
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let made = state.handle();
        // What is no kernel is taken for a copy: functions of the host, fills and waits are not told apart.
        let mut nodes: Vec<(usize, Node)> =
            captured.work.iter().map(|_| (state.handle(), Node::Other(raw::node::COPY))).collect();
        for (place, kernel) in captured.kernels {
            if let Some((_, node)) = nodes.get_mut(place) {
                *node = Node::Kernel(kernel);
            }
        }
        state.graphs.insert(made, Graph { work: captured.work, memory: Vec::new(), nodes });
        out.write(raw::Graph(made));
        Ok(())
    }

    fn cuStreamIsCapturing / cuStreamIsCapturing_ptsz [thread] (stream: raw::Stream, status: Out<'_, c_uint>) {
        let mut state = ready()?;
        let handle = state.stream(stream, thread)?;
        give(status, state.capture_status(handle))
    }

    fn cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz [thread] (
        stream: raw::Stream, status: Out<'_, c_uint>, id: Out<'_, u64>, _graph: *const c_void,
        _nodes: *const c_void, _count: *const usize,
    ) {
        capture_info(stream, thread, status, id)
    }

    fn cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz [thread] (
        stream: raw::Stream, status: Out<'_, c_uint>, id: Out<'_, u64>, _graph: *const c_void,
        _nodes: *const c_void, _edges: *const c_void, _count: *const usize,
    ) {
        capture_info(stream, thread, status, id)
    }

    fn cuGraphLaunch / cuGraphLaunch_ptsz [thread] (exec: raw::GraphExec, stream: raw::Stream) {
        let mut state = ready()?;
        let stream = state.stream(stream, thread)?;
        let graph = state.execs.get(&exec.0).ok_or(Code::INVALID_VALUE)?;
        let work = graph.work.clone();
        let all: Work = Arc::new(move || work.iter().try_for_each(|piece| piece()));
        state.submit(stream, Vec::new(), Some(all))
    }

    fn cuGraphUpload / cuGraphUpload_ptsz [thread] (exec: raw::GraphExec, stream: raw::Stream) {
        let mut state = ready()?;
        state.stream(stream, thread)?;
        state.execs.get(&exec.0).map(drop).ok_or(Code::INVALID_VALUE)
    }
}

fn capture_info(stream: raw::Stream, thread: bool, status: Out<'_, c_uint>, id: Out<'_, u64>) -> Done {
    let mut state = ready()?;
    let handle = state.stream(stream, thread)?;
    crate::entry::offer(id, state.streams[&handle].capture.unwrap_or(0) as u64);
    give(status, state.capture_status(handle))
}

fn instantiate(out: Out<'_, raw::GraphExec>, graph: raw::Graph) -> Done {
    let mut state = ready()?;
    let graph = state.graphs.get(&graph.0).ok_or(Code::INVALID_VALUE)?.clone();
    let handle = state.handle();
    state.execs.insert(handle, graph);
    give(out, raw::GraphExec(handle))
}

impl State {
    fn node(&self, node: raw::GraphNode) -> Result<&Node, Code> {
        let found = self.graphs.values().flat_map(|graph| &graph.nodes).find(|(handle, _)| *handle == node.0);
        found.map(|(_, node)| node).ok_or(Code::INVALID_VALUE)
    }

    /// Not capturing, capturing, or capturing what has become invalid.
    fn capture_status(&self, stream: usize) -> u32 {
        let Some(origin) = self.streams[&stream].capture else { return 0 };
        if self.streams.get(&origin).is_none_or(|origin| origin.captured.invalid) { 2 } else { 1 }
    }

    /// Spoils the capture that a stream takes part in.
    pub(crate) fn invalidate(&mut self, stream: usize) {
        if let Some(origin) = self.streams[&stream].capture
            && let Some(origin) = self.streams.get_mut(&origin)
        {
            origin.captured.invalid = true;
        }
    }

    /// The error of what must not be done while a stream of the context captures, as far as it concerns this thread.
    pub(crate) fn forbid_while_capturing(&self, context: usize) -> Done {
        let own = thread::current().id();
        let mode = MODE.get();
        let forbids = self.streams.iter().any(|(handle, stream)| {
            stream.context == context
                && stream.capture == Some(*handle)
                && mode != RELAXED
                && stream.captured.mode != RELAXED
                && (stream.captured.thread == Some(own) || (stream.captured.mode == GLOBAL && mode == GLOBAL))
        });
        if forbids { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Graph").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}
