//! A plan that was replayed: its levers, its program, its memory through time.

use gpuheap_alloc::torch::Config;

use super::Planner;
use crate::bar::replay_with_bar;
use crate::blocks::Uses;
use crate::cost::StepTime;
use crate::exchange;
use crate::levers::checkpoint::{Treatment, costly_ops};
use crate::levers::{Lever, loss};
use crate::plan::spec::Spec;
use crate::program::Program;
use crate::replay::{Replayed, config};
use crate::timeline::Timeline;

/// A plan that was replayed.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its levers.
    pub levers: Vec<Lever>,
    /// What the replay says.
    pub replayed: Replayed,
    /// Its time.
    pub time: StepTime,
    /// Whether the blocks were chosen exactly.
    pub optimal: bool,
    /// What exchanges between devices take beside the allocator, in bytes.
    pub exchanges: u64,
    pub(super) index: usize,
    /// Of ranks that differ, the fullest.
    pub(super) rank: usize,
    pub(super) treatments: Vec<Treatment>,
    pub(super) conf: String,
}

impl Planner<'_> {
    pub(super) fn found(
        &self,
        index: usize,
        treatments: &[Treatment],
        optimal: bool,
        conf: &str,
        config: &Config,
    ) -> Option<Found> {
        let first = self.candidates[index].spec;
        let mut fullest: Option<(usize, Replayed, Program<'_>)> = None;
        for rank in 0..=self.prepared[first.prepared].others.len() {
            let program = self.treated(Spec { rank, ..first }, treatments)?;
            let replayed = replay_with_bar(&program, config, self.device);
            if fullest
                .as_ref()
                .is_none_or(|(_, other, _)| self.bar.reserved(&replayed, 0) > self.bar.reserved(other, 0))
            {
                fullest = Some((rank, replayed, program));
            }
        }
        let (rank, replayed, program) = fullest?;
        let differ = !self.prepared[first.prepared].others.is_empty();
        let time = if differ { self.over_ranks(first)? } else { self.cost(program.trace).step(&program) };
        let levers = self.levers(first, treatments, conf, &program);
        let exchanges = exchange::outside_bytes(program.trace, self.device, self.limits.gpus);
        let (treatments, conf) = (treatments.to_vec(), conf.to_owned());
        Some(Found { levers, replayed, time, optimal, exchanges, index, rank, treatments, conf })
    }

    fn levers(&self, spec: Spec, treatments: &[Treatment], conf: &str, program: &Program<'_>) -> Vec<Lever> {
        let prepared = &self.prepared[spec.prepared];
        let mut levers = Vec::new();
        if let Some(form) = spec.shard {
            let gpus = self.limits.gpus.max(2);
            levers.push(Lever::Shard { form, gpus, stages: Vec::new(), micro_batches: None });
        }
        levers.extend(prepared.levers.iter().cloned());
        if prepared.factor > 1 {
            levers.push(Lever::Accumulate { factor: prepared.factor });
        }
        if !conf.is_empty() && self.limits.conf.is_none() {
            levers.push(Lever::Allocator { conf: conf.to_owned() });
        }
        levers.extend(spec.form.map(|form| Lever::Optimizer { form }));
        if spec.half_state {
            levers.push(Lever::OptimizerState { dtype: "bfloat16".to_owned() });
        }
        if spec.offload {
            levers.push(Lever::OffloadOptimizer {});
        }
        if let Some(chunks) = spec.chunks {
            let module = loss::unusual(&self.with_workspaces(&prepared.trace));
            levers.push(Lever::Loss { form: "chunked".to_owned(), chunks, module });
        }
        let base = self.build(spec);
        let names: Vec<String> = base.map_or_else(Vec::new, |base| {
            let uses = Uses::new(&base);
            self.blocks_of(&base, &uses).iter().map(|block| base.trace.module_name(block.module).to_owned()).collect()
        });
        let of = |wanted: Treatment| -> Vec<String> {
            names
                .iter()
                .zip(treatments)
                .filter(|&(_, &treatment)| treatment == wanted)
                .map(|(name, _)| name.clone())
                .collect()
        };
        let modules = of(Treatment::Recompute);
        levers.extend((!modules.is_empty()).then_some(Lever::Checkpoint { modules }));
        let modules = of(Treatment::Selective);
        let keep = costly_ops(program);
        levers.extend((!modules.is_empty()).then_some(Lever::SelectiveCheckpoint { modules, keep }));
        let modules = of(Treatment::Offload);
        levers.extend((!modules.is_empty()).then_some(Lever::OffloadActivations { modules }));
        levers
    }

    /// The program of a plan, for a closer look.
    #[must_use]
    pub fn program(&self, found: &Found) -> Option<Program<'_>> {
        let spec = Spec { rank: found.rank, ..self.candidates.get(found.index)?.spec };
        self.treated(spec, &found.treatments)
    }

    /// Memory through time with a plan; without one, of the model as it is.
    #[must_use]
    pub fn timeline(&self, found: Option<&Found>) -> Option<Timeline> {
        let (program, conf) = match found {
            Some(found) => (self.program(found)?, found.conf.as_str()),
            None => (self.baseline().ok()?.0, self.limits.conf.as_deref().unwrap_or("")),
        };
        Some(Timeline::new(&program, &config(conf).ok()?, &self.cost(program.trace)))
    }
}
