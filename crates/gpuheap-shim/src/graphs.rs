//! Which chunks the kernels of a graph name.
//!
//! A graph is launched as one, and no kernel of it passes here. So when it is made ready for launches, its nodes are asked
//! what their kernels get, and each launch of it counts as one that names all of that. Chunks on the host that it reads
//! are fetched before a launch, as for kernels.
//!
//! What is not known: kernels of graphs within conditional nodes; copies and fills, as outside of graphs; memory that
//! became a chunk's only after the graph was made ready; and what another node's parameters become by
//! `cuGraphExecNodeSetParams`, of which it is not known which sort of node it is for.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint, c_void};
use std::sync::Arc;

use gpuheap_cuda::raw::{Code, Function, Graph, GraphExec, GraphNode, KernelNodeParams, node};

use crate::around::{Call, result};
use crate::parameters::KERNELS;
use crate::passes::{self, PASSES};
use crate::ranges::CHUNKS;
use crate::state::{self, lock};
use crate::touched::{Arguments, is_of_tensor, touched};
use crate::{moving, real};

/// So deep graphs are looked into that are nodes of graphs.
const DEEP: u32 = 8;
/// Addresses of a graph that are kept: of ten thousand kernels some.
const MOST: usize = 1 << 16;

/// What a graph's kernels get.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub(crate) all: Vec<Use>,
    /// The addresses alone.
    pub(crate) addresses: Vec<u64>,
}

/// An address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) address: u64,
    /// How often it is read in one launch of the graph.
    pub(crate) times: u32,
}

/// By graphs that can be launched.
pub(crate) type Table = BTreeMap<usize, Known>;

/// A graph that can be launched.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// By nodes of the graph that it was made of, as those can be changed one by one.
    nodes: Nodes,
    /// Of all nodes, as long as none is changed.
    uses: Option<Arc<Uses>>,
}

/// What the kernels of each node get; of a node that is a graph, those of all in it.
type Nodes = BTreeMap<usize, Vec<Use>>;

impl Known {
    fn uses(&mut self) -> Arc<Uses> {
        Arc::clone(self.uses.get_or_insert_with(|| Arc::new(sum(&self.nodes))))
    }
}

/// How often each address is read by all together.
fn sum(nodes: &Nodes) -> Uses {
    let mut found = BTreeMap::<u64, Use>::new();
    for one in nodes.values().flatten() {
        let before = found.entry(one.address).or_insert(Use { times: 0, ..*one });
        before.times = before.times.saturating_add(one.times);
    }
    let all: Vec<Use> = found.into_values().take(MOST).collect();
    let addresses = all.iter().map(|used| used.address).collect();
    Uses { all, addresses }
}

/// What a graph uses that can be launched.
pub(crate) fn uses(graph: GraphExec) -> Option<Arc<Uses>> {
    lock(&state::get().graph_uses).get_mut(&graph.0).map(Known::uses)
}

pub(crate) fn instantiate(
    call: Call<'_>,
    exec: *mut GraphExec,
    graph: Graph,
    _failed: *mut GraphNode,
    _log: *mut c_char,
    _bytes: usize,
) -> Code {
    made(call, exec, graph)
}

pub(crate) fn instantiate_with_flags(call: Call<'_>, exec: *mut GraphExec, graph: Graph, _flags: u64) -> Code {
    made(call, exec, graph)
}

pub(crate) fn instantiate_with_params(
    call: Call<'_>,
    exec: *mut GraphExec,
    graph: Graph,
    _params: *mut c_void,
) -> Code {
    made(call, exec, graph)
}

fn made(call: Call<'_>, exec: *mut GraphExec, graph: Graph) -> Code {
    let code = call();
    if code.is_success()
        && let Some(exec) = result(exec)
    {
        enter(exec, of_graph(graph));
    }
    code
}

/// The kernels of a graph that can be launched are those of another graph from now on.
pub(crate) fn update(call: Call<'_>, exec: GraphExec, graph: Graph, _node: *mut GraphNode, _told: *mut c_uint) -> Code {
    update_with_info(call, exec, graph, std::ptr::null_mut())
}

pub(crate) fn update_with_info(call: Call<'_>, exec: GraphExec, graph: Graph, _info: *mut c_void) -> Code {
    let code = call();
    if code.is_success() {
        enter(exec, of_graph(graph));
    }
    code
}

/// A kernel of it gets something else.
pub(crate) fn set_kernel(call: Call<'_>, exec: GraphExec, node: GraphNode, params: *const c_void) -> Code {
    let code = call();
    if code.is_success() && wanted() && !params.is_null() {
        // SAFETY: the driver read as much; the older form ends before what is not read here unless there is no function.
        let function = unsafe { params.cast::<Function>().read() };
        // SAFETY: as above: where the other words are is the same in both forms.
        let part = unsafe { params.cast::<Part>().read() };
        if function.0 != 0 {
            let mut found = Vec::new();
            of_kernel(Function(function.0), part.grid, (part.parameters, part.extra), &mut found);
            change(exec, node, found);
        }
    }
    code
}

/// What both forms of a kernel node begin with.
#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    function: Function,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
}

pub(crate) fn set_child(call: Call<'_>, exec: GraphExec, node: GraphNode, child: Graph) -> Code {
    let code = call();
    if code.is_success() && wanted() {
        let mut found = Vec::new();
        add_graph(child, DEEP, &mut found);
        change(exec, node, found);
    }
    code
}

pub(crate) fn destroy(call: Call<'_>, exec: GraphExec) -> Code {
    // Before another graph can have its handle.
    let former = lock(&state::get().graph_uses).remove(&exec.0);
    let code = call();
    if let (false, Some(former)) = (code.is_success(), former) {
        lock(&state::get().graph_uses).insert(exec.0, former);
    }
    code
}

/// Whether anybody will want to know: nothing is on the host without leave.
fn wanted() -> bool {
    moving::get().is_some_and(moving::Moving::spills) && !CHUNKS.is_untouched()
}

fn enter(exec: GraphExec, nodes: Nodes) {
    let mut table = lock(&state::get().graph_uses);
    if nodes.is_empty() {
        table.remove(&exec.0);
    } else {
        table.insert(exec.0, Known { nodes, uses: None });
    }
}

fn change(exec: GraphExec, node: GraphNode, found: Vec<Use>) {
    let mut table = lock(&state::get().graph_uses);
    let known = table.entry(exec.0).or_default();
    known.nodes.insert(node.0, found);
    known.uses = None;
}

fn of_graph(graph: Graph) -> Nodes {
    let mut nodes = Nodes::new();
    if wanted() {
        for node in real::nodes(graph) {
            let mut found = Vec::new();
            add_node(node, DEEP, &mut found);
            if !found.is_empty() {
                nodes.insert(node.0, found);
            }
        }
    }
    nodes
}

fn add_graph(graph: Graph, deep: u32, found: &mut Vec<Use>) {
    for node in real::nodes(graph) {
        add_node(node, deep, found);
    }
}

fn add_node(one: GraphNode, deep: u32, found: &mut Vec<Use>) {
    match real::node_kind(one) {
        Some(node::KERNEL) => {
            let Some(KernelNodeParams { function, kernel, grid, parameters, extra, .. }) = real::kernel_node(one)
            else {
                return;
            };
            // Either is a handle that the driver knows the parameters of.
            let function = if function.0 == 0 { Function(kernel.0) } else { function };
            of_kernel(function, grid, (parameters, extra), found);
        }
        Some(node::GRAPH) if deep > 0 => {
            if let Some(child) = real::child_graph(one) {
                add_graph(child, deep - 1, found);
            }
        }
        _ => {}
    }
}

fn of_kernel(
    function: Function,
    grid: [u32; 3],
    (parameters, extra): (*mut *mut c_void, *mut *mut c_void),
    found: &mut Vec<Use>,
) {
    let is_product = || real::name_is(function, passes::is_product);
    let times = passes::of_grid(PASSES.of(function.0, is_product), grid);
    let arguments = Arguments { function, parameters, extra };
    let add = |_, address| {
        let is_one = is_of_tensor(address, &CHUNKS);
        if is_one {
            found.push(Use { address, times });
        }
        is_one
    };
    // SAFETY: the driver's own copy of the arguments, which is there as long as the node is, or the program's, which the
    // driver has just read.
    unsafe { touched(arguments, (&KERNELS, &CHUNKS), |number| real::parameter(function, number), add) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_got_before_it_was_changed_no_longer_counts() {
        let one = |address, times| Use { address, times };
        let mut known = Known::default();
        known.nodes.insert(1, vec![one(0x1000, 3), one(0x2000, u32::MAX)]);
        known.nodes.insert(2, vec![one(0x1000, 4), one(0x2000, 9), one(0x1000, 1)]);
        let told = |known: &mut Known| {
            let uses = known.uses();
            assert_eq!(uses.addresses, uses.all.iter().map(|used| used.address).collect::<Vec<_>>());
            uses.all.iter().map(|used| (used.address, used.times)).collect::<Vec<_>>()
        };
        assert_eq!(told(&mut known), [(0x1000, 8), (0x2000, u32::MAX)]);
        known.nodes.insert(2, vec![one(0x3000, 1)]);
        known.uses = None;
        assert_eq!(told(&mut known), [(0x1000, 3), (0x2000, u32::MAX), (0x3000, 1)]);
    }
}
