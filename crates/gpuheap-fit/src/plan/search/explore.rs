//! Which combinations of levers make sense; the time of each, and its chain of blocks.

use super::Planner;
use crate::blocks::Uses;
use crate::levers::checkpoint::Treatment;
use crate::levers::{Lever, OptimizerForm, ShardForm};
use crate::plan::Chain;
use crate::plan::asked::{chunks_of, force, form_of, shard_of};
use crate::plan::prepare::shard_in;
use crate::plan::ranks::{self, Beside, goes_with};
use crate::plan::spec::Spec;

/// Chunks that the loss is tried in.
const CHUNKS: u32 = 8;

/// A combination, and what it comes to.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub(super) spec: Spec,
    /// Its time without treated blocks, in microseconds.
    pub base_us: f64,
    /// Its chain of blocks.
    pub chain: Chain,
}

impl Planner<'_> {
    /// Works out all combinations. `progress` hears how many of how many are done.
    pub fn explore(&mut self, progress: &mut dyn FnMut(usize, usize)) {
        let specs = self.specs();
        let mut candidates = Vec::with_capacity(specs.len());
        for (done, &spec) in specs.iter().enumerate() {
            progress(done, specs.len());
            candidates.extend(self.candidate(spec));
        }
        candidates.sort_by(|one, other| one.base_us.total_cmp(&other.base_us));
        self.candidates = candidates;
    }

    fn specs(&self) -> Vec<Spec> {
        let limits = self.limits;
        let given = |pick: &dyn Fn(&Lever) -> bool| limits.set.iter().any(pick);
        let mut forms: Vec<Option<OptimizerForm>> = match limits.set.iter().find_map(form_of) {
            Some(form) => vec![Some(form)],
            None if limits.forbids("optimizer") => vec![None],
            None => {
                let mut forms = vec![
                    None,
                    Some(OptimizerForm::Fused),
                    Some(OptimizerForm::ForLoop),
                    Some(OptimizerForm::InBackward),
                ];
                if limits.allows("8bit") {
                    forms.push(Some(OptimizerForm::EightBit));
                }
                if limits.allows("4bit") {
                    forms.push(Some(OptimizerForm::FourBit));
                }
                forms
            }
        };
        forms.dedup();
        let offloads: &[bool] = if given(&|lever| matches!(lever, Lever::OffloadOptimizer {})) {
            &[true]
        } else if limits.forbids("offload_optimizer") {
            &[false]
        } else {
            &[false, true]
        };
        let halves: &[bool] = if given(&|lever| matches!(lever, Lever::OptimizerState { .. })) {
            &[true]
        } else if limits.allows("optimizer_state") {
            &[false, true]
        } else {
            &[false]
        };
        let chunks: Vec<Option<u32>> = match limits.set.iter().find_map(chunks_of) {
            Some(chunks) => vec![Some(chunks)],
            None if limits.forbids("loss") => vec![None],
            None => vec![None, Some(CHUNKS)],
        };
        let shards: Vec<Option<ShardForm>> = match limits.set.iter().find_map(shard_of) {
            Some(form) => vec![Some(form)],
            // Others follow by no rule that is good enough to choose by.
            None if limits.gpus > 1 => vec![Some(ShardForm::Data)],
            None => vec![None],
        };
        // What was traced so is not worked out by rules.
        let traced = |form: ShardForm| self.prepared.iter().any(|prepared| shard_in(&prepared.levers) == Some(form));
        let shards: Vec<Option<ShardForm>> =
            shards.into_iter().filter(|shard| shard.is_none_or(|form| !traced(form))).collect();
        let asked = limits.set.iter().find_map(shard_of);
        let mut specs = Vec::new();
        let usable = |&prepared: &usize| !self.prepared[prepared].is_base;
        for prepared in (0..self.prepared.len()).filter(usable) {
            for &form in &forms {
                for &offload in offloads {
                    for &half_state in halves {
                        for &chunks in &chunks {
                            let shards = match shard_in(&self.prepared[prepared].levers) {
                                Some(form) if asked.is_some_and(|asked| asked != form) => &[][..],
                                Some(_) => &[None][..],
                                None => &shards,
                            };
                            for &shard in shards {
                                let spec = Spec { prepared, form, half_state, offload, chunks, shard, rank: 0 };
                                specs.extend(self.makes_sense(&spec).then_some(spec));
                            }
                        }
                    }
                }
            }
        }
        specs
    }

    /// Levers that exclude each other, or do the same.
    fn makes_sense(&self, spec: &Spec) -> bool {
        let prepared = &self.prepared[spec.prepared];
        let low_bit = matches!(spec.form, Some(OptimizerForm::EightBit | OptimizerForm::FourBit));
        let in_backward = spec.form == Some(OptimizerForm::InBackward);
        let scaled =
            prepared.levers.iter().any(|lever| matches!(lever, Lever::Autocast { dtype } if dtype == "float16"));
        let form = spec.shard.or_else(|| shard_in(&prepared.levers));
        let suits = |has: bool, lever: Beside| !has || form.is_none_or(|form| goes_with(form, lever));
        suits(in_backward, Beside::InBackward)
            && suits(spec.offload || spec.half_state, Beside::StateElsewhere)
            && suits(spec.chunks.is_some(), Beside::ChunkedLoss)
            && suits(low_bit, Beside::FewBits)
            && !(in_backward && (prepared.factor > 1 || scaled))
            && !(spec.offload && (spec.form.is_some() || spec.half_state))
            && !(spec.half_state && low_bit)
    }

    fn candidate(&self, spec: Spec) -> Option<Candidate> {
        let program = self.build(spec)?;
        let cost = self.cost(program.trace);
        let differ = !self.prepared[spec.prepared].others.is_empty();
        let base_us = if differ { self.over_ranks(spec)?.total_us } else { cost.step(&program).total_us };
        let uses = Uses::new(&program);
        let blocks = if ranks::has_chain(program.trace) { self.blocks_of(&program, &uses) } else { Vec::new() };
        let form = spec.shard.or_else(|| shard_in(&self.prepared[spec.prepared].levers));
        let mut allowed = self.allowed();
        allowed.retain(|&treatment| {
            treatment != Treatment::Offload || form.is_none_or(|form| goes_with(form, Beside::OffloadedActivations))
        });
        let mut chain = Chain::new(&program, &uses, &blocks, &allowed, &cost, self.device);
        let names: Vec<&str> = blocks.iter().map(|block| program.trace.module_name(block.module)).collect();
        force(&mut chain, &names, self.limits)?;
        Some(Candidate { spec, base_us, chain })
    }

    fn allowed(&self) -> Vec<Treatment> {
        let all = [
            (Treatment::Recompute, "checkpoint"),
            (Treatment::Selective, "selective_checkpoint"),
            (Treatment::Offload, "offload_activations"),
        ];
        let set = |name: &str| self.limits.set.iter().any(|lever| lever.name() == name);
        all.iter()
            .filter(|(_, name)| set(name) || !self.limits.forbids(name))
            .map(|&(treatment, _)| treatment)
            .collect()
    }
}
