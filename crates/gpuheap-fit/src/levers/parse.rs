//! Levers as people write them on a command line.

use std::str::FromStr;

use super::Lever;
use crate::json::message;

/// A text that is no lever.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{text}` is no lever: {why}")]
pub struct ParseLeverError {
    text: String,
    why: String,
}

impl FromStr for Lever {
    type Err = ParseLeverError;

    /// `name=value`, or the lever as JSON.
    fn from_str(text: &str) -> Result<Self, ParseLeverError> {
        let failed = |why: &str| ParseLeverError { text: text.to_owned(), why: why.to_owned() };
        if text.trim_start().starts_with('{') {
            return serde_json::from_str(text).map_err(|error| failed(&message(&error)));
        }
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let number = |what: &str| value.parse::<u32>().ok().filter(|&n| n > 0).ok_or_else(|| failed(what));
        let part =
            |what: &str| value.parse::<f64>().ok().filter(|n| (0.0..=1.0).contains(n)).ok_or_else(|| failed(what));
        let given = |what: &str| if value.is_empty() { Err(failed(what)) } else { Ok(value.to_owned()) };
        let modules = || -> Result<Vec<String>, ParseLeverError> {
            let list = given("write the names of blocks, or `all`")?;
            Ok(list.split(',').map(|name| name.trim().to_owned()).collect())
        };
        let tagged =
            |fields: serde_json::Value| serde_json::from_value(fields).map_err(|error| failed(&message(&error)));
        Ok(match name {
            "accumulate" => Self::Accumulate { factor: number("write a number of parts, such as `accumulate=4`")? },
            "allocator" => {
                Self::Allocator { conf: given("write settings, such as `allocator=expandable_segments:True`")? }
            }
            "autocast" => Self::Autocast { dtype: given("write `autocast=bfloat16`")? },
            "parameters" => Self::Parameters { dtype: given("write `parameters=bfloat16`")? },
            "optimizer" => tagged(serde_json::json!({"lever": "optimizer", "form": value}))?,
            "optimizer_state" => Self::OptimizerState { dtype: given("write `optimizer_state=bfloat16`")? },
            "offload_optimizer" => Self::OffloadOptimizer {},
            "loss" => Self::Loss {
                form: "chunked".to_owned(),
                chunks: if value.is_empty() { 8 } else { number("write a number of chunks, such as `loss=8`")? },
                module: None,
            },
            "checkpoint" => Self::Checkpoint { modules: modules()? },
            "selective_checkpoint" => Self::SelectiveCheckpoint { modules: modules()?, keep: Vec::new() },
            "offload_activations" => Self::OffloadActivations { modules: modules()? },
            "compile" => Self::Compile { activation_memory_budget: part("write a part, such as `compile=0.5`")? },
            "prune" => Self::Prune { amount: part("write a part, such as `prune=0.5`")? },
            "sparse24" => Self::Sparse24 {},
            "inference_mode" => Self::InferenceMode {},
            "quantize" => Self::Quantize { dtype: given("write `quantize=int8`")?, frozen_only: true },
            _ => {
                return Err(failed(
                    "known are accumulate, allocator, autocast, parameters, optimizer, optimizer_state, \
                     offload_optimizer, loss, checkpoint, selective_checkpoint, offload_activations, compile, quantize, \
                     prune, sparse24 and inference_mode",
                ));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levers::OptimizerForm;

    #[test]
    fn levers_are_read_in_short_and_as_json() {
        let read = |text: &str| text.parse::<Lever>();
        assert_eq!(read("accumulate=4"), Ok(Lever::Accumulate { factor: 4 }));
        assert_eq!(read("optimizer=8bit"), Ok(Lever::Optimizer { form: OptimizerForm::EightBit }));
        assert_eq!(read(r#"{"lever":"accumulate","factor":4}"#), Ok(Lever::Accumulate { factor: 4 }));
        assert_eq!(
            read("checkpoint=a.0,a.1"),
            Ok(Lever::Checkpoint { modules: vec!["a.0".to_owned(), "a.1".to_owned()] })
        );
        for bad in ["", "accumulate", "accumulate=0", "optimizer=fast", "compile=2", "checkpoint", "{}"] {
            assert!(read(bad).unwrap_err().to_string().contains("is no lever"), "{bad}");
        }
    }
}
