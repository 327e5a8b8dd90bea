//! The answer: whether it fits, and what to do if it does not.

mod options;
mod report;

use crate::blocks::{Uses, blocks};
use crate::cost::StepTime;
use crate::error::Error;
use crate::exchange;
use crate::holders::holders;
use crate::levers::{Lever, code};
use crate::plan::{Found, Planner, Variant, normalizes_over_batches};
use crate::program::Program;
use crate::replay::Replayed;
use crate::timeline::Timelines;
use crate::trace::{Class, Event, Phase, Source, Unknown};

pub use options::FitOptions;
pub use report::{Fit, FitBatch, FrontPoint, Optimality, Peak, PhaseReport, PlannedLever, Verdict};

/// What a fit says it is, as JSON.
pub const SCHEMA: &str = "gpuheap.fit/1";
/// How far off a peak can be where nobody verified one on the device.
const UNVERIFIED: f64 = 0.03;
/// Holders that are named.
const HOLDERS: usize = 8;
/// Points of the front, at most.
const POINTS: usize = 12;

/// Answers for a model whose traces are `variants`, of which the first is the model as it is. `progress` hears how many of
/// how many combinations of levers are worked out.
pub fn fit(variants: &[Variant], options: &FitOptions, progress: &mut dyn FnMut(usize, usize)) -> Result<Fit, Error> {
    let mut fitter = Fitter::new(variants, options)?;
    let answer = fitter.answer(progress)?;
    Ok(fitter.complete(answer.fit))
}

/// An answer, and the plan in it as the planner has it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) fit: Fit,
    pub(crate) found: Option<Found>,
}

/// Answers about one model, which get better with what traces of its plans say.
pub(crate) struct Fitter<'a> {
    planner: Planner<'a>,
    frame: Frame<'a>,
    variants: &'a [Variant],
    explored: bool,
    /// Plans that were traced, and what they took.
    traced: Vec<(Vec<Lever>, Peak)>,
}

impl<'a> Fitter<'a> {
    pub(crate) fn new(variants: &'a [Variant], options: &'a FitOptions) -> Result<Self, Error> {
        let planner = Planner::new(variants, &options.device, options.calibration.as_ref(), &options.limits)?;
        let frame = Frame::new(variants, options);
        Ok(Self { planner, frame, variants, explored: false, traced: Vec::new() })
    }

    /// The budget of one device, in bytes.
    pub(crate) fn budget(&self) -> u64 {
        self.frame.budget
    }

    /// What a trace with the plan of an answer came to.
    pub(crate) fn learn(&mut self, answer: &Answer, peak: Peak) {
        if let Some(found) = &answer.found {
            self.planner.correct(found, peak.reserved_bytes);
            self.traced.push((found.levers.clone(), peak));
        }
    }

    /// Plans to believe where none of the fastest was right: of those whose every lever has an exact rule, the fastest that
    /// fits by what is known and the smallest; then the smallest of all. Each is only worth what a trace says of it.
    pub(crate) fn resorts(&self) -> Result<Option<Answer>, Error> {
        let (planner, frame) = (&self.planner, &self.frame);
        let tries: [&dyn Fn() -> Option<Found>; 3] =
            [&|| frame.cap().and_then(|cap| planner.fastest_plain(cap)), &|| planner.smallest_plain(), &|| {
                planner.smallest()
            }];
        for find in tries {
            let is_new = |found: &Found| !found.levers.is_empty() && self.traced(found).is_none();
            let Some(found) = find().filter(is_new) else { continue };
            let (program, replayed, time) = planner.baseline()?;
            let baseline = frame.peak(&program, &replayed, time, exchanges_of(&program, frame.options));
            drop(program);
            let mut fit = frame.planned(planner, &found, Verdict::Fits, baseline, None);
            let high = |found: &Found| frame.high(planner.needs(found).saturating_add(frame.outside), found.exchanges);
            fit.smallest_budget_bytes = planner.smallest().as_ref().map(high);
            let blocks = planner.blocks();
            fit.optimality = optimality(Some(&found), planner.count(), blocks, false);
            // The rules for what may be faster were wrong.
            "bounded".clone_into(&mut fit.optimality.kind);
            fit.notes.extend(self.advice(blocks, fit.verdict));
            fit.timelines = frame.timelines(planner, Some(&found));
            return Ok(Some(Answer { fit, found: Some(found) }));
        }
        Ok(None)
    }

    /// Whether a plan was traced.
    pub(crate) fn is_traced(&self, answer: &Answer) -> bool {
        answer.found.as_ref().is_some_and(|found| self.traced.iter().any(|(levers, _)| *levers == found.levers))
    }

    pub(crate) fn answer(&mut self, progress: &mut dyn FnMut(usize, usize)) -> Result<Answer, Error> {
        let options = self.frame.options;
        let is_given = !options.limits.set.is_empty() || options.limits.gpus > 1;
        if !is_given && !self.explored {
            let (program, replayed, time) = self.planner.baseline()?;
            let baseline = self.frame.peak(&program, &replayed, time, exchanges_of(&program, options));
            if baseline.high <= self.frame.budget && !options.front {
                let mut fit = self.frame.answer(Verdict::Fits, baseline.clone(), baseline, phases(&replayed));
                fit.timelines = self.frame.timelines(&self.planner, None);
                return Ok(Answer { fit, found: None });
            }
        }
        if !std::mem::replace(&mut self.explored, true) {
            self.planner.explore(progress);
        }
        self.explored(is_given)
    }

    /// The answer, once all combinations are worked out.
    fn explored(&self, is_given: bool) -> Result<Answer, Error> {
        let (planner, frame) = (&self.planner, &self.frame);
        let options = frame.options;
        if planner.count() == 0
            && let [first, ..] = options.limits.set.as_slice()
        {
            let why = "no plan for this model has all the levers that were asked for".to_owned();
            return Err(Error::Lever { lever: first.name().to_owned(), why });
        }
        let (program, replayed, time) = planner.baseline()?;
        let baseline = frame.peak(&program, &replayed, time, exchanges_of(&program, options));
        drop(program);
        let smallest = planner.smallest();
        let smallest_bytes = smallest
            .as_ref()
            .map(|found| frame.high(planner.needs(found).saturating_add(frame.outside), found.exchanges));
        let as_is = !is_given && baseline.high <= frame.budget;
        let found = if as_is {
            None
        } else {
            frame.cap().and_then(|cap| {
                let least = || smallest.clone().filter(|found| planner.needs(found) <= cap);
                planner.fastest(cap).or_else(least)
            })
        };
        let mut result = match (as_is, &found) {
            (true, _) => frame.answer(Verdict::Fits, baseline.clone(), baseline, phases(&replayed)),
            (false, Some(found)) => frame.planned(planner, found, Verdict::Fits, baseline, self.traced(found)),
            (false, None) => match smallest.as_ref().filter(|_| options.budget.is_some()) {
                Some(found) => frame.too_large(planner, found, baseline, self.traced(found)),
                None => frame.answer(Verdict::DoesNotFit, baseline.clone(), baseline, phases(&replayed)),
            },
        };
        result.smallest_budget_bytes = smallest_bytes;
        let blocks = planner.blocks();
        result.optimality = optimality(found.as_ref().or(smallest.as_ref()), planner.count(), blocks, as_is);
        result.notes.extend(self.advice(blocks, result.verdict));
        let found = if as_is { None } else { found.or(smallest.filter(|_| options.budget.is_some())) };
        result.timelines = frame.timelines(planner, found.as_ref());
        Ok(Answer { fit: result, found })
    }

    /// The last answer, with time against memory if that was asked for.
    pub(crate) fn complete(&self, mut fit: Fit) -> Fit {
        if self.frame.options.front {
            fit.front = self.frame.front(&self.planner, fit.baseline.high, fit.smallest_budget_bytes);
        }
        fit
    }

    /// What a trace with the plan applied took, if there is one.
    fn traced(&self, found: &Found) -> Option<&Peak> {
        self.traced.iter().rev().find(|(levers, _)| *levers == found.levers).map(|(_, peak)| peak)
    }

    /// What stood in the way of a better plan.
    fn advice(&self, blocks: usize, verdict: Verdict) -> Vec<String> {
        let mut notes = Vec::new();
        if blocks == 0 {
            notes.push(
                "no chain of blocks was found: activation checkpointing works on numbered parts of a model, such as \
                 `layers.0`"
                    .to_owned(),
            );
        }
        if verdict == Verdict::Fits {
            return notes;
        }
        let Some(family) = self.variants.first().map(|variant| &variant.family) else { return notes };
        if family.largest().is_some_and(normalizes_over_batches) {
            notes.push(
                "batches are normalized as a whole, so smaller ones would give other results: `--allow accumulate` tries \
                 them"
                .to_owned(),
            );
        }
        if !family.scales() {
            notes.push("the model was traced at one batch size: accumulation was not tried".to_owned());
        }
        notes
    }
}

/// What exchanges between devices take beside the allocator in a program that was spread over some before its trace.
fn exchanges_of(program: &Program<'_>, options: &FitOptions) -> u64 {
    let gpus = program.trace.sharded().map_or(1, |(_, gpus)| gpus);
    exchange::outside_bytes(program.trace, &options.device, gpus)
}

fn phases(replayed: &Replayed) -> Vec<PhaseReport> {
    let report = |phase: &crate::replay::PhasePeak| PhaseReport {
        step: phase.step,
        phase: phase.phase,
        allocated_bytes: phase.allocated,
        reserved_bytes: phase.reserved,
    };
    replayed.phases.iter().map(report).collect()
}

fn optimality(found: Option<&Found>, combinations: usize, blocks: usize, as_is: bool) -> Optimality {
    if as_is {
        return Optimality { kind: "optimal".to_owned(), over: "nothing has to change".to_owned() };
    }
    let exact = found.is_none_or(|found| found.optimal);
    let choices =
        if blocks == 1 { "every choice for 1 block".to_owned() } else { format!("every choice for {blocks} blocks") };
    let all = match (combinations, blocks) {
        (0 | 1, 0) => "the only combination of levers that there is".to_owned(),
        (0 | 1, _) => choices,
        (_, 0) => format!("{combinations} combinations of levers"),
        _ => format!("{combinations} combinations of levers, in each {choices}"),
    };
    let over = all + if exact { "" } else { ", of which the least promising were left out" };
    Optimality { kind: if exact { "optimal" } else { "bounded" }.to_owned(), over }
}

/// What all answers about one model have in common.
struct Frame<'a> {
    options: &'a FitOptions,
    source: Source,
    batch: FitBatch,
    unknown: Vec<Unknown>,
    budget: u64,
    outside: u64,
    error: f64,
    unbounded: u64,
    class: String,
}

impl<'a> Frame<'a> {
    fn new(variants: &[Variant], options: &'a FitOptions) -> Self {
        let trace = variants.first().and_then(|variant| variant.family.largest());
        let calibration = options.calibration.as_ref().filter(|known| known.is_for(&options.device));
        let outside = options.device.outside_bytes();
        let outside = calibration.map(|known| known.context_bytes).filter(|&bytes| bytes > 0).unwrap_or(outside);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of memory")]
        let memory = options.device.memory_bytes.value as u64;
        let unknown = trace.map(|trace| trace.unknown.clone()).unwrap_or_default();
        Self {
            options,
            source: trace.map(|trace| trace.source.clone()).unwrap_or_default(),
            batch: FitBatch { size: options.limits.batch.or(trace.map(|trace| trace.batch.size)).unwrap_or(0) },
            unbounded: unknown.iter().filter_map(|unknown| unknown.bound_bytes).sum(),
            unknown,
            budget: options.budget.unwrap_or(memory),
            outside,
            error: calibration.map(|known| known.peak_error).filter(|&error| error > 0.0).unwrap_or(UNVERIFIED),
            class: trace
                .and_then(|trace| trace.optimizer.as_ref())
                .map(|known| known.class.clone())
                .unwrap_or_default(),
        }
    }

    fn device_bytes(&self, replayed: &Replayed, exchanges: u64) -> u64 {
        replayed.reserved.saturating_add(self.outside).saturating_add(exchanges)
    }

    /// The most that so many bytes of the device may turn out to be, of which libraries of exchanges have some.
    fn high(&self, device_bytes: u64, exchanges: u64) -> u64 {
        let reserved = device_bytes.saturating_sub(self.outside).saturating_sub(exchanges);
        device_bytes.saturating_add(share(reserved, self.error)).saturating_add(self.unbounded)
    }

    /// The most reserved bytes whose upper bound keeps to the budget.
    fn cap(&self) -> Option<u64> {
        let room = self.budget.checked_sub(self.outside)?.checked_sub(self.unbounded)?;
        let mut cap = share(room, 1.0 / (1.0 + self.error));
        // Rounding is not to cost the last byte.
        while self.high(cap + 1 + self.outside, 0) <= self.budget {
            cap += 1;
        }
        Some(cap)
    }

    fn peak(&self, program: &Program<'_>, replayed: &Replayed, time: StepTime, exchanges: u64) -> Peak {
        let device_bytes = self.device_bytes(replayed, exchanges);
        let (mut phase, mut step, mut open) = (Phase::Setup, 0, Vec::new());
        for event in &program.events[..=replayed.event.min(program.events.len().saturating_sub(1))] {
            match *event {
                Event::Phase(next) => phase = next,
                Event::Step(number) => step = number,
                Event::Enter(module, _) => open.push(module),
                Event::Leave(module, _) => {
                    if let Some(at) = open.iter().rposition(|&other| other == module) {
                        open.truncate(at);
                    }
                }
                _ => {}
            }
        }
        Peak {
            allocated_bytes: replayed.allocated,
            reserved_bytes: replayed.reserved,
            device_bytes,
            low: device_bytes.saturating_sub(share(replayed.reserved, self.error)),
            high: self.high(device_bytes, exchanges),
            phase,
            step,
            module: open.last().map_or_else(String::new, |&module| program.trace.module_name(module).to_owned()),
            event: replayed.event,
            holders: holders(program, replayed.event, HOLDERS),
            step_us: time.total_us,
        }
    }

    fn answer(&self, verdict: Verdict, baseline: Peak, peak: Peak, phases: Vec<PhaseReport>) -> Fit {
        let limits = &self.options.limits;
        let step_us = peak.step_us;
        Fit {
            schema: SCHEMA.to_owned(),
            source: self.source.clone(),
            batch: self.batch,
            device: self.options.device.name.clone(),
            gpus: limits.gpus.max(1),
            verdict,
            budget_bytes: self.budget,
            context_bytes: self.outside,
            conf: limits.conf.clone().unwrap_or_default(),
            baseline,
            peak,
            phases,
            plan: Vec::new(),
            step_us,
            optimality: Optimality { kind: "optimal".to_owned(), over: "nothing has to change".to_owned() },
            smallest_budget_bytes: None,
            front: Vec::new(),
            unknown: self.unknown.clone(),
            notes: self.notes(),
            timelines: None,
        }
    }

    /// Memory through time as it is and with a plan, where that was asked for.
    fn timelines(&self, planner: &Planner<'_>, found: Option<&Found>) -> Option<Timelines> {
        if !self.options.timelines {
            return None;
        }
        let with = found.and_then(|found| planner.timeline(Some(found)));
        Some(Timelines { baseline: planner.timeline(None)?, planned: with })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.source.notes.clone();
        let unbounded = self.unknown.iter().filter(|unknown| unknown.bound_bytes.is_none());
        notes.extend(unbounded.map(|unknown| format!("not in the figures: {} in {}", unknown.what, unknown.place)));
        let calibrated = self.options.calibration.as_ref().is_some_and(|known| known.is_for(&self.options.device));
        if !calibrated {
            notes.push(format!(
                "times are worked out from the speeds of the {}, not from a run; `--verify` on one makes them right",
                self.options.device.name
            ));
        }
        notes
    }

    fn planned(
        &self,
        planner: &Planner<'_>,
        found: &Found,
        verdict: Verdict,
        baseline: Peak,
        traced: Option<&Peak>,
    ) -> Fit {
        let peak = match (traced, planner.program(found)) {
            // The time is by rules: a trace has no operators of a fused optimizer, nor copies.
            (Some(traced), _) => Peak { step_us: found.time.total_us, ..traced.clone() },
            (None, Some(program)) => self.peak(&program, &found.replayed, found.time, found.exchanges),
            (None, None) => baseline.clone(),
        };
        let mut fit = self.answer(verdict, baseline, peak, phases(&found.replayed));
        fit.context_bytes = self.outside.saturating_add(found.exchanges);
        fit.plan = found
            .levers
            .iter()
            .map(|lever| {
                let (saves_bytes, costs_us) = planner.share_of(found, lever).unwrap_or((0, 0.0));
                PlannedLever {
                    saves_bytes,
                    costs_us,
                    what: lever.title(),
                    why: why(lever).to_owned(),
                    code: code(lever, &self.class),
                    lever: lever.clone(),
                }
            })
            .collect();
        fit
    }

    /// No plan keeps to the budget: the smallest there is, and the rest on the host, if the budget holds at least what
    /// operators work on at once.
    fn too_large(&self, planner: &Planner<'_>, found: &Found, baseline: Peak, traced: Option<&Peak>) -> Fit {
        let mut fit = self.planned(planner, found, Verdict::DoesNotFit, baseline, traced);
        let over = fit.peak.high.saturating_sub(self.budget);
        let program = planner.program(found);
        let working = program.as_ref().map_or(u64::MAX, largest_call);
        let may_spill = !self.options.limits.without.iter().any(|name| name == "spill" || name == "all");
        if may_spill && over > 0 && self.outside.saturating_add(working.saturating_mul(2)) <= self.budget {
            let lever = Lever::Spill { bytes: over };
            // What lies on the host is read or written at least once each way in a step.
            let costs_us = 2.0 * over as f64 / self.options.device.link_bytes_per_second.value.max(1.0) * 1e6;
            fit.verdict = Verdict::FitsWithSpill;
            fit.step_us += costs_us;
            fit.plan.push(PlannedLever {
                saves_bytes: i64::try_from(over).unwrap_or(i64::MAX),
                costs_us,
                what: lever.title(),
                why: why(&lever).to_owned(),
                code: code(&lever, &self.class),
                lever,
            });
        }
        if let Some(program) = program {
            let weights: u64 = program
                .slots
                .iter()
                .filter(|slot| slot.class == Class::Parameter)
                .map(crate::program::Slot::rounded)
                .sum();
            if weights.saturating_add(self.outside) > self.budget {
                fit.notes.insert(
                    0,
                    format!(
                        "the parameters alone take {} beside {} of the context",
                        gpuheap_record::Bytes::new(weights),
                        gpuheap_record::Bytes::new(self.outside)
                    ),
                );
            }
        }
        fit
    }

    /// Plans for budgets from what the model takes as it is down to the smallest.
    fn front(&self, planner: &Planner<'_>, most: u64, least: Option<u64>) -> Vec<FrontPoint> {
        let Some(least) = least else { return Vec::new() };
        let mut front: Vec<FrontPoint> = Vec::new();
        let span = most.saturating_sub(least);
        for point in 0..POINTS as u64 {
            let budget = most - span * point / (POINTS as u64 - 1);
            let cap = budget.saturating_sub(self.outside).saturating_sub(self.unbounded);
            let Some(found) = planner.fastest(share(cap, 1.0 / (1.0 + self.error))) else { continue };
            let needs = self.high(planner.needs(&found).saturating_add(self.outside), found.exchanges);
            let step_us = found.time.total_us;
            // A point that is no faster than one with less memory is on no front.
            while front.last().is_some_and(|last| last.step_us >= step_us && last.budget_bytes >= needs) {
                front.pop();
            }
            if front.last().is_none_or(|last| needs < last.budget_bytes) {
                front.push(FrontPoint { budget_bytes: needs, step_us, plan: found.levers });
            }
        }
        front
    }
}

/// The most bytes that one call reads and writes.
fn largest_call(program: &Program<'_>) -> u64 {
    let trace = program.trace;
    let size = |call: &crate::trace::Call| {
        let slots = trace.inputs(call).iter().chain(trace.outputs(call));
        let mut slots: Vec<u32> = slots.copied().collect();
        slots.sort_unstable();
        slots.dedup();
        // Lists of parameters are worked on piece by piece.
        let all = || slots.iter().map(|&slot| program.slots[slot as usize].rounded());
        if slots.len() > 64 { all().max().unwrap_or(0) } else { all().sum() }
    };
    trace.calls.iter().map(size).max().unwrap_or(0)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a size is no larger than it")]
fn share(bytes: u64, part: f64) -> u64 {
    (bytes as f64 * part) as u64
}

fn why(lever: &Lever) -> &'static str {
    match lever {
        Lever::Accumulate { .. } => "activations of a part of the batch at a time; the same step",
        Lever::Allocator { .. } => "less of what is reserved lies idle between blocks",
        Lever::Autocast { .. } => "products in half the bytes, and faster",
        Lever::Parameters { .. } => "parameters, gradients and state in half the bytes",
        Lever::Optimizer { .. } => "no temporaries of the size of all parameters, or gradients that go at once",
        Lever::OptimizerState { .. } => "the state in half the bytes",
        Lever::OffloadOptimizer {} => "the state is used once a step: it can wait on the host",
        Lever::Loss { .. } => "the scores of all words are never there at once",
        Lever::Checkpoint { .. } => "made again when the backward pass needs them",
        Lever::SelectiveCheckpoint { .. } => "made again from the results of products, which are kept",
        Lever::OffloadActivations { .. } => "wait on the host until the backward pass needs them",
        Lever::Compile { .. } => "the compiler keeps what is costly to make again",
        Lever::Shard { .. } => "each device holds a part",
        Lever::Quantize { .. } | Lever::Prune { .. } | Lever::Sparse24 { .. } => "weights in fewer bytes",
        Lever::InferenceMode {} => "nothing is kept for a backward pass that never comes",
        Lever::Spill { .. } => "the last resort: what is over lies in host memory, at unchanged addresses",
    }
}

impl Planner<'_> {
    /// How many blocks the model as it is has.
    fn blocks(&self) -> usize {
        let Ok((program, ..)) = self.baseline() else { return 0 };
        let uses = Uses::new(&program);
        blocks(&program, &uses).len()
    }
}
