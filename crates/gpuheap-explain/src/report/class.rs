//! What a block is for.

use serde::Serialize;

/// What a block is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Weights and buffers of modules.
    Parameters,
    /// Gradients of parameters.
    Gradients,
    /// What the optimizer keeps from step to step.
    OptimizerState,
    /// What the forward pass saves for the backward pass.
    Activations,
    /// Batches and other data.
    Inputs,
    /// Short-lived intermediate results.
    Temporaries,
    /// Buffers of collective communication.
    Communication,
    /// Keys and values of generated tokens.
    Cache,
    /// Work space of libraries such as cuBLAS.
    Workspace,
    /// Nothing in the recording tells.
    Unknown,
    /// Not a use: the part of blocks that is more than what was asked for.
    Rounding,
}

impl Class {
    /// All classes, in the order in which they are listed.
    pub const ALL: [Self; 11] = [
        Self::Parameters,
        Self::Gradients,
        Self::OptimizerState,
        Self::Activations,
        Self::Inputs,
        Self::Temporaries,
        Self::Communication,
        Self::Cache,
        Self::Workspace,
        Self::Unknown,
        Self::Rounding,
    ];

    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer_state",
            Self::Activations => "activations",
            Self::Inputs => "inputs",
            Self::Temporaries => "temporaries",
            Self::Communication => "communication",
            Self::Cache => "cache",
            Self::Workspace => "workspace",
            Self::Unknown => "unknown",
            Self::Rounding => "rounding",
        }
    }

    /// The name in text.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::OptimizerState => "optimizer state",
            Self::Cache => "cache (KV)",
            Self::Workspace => "library workspace",
            other => other.name(),
        }
    }
}
