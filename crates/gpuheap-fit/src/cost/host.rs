//! What a call of an operator costs the program, which starts kernels one after another while the device works.
//!
//! All figures are in units of one call of `torch.add` on small tensors, which a device's table has in microseconds
//! (`launch_us`): a slower processor is slower at all of them. They are from single operators and from one model of
//! many small ones; those of checkpointing are from chains of calls on a GPU.

use crate::trace::Trace;

/// A call of an operator that starts a kernel or two, without what is around it; the first name that fits counts.
const CALLS: [(&str, f64); 32] = [
    // Some 22 kernels, most of them of a sort, each at half of what a call costs.
    ("_embedding_bag_backward", 13.0),
    ("convolution_backward", 10.4),
    ("convolution", 4.8),
    ("group_norm_backward", 5.6),
    ("group_norm", 3.2),
    ("layer_norm_backward", 3.6),
    ("layer_norm", 2.4),
    ("batch_norm", 2.4),
    ("attention_backward", 4.8),
    ("attention", 3.6),
    ("_safe_softmax", 5.6),
    ("softmax_backward", 2.6),
    ("softmax", 2.4),
    ("dropout", 1.8),
    ("embedding_dense_backward", 4.8),
    ("embedding", 1.8),
    ("_rnn", 30.0),
    ("addmm", 2.6),
    ("bmm", 2.4),
    ("mm", 2.4),
    ("linear", 2.6),
    ("cat", 1.6),
    ("clone", 1.5),
    ("_to_copy", 1.6),
    ("index", 3.2),
    ("nonzero", 4.8),
    ("sort", 6.0),
    ("topk", 4.8),
    ("cumsum", 2.0),
    ("sum", 1.5),
    ("mean", 1.5),
    ("pool", 2.0),
];
const USUAL_CALL: f64 = 0.9;
/// Python and autograd around a call in a forward pass, views included.
pub(super) const FORWARD: f64 = 1.3;
/// The engine around a call in a backward pass.
pub(super) const BACKWARD: f64 = 0.9;
/// A call of a module.
pub(super) const MODULE: f64 = 1.4;
/// A step beside all that: clearing gradients, handing out the loss, waiting for the device.
pub(super) const STEP: f64 = 140.0;
/// What an optimizer does in Python for each parameter: `AdamW` over 200 of them takes 2.1 for each more than its kernels.
pub(super) const PARAMETER: f64 = 2.0;
/// The same if a fused kernel steps them all: 0.63 with what `LISTED` has of it.
pub(super) const FUSED_PARAMETER: f64 = 0.4;
/// A call over a list of tensors, for each of them.
const LISTED: f64 = 0.045;
/// What a checkpointed block costs in either pass, beside its calls: random numbers are put by and back, hooks set.
/// This and what follows are from chains of 4 to 64 operators and from a small block of a transformer on a GPU
/// (`gpu/fit_times.py`), since a backward pass runs in a thread of its own there.
pub(super) const BLOCK: f64 = 45.0;
/// What each call within a checkpointed block costs more in the first pass: hooks for what autograd saves.
pub(super) const HOOKED: f64 = 2.1;
/// The same in the second pass, which keeps what it finds until the backward pass asks for it, through hooks again. In
/// a chain of products it is 4.7, in a block as models have them 11.
pub(super) const HOOKED_AGAIN: f64 = 11.0;
/// What each call within a selectively checkpointed block costs more in the first pass, in which it goes through Python
/// twice: 3 for one that is not kept and 6.7 for one that is, and 2 for each of the views that come with it.
pub(super) const DISPATCHED: f64 = 10.0;
/// The same in the second pass for a call that is made again.
pub(super) const DISPATCHED_AGAIN: f64 = 18.0;
/// A call in the second pass whose result was kept, and is looked up.
pub(super) const STORED: f64 = 4.0;
/// A product of groups of rows that goes group by group, beside what it is otherwise: for eight or so of them.
pub(super) const GROUPS: f64 = 30.0;
/// Waiting for the device to hand out a number.
pub(super) const WAIT: f64 = 1.5;

/// What the calls of each operator cost.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// By operator.
    calls: Vec<f64>,
    lists: Vec<bool>,
    waits: Vec<bool>,
}

impl Host {
    pub(super) fn new(trace: &Trace) -> Self {
        let call =
            |op: &String| CALLS.iter().find(|(part, _)| op.contains(part)).map_or(USUAL_CALL, |&(_, units)| units);
        let waits = |op: &String| {
            ["_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "_unique"]
                .iter()
                .any(|part| op.contains(part))
        };
        Self {
            calls: trace.ops.iter().map(call).collect(),
            lists: trace.ops.iter().map(|op| op.contains("_foreach") || op.contains("_fused_")).collect(),
            waits: trace.ops.iter().map(waits).collect(),
        }
    }

    /// A call of operator `op` with so many inputs, in units.
    pub(super) fn call(&self, op: u32, inputs: usize) -> f64 {
        let op = op as usize;
        if self.lists.get(op).copied().unwrap_or(false) {
            return USUAL_CALL + LISTED * inputs as f64;
        }
        self.calls.get(op).copied().unwrap_or(USUAL_CALL)
    }

    /// Whether the program waits for what the device computed before.
    pub(super) fn waits(&self, op: u32) -> bool {
        self.waits.get(op as usize).copied().unwrap_or(false)
    }
}
