//! What a search starts from: traces of the model at each size of micro-batch, and what limits it.

use crate::blocks::{Uses, blocks};
use crate::error::Error;
use crate::levers::{Lever, ShardForm};
use crate::program::Program;
use crate::scale::Family;
use crate::trace::Trace;

/// Names of all levers.
const NAMES: [&str; 18] = [
    "accumulate",
    "allocator",
    "autocast",
    "parameters",
    "optimizer",
    "optimizer_state",
    "offload_optimizer",
    "loss",
    "checkpoint",
    "selective_checkpoint",
    "offload_activations",
    "compile",
    "shard",
    "quantize",
    "prune",
    "sparse24",
    "inference_mode",
    "spill",
];
/// What changes results, and is tried only where it is allowed.
const ALLOWED: [&str; 6] = ["autocast", "parameters", "optimizer_state", "8bit", "4bit", "accumulate"];
/// Micro-batches that are tried.
const FACTORS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// A model traced with some levers already applied.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The levers.
    pub levers: Vec<Lever>,
    /// The traces.
    pub family: Family,
    /// Those of the other ranks, where they differ: the later stages of a pipeline.
    pub ranks: Vec<Family>,
}

impl Variant {
    /// Traces of one model with the same levers, at different sizes of batches.
    pub fn new(mut traces: Vec<Trace>) -> Result<Self, Error> {
        let levers = traces.first().map(|trace| trace.applied.clone()).unwrap_or_default();
        let count = traces.iter().map(|trace| trace.ranks.len()).min().unwrap_or(0);
        let mut others: Vec<Vec<Trace>> = vec![Vec::new(); count];
        for trace in &mut traces {
            for (rank, other) in others.iter_mut().zip(std::mem::take(&mut trace.ranks)) {
                rank.push(other);
            }
        }
        let ranks = others.into_iter().map(Family::new).collect::<Result<_, _>>()?;
        Ok(Self { levers, family: Family::new(traces)?, ranks })
    }

    /// The blocks of the model, as levers name them.
    #[must_use]
    pub fn block_names(&self) -> Vec<String> {
        let Some(trace) = self.family.largest() else { return Vec::new() };
        let program = Program::new(trace);
        let uses = Uses::new(&program);
        blocks(&program, &uses).iter().map(|block| trace.module_name(block.module).to_owned()).collect()
    }

    /// How the program is spread over devices in these traces, if it is.
    #[must_use]
    pub fn form(&self) -> Option<ShardForm> {
        shard_in(&self.levers)
    }
}

/// How levers spread a program over devices, if they do.
pub(super) fn shard_in(levers: &[Lever]) -> Option<ShardForm> {
    levers.iter().find_map(super::asked::shard_of)
}

/// What limits the search.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Settings of the allocator that are given, if they are.
    pub conf: Option<String>,
    /// Devices.
    pub gpus: u32,
    /// The batch size; none for the one that was traced.
    pub batch: Option<u64>,
    /// Levers that the plan must have.
    pub set: Vec<Lever>,
    /// Names of levers that the plan may not have.
    pub without: Vec<String>,
    /// Names of levers that it may have although they change results.
    pub allow: Vec<String>,
    /// `CUBLAS_WORKSPACE_CONFIG`.
    pub workspace: Option<String>,
}

/// A trace at the size of one micro-batch.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) levers: Vec<Lever>,
    pub(super) factor: u32,
    pub(super) trace: Trace,
    /// Those of the other ranks, where they differ.
    pub(super) others: Vec<Trace>,
    /// Only here to compare with: the plan must have other levers.
    pub(super) is_base: bool,
}

impl Limits {
    /// Whether they contradict each other, or name what there is not.
    pub(super) fn check(&self) -> Result<(), Error> {
        let failed = |lever: &str, why: String| Err(Error::Lever { lever: lever.to_owned(), why });
        if let Some(name) = self.without.iter().find(|name| *name != "all" && !NAMES.contains(&name.as_str())) {
            return failed(name, format!("there is none of this name; known are {}", NAMES.join(", ")));
        }
        if let Some(name) = self.allow.iter().find(|name| !ALLOWED.contains(&name.as_str())) {
            return failed(name, format!("only these need to be allowed: {}", ALLOWED.join(", ")));
        }
        let gpus = self.gpus.max(1);
        for (at, lever) in self.set.iter().enumerate() {
            let name = lever.name();
            if self.without.iter().any(|without| without == name) {
                return failed(name, "the plan must have it, and may not have it".to_owned());
            }
            let other = |other: &Lever| other.name() == name && other != lever;
            if !lever.is_about_blocks() && self.set[..at].iter().any(other) {
                return failed(name, "it is given twice, and not as the same".to_owned());
            }
            match lever {
                Lever::Spill { .. } => {
                    return failed(name, "how much lies on the host follows from the budget".to_owned());
                }
                Lever::Shard { gpus: over, .. } if *over != gpus => {
                    return failed(name, format!("it is over {over} devices, and the plan is for {gpus}"));
                }
                Lever::Allocator { conf } if self.conf.as_ref().is_some_and(|given| given != conf) => {
                    return failed(name, "other settings of the allocator are given as well".to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn forbids(&self, name: &str) -> bool {
        self.without.iter().any(|without| without == name || without == "all")
    }

    pub(crate) fn allows(&self, name: &str) -> bool {
        self.allow.iter().any(|allow| allow == name) && !self.forbids(name)
    }
}

/// Whether samples of a batch have to do with each other: then parts of a batch give other results.
pub(crate) fn normalizes_over_batches(trace: &Trace) -> bool {
    trace.modules.iter().any(|module| module.class.contains("BatchNorm"))
}

/// Whether each rank has a part of the batch.
fn splits(form: ShardForm) -> bool {
    matches!(form, ShardForm::Data | ShardForm::Fsdp2)
}

/// All traces that the search works on: each variant at each size of micro-batch.
pub(super) fn prepare(variants: &[Variant], limits: &Limits) -> Result<Vec<Prepared>, Error> {
    let gpus = u64::from(limits.gpus.max(1));
    let wanted: Vec<&Lever> = limits.set.iter().filter(|lever| lever.is_traced()).collect();
    let given = limits.set.iter().find_map(|lever| match lever {
        Lever::Accumulate { factor } => Some(*factor),
        _ => None,
    });
    let mut prepared = Vec::new();
    if let Some(family) = variants.first().map(|variant| &variant.family) {
        let traced = family.largest().map_or(1, |trace| trace.batch.size);
        let trace = family.at(limits.batch.unwrap_or(traced))?;
        prepared.push(Prepared {
            levers: variants[0].levers.clone(),
            factor: 1,
            trace,
            others: Vec::new(),
            is_base: true,
        });
    }
    let is_spread = variants.iter().any(|variant| variant.form().is_some());
    let fits_set = |variant: &&Variant| wanted.iter().all(|lever| variant.levers.contains(lever));
    for variant in variants.iter().filter(fits_set) {
        let family = &variant.family;
        let form = variant.form();
        // With sharding applied a trace is of one rank at the whole batch.
        let gpus = if form.is_some() { 1 } else { gpus };
        let traced = family.largest().map_or(1, |trace| trace.batch.size);
        let batch = limits.batch.unwrap_or(traced);
        let normalizes = family.largest().is_some_and(normalizes_over_batches);
        let no_parts = limits.forbids("accumulate") || (normalizes && !limits.allows("accumulate"));
        // What is asked for need not be among those that are tried.
        let factors = match given {
            Some(given) => vec![given.max(1)],
            // A pipeline works on parts of the batch by itself.
            None if form == Some(ShardForm::Pipeline) => vec![1],
            None => FACTORS.to_vec(),
        };
        for factor in factors {
            let not_asked = factor > 1 && given.is_none() && no_parts;
            let parts = u64::from(factor) * gpus;
            if not_asked || batch < parts || (parts > 1 && !batch.is_multiple_of(parts)) {
                continue;
            }
            // Of a sharded trace the parts of ranks have to be whole, too.
            if form.is_some_and(splits) && !(batch / parts).is_multiple_of(u64::from(limits.gpus.max(1))) {
                continue;
            }
            let others: Result<Vec<Trace>, Error> = variant.ranks.iter().map(|rank| rank.at(batch / parts)).collect();
            match family.at(batch / parts).and_then(|trace| Ok((trace, others?))) {
                Ok((trace, others)) => {
                    let levers = variant.levers.clone();
                    prepared.push(Prepared { levers, factor, trace, others, is_base: false });
                }
                // Of a single trace there is no way to another size: then without this lever, or without copies of the model
                // where the work can be spread in other ways.
                Err(Error::OneBatch { .. }) if factor > 1 || (gpus > 1 && is_spread) => {}
                Err(error) => return Err(error),
            }
        }
    }
    // Where no trace has what was asked for, that is told instead.
    let may = variants.iter().any(|variant| fits_set(&variant));
    if gpus > 1 && may && given.is_none() && prepared.iter().all(|prepared| prepared.is_base) {
        let batch = prepared.first().map_or(0, |prepared| prepared.trace.batch.size);
        let why = format!("a batch of {batch} has no {gpus} equal parts, one for each device");
        return Err(Error::Lever { lever: "shard".to_owned(), why });
    }
    Ok(prepared)
}
