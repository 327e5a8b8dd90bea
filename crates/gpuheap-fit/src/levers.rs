//! What can be changed about a training program to take less memory: one file a lever.
//!
//! Each lever says what it needs, what it excludes, and turns a program into another one. A lever whose effect on the
//! events cannot be worked out from a trace (autocast, other types of parameters, compilation) is traced anew with the
//! lever applied.

pub mod accumulate;
pub mod checkpoint;
mod code;
mod edit;
pub mod loss;
pub mod optimizer;
mod parse;
pub mod shard;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use code::code;
pub(crate) use edit::Edits;
pub use parse::ParseLeverError;

/// A change, as the planner, `plan.apply` and the command line write it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "lever", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Lever {
    /// Smaller batches, whose gradients add up to the same step.
    Accumulate {
        /// Parts of a batch.
        factor: u32,
    },
    /// Settings of the allocator.
    Allocator {
        /// As in `PYTORCH_CUDA_ALLOC_CONF`.
        conf: String,
    },
    /// Products in a smaller type of number.
    Autocast {
        /// `bfloat16` or `float16`.
        dtype: String,
    },
    /// Parameters in a smaller type of number.
    Parameters {
        /// The type.
        dtype: String,
    },
    /// Another way to do the optimizer's step.
    Optimizer {
        /// Which.
        form: OptimizerForm,
    },
    /// State of the optimizer in a smaller type of number.
    OptimizerState {
        /// The type.
        dtype: String,
    },
    /// State of the optimizer on the host.
    OffloadOptimizer {},
    /// The loss in parts, so that the scores of all words are never there at once.
    Loss {
        /// `chunked`.
        form: String,
        /// Parts.
        chunks: u32,
        /// The layer that makes the scores, where its name is not the usual one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        module: Option<String>,
    },
    /// Activations of blocks are made again for the backward pass.
    Checkpoint {
        /// The blocks.
        modules: Vec<String>,
    },
    /// The same, but results of some operators are kept.
    SelectiveCheckpoint {
        /// The blocks.
        modules: Vec<String>,
        /// The operators.
        keep: Vec<String>,
    },
    /// Activations of blocks wait on the host.
    OffloadActivations {
        /// The blocks.
        modules: Vec<String>,
    },
    /// `torch.compile` with a bound on what is kept.
    Compile {
        /// The part of the activations that may be kept.
        activation_memory_budget: f64,
    },
    /// Several devices.
    Shard {
        /// How.
        form: ShardForm,
        /// How many.
        gpus: u32,
        /// For a pipeline: the first module of each stage.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        stages: Vec<String>,
        /// For a pipeline: the parts of a batch that are under way; unset leaves it to `plan.apply`, which takes two for
        /// each stage.
        #[serde(default, rename = "microbatches", skip_serializing_if = "Option::is_none")]
        micro_batches: Option<u32>,
    },
    /// Weights in few bits.
    Quantize {
        /// `int8` or `int4`.
        dtype: String,
        /// Only those that are not trained.
        #[serde(default)]
        frozen_only: bool,
    },
    /// Weights left out.
    Prune {
        /// The part of them.
        amount: f64,
    },
    /// Two of four weights left out.
    Sparse24 {},
    /// Evaluation without a graph.
    InferenceMode {},
    /// Memory past the budget lies on the host.
    Spill {
        /// Bytes.
        bytes: u64,
    },
}

/// How the optimizer's step is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerForm {
    /// All parameters at once, with temporaries of their size.
    Foreach,
    /// One parameter after another.
    ForLoop,
    /// One kernel, without temporaries.
    Fused,
    /// Each parameter as soon as its gradient is there.
    InBackward,
    /// State in 8 bits.
    #[serde(rename = "8bit")]
    EightBit,
    /// State in 4 bits.
    #[serde(rename = "4bit")]
    FourBit,
}

/// How work is spread over devices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardForm {
    /// A copy of the model on each.
    Data,
    /// A part of every parameter on each (`fully_shard`).
    Fsdp2,
    /// A part of every matrix product on each.
    Tensor,
    /// Some layers on each.
    Pipeline,
}

impl Lever {
    /// Its name, as in JSON.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Accumulate { .. } => "accumulate",
            Self::Allocator { .. } => "allocator",
            Self::Autocast { .. } => "autocast",
            Self::Parameters { .. } => "parameters",
            Self::Optimizer { .. } => "optimizer",
            Self::OptimizerState { .. } => "optimizer_state",
            Self::OffloadOptimizer { .. } => "offload_optimizer",
            Self::Loss { .. } => "loss",
            Self::Checkpoint { .. } => "checkpoint",
            Self::SelectiveCheckpoint { .. } => "selective_checkpoint",
            Self::OffloadActivations { .. } => "offload_activations",
            Self::Compile { .. } => "compile",
            Self::Shard { .. } => "shard",
            Self::Quantize { .. } => "quantize",
            Self::Prune { .. } => "prune",
            Self::Sparse24 { .. } => "sparse24",
            Self::InferenceMode { .. } => "inference_mode",
            Self::Spill { .. } => "spill",
        }
    }

    /// Whether it is about blocks, each of which has one of its kind.
    #[must_use]
    pub fn is_about_blocks(&self) -> bool {
        matches!(self, Self::Checkpoint { .. } | Self::SelectiveCheckpoint { .. } | Self::OffloadActivations { .. })
    }

    /// Whether its effect is found by tracing the model anew, with the lever applied.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        matches!(
            self,
            Self::Autocast { .. }
                | Self::Parameters { .. }
                | Self::Compile { .. }
                | Self::Quantize { .. }
                | Self::Prune { .. }
                | Self::Sparse24 { .. }
                | Self::InferenceMode { .. }
                | Self::Shard { form: ShardForm::Tensor | ShardForm::Pipeline, .. }
        )
    }

    /// What it is in a few words, for a table.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Accumulate { factor } => format!("{factor} micro-batches a step"),
            Self::Allocator { conf } => conf.clone(),
            Self::Autocast { dtype } => format!("autocast to {dtype}"),
            Self::Parameters { dtype } => format!("parameters in {dtype}"),
            Self::Optimizer { form } => match form {
                OptimizerForm::Foreach => "optimizer over lists (foreach)".to_owned(),
                OptimizerForm::ForLoop => "optimizer with foreach=False".to_owned(),
                OptimizerForm::Fused => "fused optimizer".to_owned(),
                OptimizerForm::InBackward => "optimizer step within backward".to_owned(),
                OptimizerForm::EightBit => "optimizer state in 8 bits".to_owned(),
                OptimizerForm::FourBit => "optimizer state in 4 bits".to_owned(),
            },
            Self::OptimizerState { dtype } => format!("optimizer state in {dtype}"),
            Self::OffloadOptimizer {} => "optimizer state on the host".to_owned(),
            Self::Loss { chunks, .. } => format!("loss in {chunks} chunks"),
            Self::Checkpoint { modules } => format!("checkpoint {}", group(modules)),
            Self::SelectiveCheckpoint { modules, .. } => format!("checkpoint all but products of {}", group(modules)),
            Self::OffloadActivations { modules } => format!("activations on the host for {}", group(modules)),
            Self::Compile { activation_memory_budget } => {
                format!("torch.compile, activation_memory_budget {activation_memory_budget}")
            }
            Self::Shard { form, gpus, .. } => {
                let form = match form {
                    ShardForm::Data => "data parallel",
                    ShardForm::Fsdp2 => "FSDP2",
                    ShardForm::Tensor => "tensor parallel",
                    ShardForm::Pipeline => "pipeline",
                };
                format!("{form} over {gpus} GPUs")
            }
            Self::Quantize { dtype, frozen_only } => {
                format!("{} in {dtype}", if *frozen_only { "frozen weights" } else { "weights" })
            }
            Self::Prune { amount } => format!("prune {:.0} % of the weights", amount * 100.0),
            Self::Sparse24 {} => "2:4 sparse weights".to_owned(),
            Self::InferenceMode {} => "inference mode".to_owned(),
            Self::Spill { bytes } => format!("spill {} to the host", gpuheap_record::Bytes::new(*bytes)),
        }
    }
}

/// Names of modules, with runs of numbers together: `encoder.layer.[0-5,8]`.
#[must_use]
pub fn group(modules: &[String]) -> String {
    let mut groups: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut texts: Vec<String> = Vec::new();
    for name in modules {
        let (front, last) = name.rsplit_once('.').unwrap_or(("", name));
        match last.parse() {
            Ok(number) => groups.entry(front).or_default().push(number),
            Err(_) => texts.push(name.clone()),
        }
    }
    for (front, mut numbers) in groups {
        numbers.sort_unstable();
        let dot = if front.is_empty() { "" } else { "." };
        let several = numbers.len() > 1;
        let numbers = runs(numbers);
        texts.push(if several { format!("{front}{dot}[{numbers}]") } else { format!("{front}{dot}{numbers}") });
    }
    texts.join(", ")
}

/// Numbers that rise, those in a row together: `0-5,8`.
pub(crate) fn runs(numbers: impl IntoIterator<Item = u64>) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(number) => *end = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(start, end): (u64, u64)| if start == end { start.to_string() } else { format!("{start}-{end}") };
    runs.into_iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levers_are_written_as_the_contract_says() {
        for text in [
            r#"{"lever":"accumulate","factor":4}"#,
            r#"{"lever":"optimizer","form":"8bit"}"#,
            r#"{"lever":"optimizer","form":"in_backward"}"#,
            r#"{"lever":"offload_optimizer"}"#,
            r#"{"lever":"loss","form":"chunked","chunks":8}"#,
            r#"{"lever":"checkpoint","modules":["bert.encoder.layer.0"]}"#,
            r#"{"lever":"shard","form":"fsdp2","gpus":2}"#,
            r#"{"lever":"spill","bytes":7}"#,
        ] {
            let lever: Lever = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&lever).unwrap(), text);
            assert!(text.contains(lever.name()));
        }
    }

    #[test]
    fn runs_of_blocks_are_told_in_short() {
        let names: Vec<String> = [0, 1, 2, 5, 7, 8].iter().map(|number| format!("layer.{number}")).collect();
        assert_eq!(group(&names), "layer.[0-2,5,7-8]");
        assert_eq!(group(&["head".to_owned(), "3".to_owned()]), "head, 3");
    }
}
