//! The answer: whether it fits, and what to do if it does not.

mod frame;
mod front;
mod options;
mod planned;
mod report;

use crate::blocks::{Uses, blocks};
use crate::error::Error;
use crate::levers::Lever;
use crate::plan::{Found, Planner, Variant, normalizes_over_batches};
use frame::{Frame, exchanges_of, phases};

pub use options::FitOptions;
pub use report::{Basis, Fit, FitBatch, FrontPoint, Optimality, Peak, PhaseReport, PlannedLever, Verdict};

/// A budget that nothing exceeds.
pub(crate) const ENDLESS: u64 = 1 << 60;
/// What a fit says it is, as JSON.
pub const SCHEMA: &str = "gpuheap.fit/1";

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
            // Its bar may reach further than the size of what it reserves says.
            let beside = peak.device_bytes.saturating_sub(peak.reserved_bytes).saturating_sub(self.frame.outside);
            let as_far = self.frame.cap_within(peak.high.saturating_sub(beside)).unwrap_or(0);
            self.planner.correct(found, as_far.max(peak.reserved_bytes));
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
            fit.smallest_budget_bytes = planner.smallest().as_ref().map(|found| frame.budget_of(planner.needs(found)));
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
        let smallest_bytes = smallest.as_ref().map(|found| frame.budget_of(planner.needs(found)));
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
            fit.front = self.frame.front(&self.planner, &fit);
        }
        fit
    }

    /// No trace can be made with the plan of an answer; `why` says so in words. The planner makes others from now on.
    /// Gives the levers that it leaves out, none where there are none to leave out.
    pub(crate) fn refuse(&mut self, answer: &Answer, why: &str) -> Vec<Lever> {
        answer.found.as_ref().map_or_else(Vec::new, |found| self.planner.refuse(found, why))
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

impl Planner<'_> {
    /// How many blocks the model as it is has.
    fn blocks(&self) -> usize {
        let Ok((program, ..)) = self.baseline() else { return 0 };
        let uses = Uses::new(&program);
        blocks(&program, &uses).len()
    }
}
