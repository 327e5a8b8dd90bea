//! What a model does in two training steps: modules, storages, and events in order.

mod check;
mod read;
mod wire;

use serde::{Deserialize, Serialize};

pub(crate) use check::MOST_IN_ALL;
pub use read::{parse, read};

/// What a trace says it is.
pub const SCHEMA: &str = "gpuheap.fit.trace/1";

/// No module: work outside of all of them.
pub const NO_MODULE: u32 = u32::MAX;

/// Where a trace comes from.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Source {
    /// The function that made the model, such as `train.py:make`.
    pub make: String,
    /// The version of PyTorch.
    pub torch: String,
    /// The version of Python.
    pub python: String,
    /// How it was traced: `fake-cuda` or `fake-cpu`.
    pub how: String,
    /// What the tracer has to say.
    pub notes: Vec<String>,
}

/// One tensor of a batch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Leaf {
    /// Its name.
    pub name: String,
    /// Its sizes.
    pub shape: Vec<u64>,
    /// The type of its numbers.
    pub dtype: String,
}

/// The batch that was traced.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Batch {
    /// Samples.
    pub size: u64,
    /// Other sizes that can vary, by name.
    pub dims: std::collections::BTreeMap<String, u64>,
    /// Its tensors.
    pub leaves: Vec<Leaf>,
}

/// The model, in figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Model {
    /// Parameters.
    pub parameters: u64,
    /// Their bytes.
    pub parameter_bytes: u64,
    /// Bytes of those that are trained.
    pub trainable_bytes: u64,
    /// Bytes of buffers.
    pub buffers_bytes: u64,
}

/// The optimizer.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Optimizer {
    /// Its class, such as `AdamW`.
    pub class: String,
    /// Whether it works on lists of tensors at once; unset leaves it to PyTorch, which does so on CUDA.
    pub foreach: Option<bool>,
    /// Whether one kernel does it all.
    pub fused: Option<bool>,
    /// Whether it can be captured in a graph.
    pub capturable: Option<bool>,
    /// Bytes of state for one parameter.
    pub state_per_parameter_bytes: f64,
}

/// A module of the model.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Module {
    /// Its name in the model, such as `bert.encoder.layer.0`; empty for the model itself.
    pub name: String,
    /// Its class.
    pub class: String,
    /// The module that it is part of, or [`NO_MODULE`].
    pub parent: u32,
}

/// What a storage is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Weights.
    Parameter,
    /// Buffers of modules.
    Buffer,
    /// Gradients of parameters.
    Gradient,
    /// What the optimizer keeps.
    Optimizer,
    /// What the forward pass makes.
    Activation,
    /// What is dropped soon.
    Temporary,
    /// Batches.
    Input,
    /// Losses.
    Loss,
    /// Scratch memory of kernels and libraries.
    Workspace,
    /// What nobody classed.
    Unknown,
}

impl Class {
    /// Its name, in the singular.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Buffer => "buffer",
            Self::Gradient => "gradient",
            Self::Optimizer => "optimizer",
            Self::Activation => "activation",
            Self::Temporary => "temporary",
            Self::Input => "input",
            Self::Loss => "loss",
            Self::Workspace => "workspace",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it stays from step to step.
    #[must_use]
    pub fn is_lasting(self) -> bool {
        matches!(self, Self::Parameter | Self::Buffer | Self::Optimizer)
    }
}

/// Memory of one tensor and its views.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Storage {
    /// What the allocator is asked for, before it rounds.
    pub bytes: u64,
    /// What it is for.
    pub class: Class,
    /// The module that made it, or [`NO_MODULE`].
    pub module: u32,
    /// The type of its numbers, as an index into [`Trace::dtypes`].
    pub dtype: u32,
    /// The name of the parameter that it belongs to, or empty.
    pub name: Box<str>,
    /// The stream that it was asked for on: memory of one serves no other. 0 is the default stream.
    pub stream: u16,
}

/// What a program is doing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The model is built and moved to the device.
    Setup,
    /// A batch is made.
    Load,
    /// Gradients are dropped or cleared.
    ZeroGrad,
    /// Forward pass.
    Forward,
    /// The loss.
    Loss,
    /// Backward pass.
    Backward,
    /// The optimizer's step.
    Optimizer,
    /// Evaluation.
    Evaluation,
    /// Generation.
    Generation,
    /// A checkpoint is saved.
    Saving,
    /// Anything else.
    Other,
}

impl Phase {
    /// Its name in a trace.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Load => "load",
            Self::ZeroGrad => "zero_grad",
            Self::Forward => "forward",
            Self::Loss => "loss",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
            Self::Evaluation => "evaluation",
            Self::Generation => "generation",
            Self::Saving => "saving",
            Self::Other => "other",
        }
    }

    fn parse(name: &str) -> Self {
        const ALL: [Phase; 10] = [
            Phase::Setup,
            Phase::Load,
            Phase::ZeroGrad,
            Phase::Forward,
            Phase::Loss,
            Phase::Backward,
            Phase::Optimizer,
            Phase::Evaluation,
            Phase::Generation,
            Phase::Saving,
        ];
        ALL.into_iter().find(|phase| phase.name() == name).unwrap_or(Self::Other)
    }
}

/// For which pass a module is entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Forward.
    Forward,
    /// Backward.
    Backward,
    /// Forward once more, within backward.
    Recompute,
}

/// One thing that happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Another phase begins.
    Phase(Phase),
    /// A step begins.
    Step(u32),
    /// A module is entered.
    Enter(u32, Pass),
    /// A module is left.
    Leave(u32, Pass),
    /// A storage is made.
    Alloc(u32),
    /// A storage is dropped.
    Free(u32),
    /// An operator has run: an index into [`Trace::calls`].
    Op(u32),
    /// Autograd keeps a storage for the backward pass.
    Saved(u32),
    /// An event of the device is recorded on a stream, behind all that was asked for on it: the event, the stream.
    Record(u32, u16),
    /// What is asked for next on a stream comes after an event: the stream, the event.
    Wait(u16, u32),
    /// Operators that follow are run so many times. Levers write it, traces have none.
    Repeat(u32),
    /// Work that no operator of the trace does: an index into [`Program::works`](crate::Program). Levers write it, traces
    /// have none.
    Work(u32),
}

/// One call of an operator.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Call {
    /// Which operator: an index into [`Trace::ops`].
    pub op: u32,
    /// The module whose code called it, or [`NO_MODULE`].
    pub module: u32,
    /// 0 the program's thread, 1 autograd's.
    pub thread: u8,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Its inputs and then its outputs, as a range of [`Trace::arguments`].
    pub inputs: (u32, u32),
    /// See `inputs`.
    pub outputs: (u32, u32),
    /// The stream that it runs on.
    pub stream: u16,
}

/// Something that the tracer could not follow.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Unknown {
    /// What it is.
    pub what: String,
    /// Where it is.
    #[serde(rename = "where")]
    pub place: String,
    /// The most bytes that it can take, if that is known.
    pub bound_bytes: Option<u64>,
}

/// A trace that holds together: every id is in range, nothing is freed that is not alive.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// Where it comes from.
    pub source: Source,
    /// Levers that were applied before it was traced.
    pub applied: Vec<crate::Lever>,
    /// The batch.
    pub batch: Batch,
    /// The model.
    pub model: Model,
    /// The optimizer, if there is one.
    pub optimizer: Option<Optimizer>,
    /// Modules; a parent comes before its parts.
    pub modules: Vec<Module>,
    /// Names of operators.
    pub ops: Vec<String>,
    /// Names of types of numbers.
    pub dtypes: Vec<String>,
    /// Storages.
    pub storages: Vec<Storage>,
    /// Calls of operators.
    pub calls: Vec<Call>,
    /// Storages that calls read and write, see [`Call::inputs`].
    pub arguments: Vec<u32>,
    /// What happens, in order.
    pub events: Vec<Event>,
    /// What could not be traced.
    pub unknown: Vec<Unknown>,
    /// Parts of a batch that the stages of a pipeline work on one after the other; 1 for all other programs.
    pub micro_batches: u32,
    /// The other ranks of a program over several devices, where they differ: the later stages of a pipeline.
    pub ranks: Vec<Trace>,
}

impl Trace {
    /// How the program was spread over devices before it was traced, and over how many.
    #[must_use]
    pub fn sharded(&self) -> Option<(crate::levers::ShardForm, u32)> {
        self.applied.iter().find_map(|lever| match lever {
            crate::Lever::Shard { form, gpus, .. } => Some((*form, *gpus)),
            _ => None,
        })
    }

    /// The storages that a call reads.
    #[must_use]
    pub fn inputs(&self, call: &Call) -> &[u32] {
        self.arguments.get(call.inputs.0 as usize..call.inputs.1 as usize).unwrap_or_default()
    }

    /// The storages that a call returns.
    #[must_use]
    pub fn outputs(&self, call: &Call) -> &[u32] {
        self.arguments.get(call.outputs.0 as usize..call.outputs.1 as usize).unwrap_or_default()
    }

    /// The name of the operator of a call.
    #[must_use]
    pub fn op_name(&self, call: &Call) -> &str {
        self.ops.get(call.op as usize).map_or("", String::as_str)
    }

    /// The name of a module; empty for none and for the model itself.
    #[must_use]
    pub fn module_name(&self, module: u32) -> &str {
        self.modules.get(module as usize).map_or("", |module| module.name.as_str())
    }

    /// Whether `module` is `ancestor` or part of it.
    #[must_use]
    pub fn is_within(&self, module: u32, ancestor: u32) -> bool {
        let mut at = module;
        while let Some(found) = self.modules.get(at as usize) {
            if at == ancestor {
                return true;
            }
            at = found.parent;
        }
        false
    }
}
