//! The answer, as data.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::SCHEMA;
use super::options::{MOST_BYTES, MOST_GPUS, MOST_SAMPLES};
use crate::error::Error;
use crate::holders::Holder;
use crate::json::JsonError;
use crate::levers::Lever;
use crate::timeline::Timelines;
use crate::trace::{Phase, Source, Unknown};

/// Whether it fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// With the plan, which may be empty.
    Fits,
    /// With the plan, if what is left over lies on the host.
    FitsWithSpill,
    /// Not with any plan.
    DoesNotFit,
}

/// What a peak is worked out from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// A trace of the program as it is said to run: as it is, or with the plan applied.
    #[default]
    Trace,
    /// A trace without the plan, and rules of what its levers do.
    Rules,
}

/// A peak of memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Peak {
    /// The most allocated bytes, as PyTorch counts them.
    pub allocated_bytes: u64,
    /// The most reserved bytes.
    pub reserved_bytes: u64,
    /// With the context and the libraries: what the device has to have.
    pub device_bytes: u64,
    /// The least that it may turn out to be.
    pub low: u64,
    /// The most that it may turn out to be.
    pub high: u64,
    /// The phase of the most allocated bytes.
    pub phase: Phase,
    /// The step of it.
    pub step: u32,
    /// The module that was at work, empty outside of all.
    pub module: String,
    /// The event, in the program with the plan.
    pub event: usize,
    /// Who holds it then, largest first.
    pub holders: Vec<Holder>,
    /// The time of a step, in microseconds.
    pub step_us: f64,
}

/// The most of one phase.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PhaseReport {
    /// The step.
    pub step: u32,
    /// The phase.
    pub phase: Phase,
    /// The most allocated bytes.
    pub allocated_bytes: u64,
    /// The most reserved bytes.
    pub reserved_bytes: u64,
}

/// A lever of a plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PlannedLever {
    /// The lever.
    #[serde(flatten)]
    pub lever: Lever,
    /// Bytes of the reserved peak that it saves: how much more the plan would take without it, both by rules. Levers of a
    /// plan do in part the same, so that these do not add up to what all of them save.
    pub saves_bytes: i64,
    /// Microseconds that it costs a step; negative where it is faster.
    pub costs_us: f64,
    /// What it is, in a few words.
    pub what: String,
    /// Why it is in the plan.
    pub why: String,
    /// The code that turns it on.
    pub code: String,
}

/// A point of time against memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FrontPoint {
    /// The smallest budget in bytes that has this plan.
    pub budget_bytes: u64,
    /// Its step, in microseconds.
    pub step_us: f64,
    /// Its levers.
    pub plan: Vec<Lever>,
}

/// How good the plan is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Optimality {
    /// `optimal` or `bounded`.
    pub kind: String,
    /// Over what.
    pub over: String,
}

/// The batch of a fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FitBatch {
    /// Samples a step.
    pub size: u64,
}

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fit {
    /// [`SCHEMA`](crate::SCHEMA).
    pub schema: String,
    /// Where the trace is from.
    pub source: Source,
    /// The batch.
    pub batch: FitBatch,
    /// The device.
    pub device: String,
    /// How many of them.
    pub gpus: u32,
    /// Whether it fits.
    pub verdict: Verdict,
    /// The budget of one device, in bytes.
    pub budget_bytes: u64,
    /// What the context and the libraries take of it.
    pub context_bytes: u64,
    /// The most that this may come to.
    #[serde(default)]
    pub context_most_bytes: u64,
    /// The settings of the allocator that were given; a plan may have others.
    pub conf: String,
    /// The model as it is.
    pub baseline: Peak,
    /// The model with the plan.
    pub peak: Peak,
    /// What that peak is worked out from.
    #[serde(default)]
    pub peak_from: Basis,
    /// Its phases.
    pub phases: Vec<PhaseReport>,
    /// The plan; empty where it fits as it is.
    pub plan: Vec<PlannedLever>,
    /// The time of a step with the plan, in microseconds.
    pub step_us: f64,
    /// How good the plan is.
    pub optimality: Optimality,
    /// The smallest budget that some plan keeps to, in bytes.
    pub smallest_budget_bytes: Option<u64>,
    /// Time against memory, from the most memory to the least.
    pub front: Vec<FrontPoint>,
    /// What could not be traced.
    pub unknown: Vec<Unknown>,
    /// What else the reader should know.
    pub notes: Vec<String>,
    /// Memory through time, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timelines: Option<Timelines>,
}

impl Fit {
    /// Reads a fit that was written as JSON; `path` is what errors call it.
    pub fn from_json(text: &[u8], path: &Path) -> Result<Self, Error> {
        let failed = |cause: JsonError| Error::Plan { path: path.to_owned(), cause };
        let fit: Self = serde_json::from_slice(text).map_err(|error| failed(error.into()))?;
        if fit.schema != SCHEMA {
            let why = format!("its schema is `{}`, and this version reads `{SCHEMA}`", fit.schema);
            return Err(failed(JsonError::said(why)));
        }
        // Whoever plans anew with these is to get an answer.
        for (name, value, most) in [
            ("gpus", u64::from(fit.gpus), MOST_GPUS),
            ("batch.size", fit.batch.size, MOST_SAMPLES),
            ("budget_bytes", fit.budget_bytes, MOST_BYTES),
        ] {
            if value > most {
                return Err(failed(JsonError::said(format!("`{name}` is {value}, and {most} is the most"))));
            }
        }
        Ok(fit)
    }
}
