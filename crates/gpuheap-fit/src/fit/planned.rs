//! The answer with a plan: what each of its levers is for, and what is left to the host where none is small enough.

use super::frame::{Frame, phases};
use super::{Basis, Fit, Peak, PlannedLever, Verdict};
use crate::levers::{Lever, code};
use crate::plan::{Found, Planner};
use crate::program::Program;
use crate::trace::Class;

impl Frame<'_> {
    pub(super) fn planned(
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
        fit.peak_from = if traced.is_some() || found.levers.is_empty() { Basis::Trace } else { Basis::Rules };
        fit.context_bytes = self.outside.saturating_add(found.exchanges);
        fit.context_most_bytes = self.bar.context_most().saturating_add(found.exchanges);
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
    pub(super) fn too_large(&self, planner: &Planner<'_>, found: &Found, baseline: Peak, traced: Option<&Peak>) -> Fit {
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
                // Which does not count contexts and libraries.
                code: format!(
                    "gpuheap run --budget {} --spill {over} -- python train.py",
                    self.budget.saturating_sub(self.outside)
                ),
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
