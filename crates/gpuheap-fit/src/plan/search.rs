//! All levers together: every combination that makes sense, the chain of blocks solved exactly within each.
//!
//! A combination without treated blocks is never slower than the same with them, so combinations are tried fastest first
//! and the search ends at the first that cannot beat what was found. What is found has gone through the allocator.

use gpuheap_alloc::torch::Config;

use crate::blocks::{Block, Uses, blocks_with};
use crate::cost::{CostModel, HIDDEN, StepTime};
use crate::device::{Calibration, Device, add_workspaces};
use crate::error::Error;
use crate::exchange;
use crate::levers::checkpoint::{Treatment, costly_ops, treat};
use crate::levers::{Lever, OptimizerForm, ShardForm, accumulate, loss, optimizer, shard};
use crate::plan::Chain;
use crate::plan::asked::{chunks_of, conf_of, force, form_of, shard_of, undo};
use crate::plan::corrections::{Combination, Corrections, Trait, kinds_in, subsets};
use crate::plan::prepare::{Limits, Prepared, Variant, prepare, shard_in};
use crate::plan::ranks::{self, Beside, goes_with};
use crate::program::Program;
use crate::replay::{Replayed, config, replay};
use crate::timeline::Timeline;
use crate::trace::Trace;

/// Chunks that the loss is tried in.
const CHUNKS: u32 = 8;
/// How often a choice is made again for a smaller budget, because the allocator reserves more than is alive.
const TIGHTER: usize = 8;
/// The settings of the allocator that are tried where none are given.
const CONFS: [&str; 2] = ["", "expandable_segments:True"];
/// What the search steps the budget by, in bytes, when it looks for the smallest.
const GRAIN: u64 = 16 << 20;

/// Which plans are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    All,
    /// Those whose every lever has an exact rule.
    Plain,
}

/// A combination of all levers but those of blocks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Spec {
    pub(super) prepared: usize,
    pub(super) form: Option<OptimizerForm>,
    pub(super) half_state: bool,
    pub(super) offload: bool,
    pub(super) chunks: Option<u32>,
    /// How the work is spread by rules; what was traced so has it in its levers.
    pub(super) shard: Option<ShardForm>,
    /// Of ranks that differ, which.
    pub(super) rank: usize,
}

impl Spec {
    /// How many of the six choices are the same.
    pub(super) fn alike(&self, other: &Self) -> usize {
        let same = [
            self.prepared == other.prepared,
            self.form == other.form,
            self.half_state == other.half_state,
            self.offload == other.offload,
            self.chunks == other.chunks,
            self.shard == other.shard,
        ];
        same.into_iter().filter(|&same| same).count()
    }
}

/// A combination, and what it comes to.
#[derive(Clone, Debug)]
pub struct Candidate {
    spec: Spec,
    /// Its time without treated blocks, in microseconds.
    pub base_us: f64,
    /// Its chain of blocks.
    pub chain: Chain,
}

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
    index: usize,
    /// Of ranks that differ, the fullest.
    rank: usize,
    treatments: Vec<Treatment>,
    conf: String,
}

/// Searches.
#[derive(Debug)]
pub struct Planner<'a> {
    device: &'a Device,
    calibration: Option<&'a Calibration>,
    limits: &'a Limits,
    prepared: Vec<Prepared>,
    confs: Vec<(String, Config)>,
    candidates: Vec<Candidate>,
    corrections: Corrections,
    /// What is left out of chains of blocks, by turns: treatments that traces have cast doubt on.
    doubted: Vec<Vec<Treatment>>,
}

impl<'a> Planner<'a> {
    /// Prepares the search over `variants`, of which the first is the model as it is.
    pub fn new(
        variants: &[Variant],
        device: &'a Device,
        calibration: Option<&'a Calibration>,
        limits: &'a Limits,
    ) -> Result<Self, Error> {
        let confs: Vec<&str> = match limits.conf.as_deref().or_else(|| limits.set.iter().find_map(conf_of)) {
            Some(conf) => vec![conf],
            None if limits.forbids("allocator") => vec![CONFS[0]],
            None => CONFS.to_vec(),
        };
        let confs = confs.into_iter().map(|conf| Ok((conf.to_owned(), config(conf)?)));
        let confs = confs.collect::<Result<Vec<_>, Error>>()?;
        let prepared = prepare(variants, limits)?;
        let mut planner = Self {
            device,
            calibration,
            limits,
            prepared,
            confs,
            candidates: Vec::new(),
            corrections: Corrections::default(),
            doubted: vec![Vec::new()],
        };
        planner.check_set()?;
        Ok(planner)
    }

    /// Whether every lever that has to be there can be.
    fn check_set(&mut self) -> Result<(), Error> {
        let failed = |lever: &Lever, why: &str| Error::Lever { lever: lever.name().to_owned(), why: why.to_owned() };
        let set = &self.limits.set;
        let has = |name: &str| set.iter().any(|lever| lever.name() == name);
        self.limits.check()?;
        for lever in set {
            match lever {
                Lever::Optimizer { form: OptimizerForm::InBackward } if has("accumulate") => {
                    return Err(failed(lever, "each gradient is used up at once, so gradients cannot add up"));
                }
                Lever::OffloadOptimizer {} if has("optimizer_state") => {
                    return Err(failed(lever, "the state cannot be on the host and in other numbers on the device"));
                }
                Lever::Shard { form: ShardForm::Tensor | ShardForm::Pipeline, .. }
                    if !self.has(|prepared| prepared.levers.contains(lever)) =>
                {
                    return Err(failed(lever, "no trace was made with it"));
                }
                Lever::Accumulate { factor } if !self.has(|prepared| prepared.factor == *factor) => {
                    return Err(failed(lever, "the batch has no such parts, or was traced at one size only"));
                }
                _ if lever.is_traced() && !self.has(|prepared| prepared.levers.contains(lever)) => {
                    return Err(failed(lever, "no trace was made with it"));
                }
                Lever::Checkpoint { modules }
                | Lever::SelectiveCheckpoint { modules, .. }
                | Lever::OffloadActivations { modules } => {
                    let known = self.block_names();
                    let missing =
                        modules.iter().find(|&name| known.is_empty() || (name != "all" && !known.contains(name)));
                    if let Some(missing) = missing {
                        let known = crate::levers::group(&known);
                        let known = if known.is_empty() { "there are none".to_owned() } else { known };
                        return Err(failed(lever, &format!("there is no block called `{missing}`: {known}")));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The chain of blocks, with those that were asked for by name.
    fn blocks_of(&self, program: &Program<'_>, uses: &Uses) -> Vec<Block> {
        let named = self.limits.set.iter().filter_map(|lever| match lever {
            Lever::Checkpoint { modules }
            | Lever::SelectiveCheckpoint { modules, .. }
            | Lever::OffloadActivations { modules } => Some(modules),
            _ => None,
        });
        let named: Vec<&str> = named.flatten().map(String::as_str).filter(|&name| name != "all").collect();
        blocks_with(program, uses, &named)
    }

    fn block_names(&self) -> Vec<String> {
        let Ok((program, ..)) = self.baseline() else { return Vec::new() };
        let uses = Uses::new(&program);
        self.blocks_of(&program, &uses).iter().map(|block| program.trace.module_name(block.module).to_owned()).collect()
    }

    fn has(&self, what: impl Fn(&Prepared) -> bool) -> bool {
        self.prepared.iter().any(|prepared| !prepared.is_base && what(prepared))
    }

    /// The model as it is: its program on this device.
    pub fn baseline(&self) -> Result<(Program<'_>, Replayed, StepTime), Error> {
        let Some(prepared) = self.prepared.first() else {
            return Err(Error::OneBatch { traced: 0, wanted: self.limits.batch.unwrap_or(0) });
        };
        let program = self.with_workspaces(&prepared.trace);
        let given = self.limits.conf.as_deref().unwrap_or("");
        let replayed = replay(&program, &config(given)?, None);
        let time = self.cost(&prepared.trace).step(&program);
        Ok((program, replayed, time))
    }

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

    /// How many combinations there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.candidates.len()
    }

    /// The fastest plan that reserves at most `cap` bytes. Of equally fast ones, the one with fewer levers.
    #[must_use]
    pub fn fastest(&self, cap: u64) -> Option<Found> {
        self.fastest_of(cap, Scope::All)
    }

    /// The same of plans whose every lever has an exact rule.
    #[must_use]
    pub fn fastest_plain(&self, cap: u64) -> Option<Found> {
        self.fastest_of(cap, Scope::Plain)
    }

    fn fastest_of(&self, cap: u64, scope: Scope) -> Option<Found> {
        let mut best: Option<Found> = None;
        for (index, candidate) in self.candidates.iter().enumerate() {
            if !self.is_in(scope, candidate) {
                continue;
            }
            // What is no faster than a plan in hand is not worth a look.
            if best.as_ref().is_some_and(|best| candidate.base_us > best.time.total_us * 1.0001) {
                break;
            }
            for (conf, config) in &self.confs {
                let Some(found) = self.within(index, conf, config, cap, scope) else { continue };
                let better = best.as_ref().is_none_or(|best| {
                    let gain = best.time.total_us - found.time.total_us;
                    // A thousandth of the time is not worth another lever.
                    let worth = 0.001 * best.time.total_us;
                    gain > worth || (gain > -worth && found.levers.len() < best.levers.len())
                });
                if better {
                    best = Some(found);
                }
            }
        }
        best
    }

    /// The least that any plan reserves, and that plan.
    #[must_use]
    pub fn smallest(&self) -> Option<Found> {
        self.smallest_of(Scope::All)
    }

    /// The same of plans whose every lever has an exact rule.
    #[must_use]
    pub fn smallest_plain(&self) -> Option<Found> {
        self.smallest_of(Scope::Plain)
    }

    fn smallest_of(&self, scope: Scope) -> Option<Found> {
        let mut best: Option<Found> = None;
        let mut order: Vec<(u64, u64, usize, usize)> = Vec::new();
        let chains: Vec<(usize, Chain)> = self
            .candidates
            .iter()
            .enumerate()
            .filter(|(_, candidate)| self.is_in(scope, candidate))
            .flat_map(|(index, candidate)| self.chains(candidate, scope).into_iter().map(move |chain| (index, chain)))
            .collect();
        for (at, (index, chain)) in chains.iter().enumerate() {
            let missed = self.least_missed(self.candidates[*index].spec, chain);
            let least = Self::least_alive(chain);
            order.extend(least.map(|least| (least.saturating_add_signed(missed), least, *index, at)));
        }
        order.sort_unstable();
        for (corrected, least, index, at) in order {
            if best.as_ref().is_some_and(|best| self.needs(best) <= corrected) {
                break;
            }
            let Some(solved) = chains[at].1.solve(least, 1.0) else { continue };
            for (conf, config) in &self.confs {
                let Some(found) = self.found(index, &solved.treatments, solved.optimal, conf, config) else { continue };
                if best.as_ref().is_none_or(|best| self.needs(&found) < self.needs(best)) {
                    best = Some(found);
                }
            }
        }
        best
    }

    /// A plan, traced as it will run, reserves `reserved` bytes: the next plans of its combination count on the difference,
    /// and so do those that share levers which may be at fault.
    pub fn correct(&mut self, found: &Found, reserved: u64) {
        let missed = i128::from(reserved) - i128::from(found.replayed.reserved);
        let missed = i64::try_from(missed).unwrap_or(if missed > 0 { i64::MAX } else { i64::MIN });
        if let Some(candidate) = self.candidates.get(found.index) {
            let combination = self.combination(candidate.spec, &kinds_in(&found.treatments));
            self.corrections.learn(combination, missed, reserved);
            self.doubted = subsets(&self.corrections.doubted());
        }
    }

    /// The bytes that a plan reserves, as far as traces of others have corrected the rules.
    #[must_use]
    pub fn reserved(&self, found: &Found) -> u64 {
        let missed = self.candidates.get(found.index).map_or(0, |candidate| {
            self.corrections.of(&self.combination(candidate.spec, &kinds_in(&found.treatments)))
        });
        found.replayed.reserved.saturating_add_signed(missed)
    }

    /// What a plan takes of a device beside the context, in bytes, as far as traces have corrected the rules.
    #[must_use]
    pub fn needs(&self, found: &Found) -> u64 {
        self.reserved(found).saturating_add(found.exchanges)
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

    /// What one lever of a plan saves and costs: the plan against itself without it, where that makes sense; bytes of the
    /// peak and microseconds, either of which can be negative.
    #[must_use]
    pub fn share_of(&self, found: &Found, lever: &Lever) -> Option<(i64, f64)> {
        let mut spec = Spec { rank: found.rank, ..self.candidates.get(found.index)?.spec };
        let mut treatments = found.treatments.clone();
        let mut conf = found.conf.clone();
        match lever {
            Lever::Allocator { .. } => conf.clear(),
            Lever::Optimizer { .. } => spec.form = None,
            Lever::OptimizerState { .. } => spec.half_state = false,
            Lever::OffloadOptimizer {} => spec.offload = false,
            Lever::Loss { .. } => spec.chunks = None,
            // The whole batch on one device.
            Lever::Shard { .. } => {
                (spec.shard, spec.rank, spec.prepared) = (None, 0, self.unsharded(spec.prepared)?);
            }
            Lever::Checkpoint { .. } => undo(&mut treatments, Treatment::Recompute),
            Lever::SelectiveCheckpoint { .. } => undo(&mut treatments, Treatment::Selective),
            Lever::OffloadActivations { .. } => undo(&mut treatments, Treatment::Offload),
            Lever::Accumulate { .. } => spec.prepared = self.sibling(spec.prepared, 1, None)?,
            traced => spec.prepared = self.sibling(spec.prepared, self.prepared[spec.prepared].factor, Some(traced))?,
        }
        let is_rank = !self.prepared[spec.prepared].others.is_empty();
        let program = self.treated(spec, &treatments)?;
        let without = replay(&program, &config(&conf).ok()?, None);
        let time = if is_rank { self.over_ranks(spec)? } else { self.cost(program.trace).step(&program) };
        let saves = i64::try_from(without.reserved).ok()? - i64::try_from(found.replayed.reserved).ok()?;
        Some((saves, found.time.total_us - time.total_us))
    }

    /// The same trace with another number of micro-batches, or without a lever.
    fn sibling(&self, index: usize, factor: u32, less: Option<&Lever>) -> Option<usize> {
        let levers: Vec<&Lever> = self.prepared[index].levers.iter().filter(|&lever| Some(lever) != less).collect();
        self.prepared
            .iter()
            .position(|prepared| prepared.factor == factor && prepared.levers.iter().collect::<Vec<_>>() == levers)
    }

    /// The model as it is, where a trace has no levers but its sharding.
    fn unsharded(&self, index: usize) -> Option<usize> {
        let rest = self.prepared[index].levers.iter().filter(|lever| !matches!(lever, Lever::Shard { .. }));
        let base = self.prepared.first().filter(|base| base.is_base)?;
        rest.eq(base.levers.iter()).then_some(0)
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

    fn cost(&self, trace: &Trace) -> CostModel {
        CostModel::new(trace, self.device, self.calibration)
    }

    fn with_workspaces<'t>(&self, trace: &'t Trace) -> Program<'t> {
        let mut program = Program::new(trace);
        add_workspaces(&mut program, self.device, self.limits.workspace.as_deref());
        program
    }

    /// The program of a combination.
    fn build(&self, spec: Spec) -> Option<Program<'_>> {
        let prepared = &self.prepared[spec.prepared];
        let trace = if spec.rank == 0 { &prepared.trace } else { prepared.others.get(spec.rank - 1)? };
        let mut program = self.with_workspaces(trace);
        if let Some(chunks) = spec.chunks {
            program = loss::chunked(&program, chunks, self.device)?;
        }
        if spec.half_state {
            program = optimizer::half_state(&program, self.device)?;
        }
        if spec.offload {
            program = optimizer::offload(&program, self.device)?;
        }
        if let Some(form) = spec.form {
            program = optimizer::optimizer(&program, form, self.device)?;
        }
        if let Some(form) = spec.shard {
            let largest = shard::largest_block(&program);
            program = shard::shard(&program, form, self.limits.gpus.max(2), largest, self.device)?;
        }
        accumulate::accumulate(&program, prepared.factor, self.device)
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

    fn treated(&self, spec: Spec, treatments: &[Treatment]) -> Option<Program<'_>> {
        let program = self.build(spec)?;
        if treatments.is_empty() {
            return Some(program);
        }
        let uses = Uses::new(&program);
        let blocks = self.blocks_of(&program, &uses);
        if blocks.len() != treatments.len() && treatments.iter().any(|&treatment| treatment != Treatment::Keep) {
            return None;
        }
        Some(treat(&program, &uses, &blocks, treatments, self.device).program)
    }

    /// A combination with treatments of blocks, and the levers in it that go by rules.
    fn combination(&self, spec: Spec, kinds: &[Treatment]) -> Combination {
        let mut traits = Vec::new();
        traits.extend((self.prepared[spec.prepared].factor > 1).then_some(Trait::Parts));
        traits.extend(spec.form.map(Trait::Form));
        traits.extend(spec.half_state.then_some(Trait::HalfState));
        traits.extend(spec.offload.then_some(Trait::StateOnHost));
        traits.extend(spec.chunks.map(|_| Trait::ChunkedLoss));
        traits.extend(spec.shard.map(|_| Trait::Shard));
        traits.extend(kinds.iter().map(|&kind| Trait::Treated(kind)));
        Combination { spec, traits }
    }

    fn is_in(&self, scope: Scope, candidate: &Candidate) -> bool {
        scope == Scope::All || self.combination(candidate.spec, &[]).traits.iter().all(|one| one.is_exact())
    }

    /// The chain of blocks of a combination, as it is and without treatments that are in doubt: rules for them are wrong by
    /// more than for the others, so that both are solved with a budget of their own.
    fn chains(&self, candidate: &Candidate, scope: Scope) -> Vec<Chain> {
        let plain = candidate.chain.without(&[Treatment::Selective, Treatment::Offload]);
        let chain = if scope == Scope::Plain { &plain } else { &candidate.chain };
        let mut chains: Vec<Chain> = Vec::new();
        for without in &self.doubted {
            let chain = chain.without(without);
            if !chains.contains(&chain) {
                chains.push(chain);
            }
        }
        chains
    }

    /// What rules miss at least, whichever treatments of a chain are chosen.
    fn least_missed(&self, spec: Spec, chain: &Chain) -> i64 {
        let all: Vec<Treatment> = chain.links.iter().flat_map(|link| &link.choices).map(|one| one.treatment).collect();
        let kinds = subsets(&kinds_in(&all)).into_iter();
        kinds.map(|kinds| self.corrections.of(&self.combination(spec, &kinds))).min().unwrap_or(0)
    }

    /// The best choice for the blocks of a combination whose replay reserves at most `cap` bytes.
    fn within(&self, index: usize, conf: &str, config: &Config, cap: u64, scope: Scope) -> Option<Found> {
        let candidate = &self.candidates[index];
        let chains = self.chains(candidate, scope);
        let found = chains.iter().filter_map(|chain| {
            let missed = self.least_missed(candidate.spec, chain);
            let mut target = cap.checked_add_signed(missed.checked_neg()?)?;
            for _ in 0..TIGHTER {
                let found = self.solved(index, chain, conf, config, target)?;
                let needs = self.needs(&found);
                if needs <= cap {
                    return Some(found);
                }
                // More is reserved than is alive: leave as much room again.
                target = target.checked_sub((needs - cap).max(GRAIN))?;
            }
            None
        });
        found.min_by(|one, other| one.time.total_us.total_cmp(&other.time.total_us))
    }

    /// The best choice for the blocks of a combination with which no more than `target` bytes are alive. What copies
    /// beside the work cost is no sum over blocks: they are weighed as if they were hidden, and as if they were not.
    fn solved(&self, index: usize, chain: &Chain, conf: &str, config: &Config, target: u64) -> Option<Found> {
        let weights: &[f64] = if chain.offloads() { &[HIDDEN, 1.0] } else { &[1.0] };
        let choices = weights.iter().filter_map(|&weight| chain.solve(target, weight));
        let found = choices.filter_map(|solved| {
            let exact = solved.optimal && !solved.treatments.contains(&Treatment::Offload);
            self.found(index, &solved.treatments, exact, conf, config)
        });
        found.min_by(|one, other| one.time.total_us.total_cmp(&other.time.total_us))
    }

    fn found(
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
            let replayed = replay(&program, config, None);
            if fullest.as_ref().is_none_or(|(_, other, _)| replayed.reserved > other.reserved) {
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

    /// The time of a step where ranks differ.
    fn over_ranks(&self, spec: Spec) -> Option<StepTime> {
        let count = self.prepared[spec.prepared].others.len() + 1;
        let programs = (0..count).map(|rank| self.build(Spec { rank, ..spec })).collect::<Option<Vec<_>>>()?;
        let costs: Vec<CostModel> = programs.iter().map(|program| self.cost(program.trace)).collect();
        let stages: Vec<(&CostModel, &Program<'_>)> = costs.iter().zip(&programs).collect();
        Some(ranks::step(&stages))
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

    /// The least that is alive at the peak of a combination, whatever is done to its blocks; to the grain of the search.
    fn least_alive(chain: &Chain) -> Option<u64> {
        let most = chain.links.iter().map(|link| link.before).max().unwrap_or(0).max(chain.waiting).max(chain.outside);
        let within = chain.links.iter().flat_map(|link| &link.choices).map(|choice| choice.within).max().unwrap_or(0);
        let mut enough = most.max(within).div_ceil(GRAIN);
        chain.solve(enough * GRAIN, 1.0)?;
        let mut too_little = 0;
        while enough - too_little > 1 {
            let middle = u64::midpoint(too_little, enough);
            if chain.solve(middle * GRAIN, 1.0).is_some() { enough = middle } else { too_little = middle }
        }
        Some(enough * GRAIN)
    }
}
