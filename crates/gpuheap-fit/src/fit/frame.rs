//! What all answers about one model have in common: what is known of the model and the device, and how a peak is told.

use super::{Basis, ENDLESS, Fit, FitBatch, FitOptions, Optimality, Peak, PhaseReport, SCHEMA, Verdict};
use crate::bar::{Bar, share};
use crate::cost::StepTime;
use crate::exchange;
use crate::holders::holders;
use crate::plan::{Found, Planner, Variant};
use crate::program::Program;
use crate::replay::Replayed;
use crate::timeline::Timelines;
use crate::trace::{Event, Phase, Source, Unknown};

/// Holders that are named.
const HOLDERS: usize = 8;

/// What all answers about one model have in common.
pub(super) struct Frame<'a> {
    pub(super) options: &'a FitOptions,
    source: Source,
    batch: FitBatch,
    unknown: Vec<Unknown>,
    pub(super) budget: u64,
    pub(super) outside: u64,
    pub(super) bar: Bar,
    pub(super) unbounded: u64,
    pub(super) class: String,
}

impl<'a> Frame<'a> {
    pub(super) fn new(variants: &[Variant], options: &'a FitOptions) -> Self {
        let trace = variants.first().and_then(|variant| variant.family.largest());
        let bar = Bar::new(&options.device, options.calibration.as_ref());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of memory")]
        let memory = options.device.memory_bytes.value as u64;
        let unknown = trace.map(|trace| trace.unknown.clone()).unwrap_or_default();
        Self {
            options,
            source: trace.map(|trace| trace.source.clone()).unwrap_or_default(),
            batch: FitBatch { size: options.limits.batch.or(trace.map(|trace| trace.batch.size)).unwrap_or(0) },
            unbounded: unknown.iter().filter_map(|unknown| unknown.bound_bytes).sum(),
            unknown,
            // More than any device has is as good as endless, and what is added to it cannot overflow.
            budget: options.budget.unwrap_or(memory).min(ENDLESS),
            outside: bar.context,
            bar,
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
    pub(super) fn high(&self, device_bytes: u64, exchanges: u64) -> u64 {
        let reserved = device_bytes.saturating_sub(self.outside).saturating_sub(exchanges);
        let beside = self.bar.context_most().saturating_add(exchanges).saturating_add(self.unbounded);
        self.bar.most(reserved).saturating_add(beside)
    }

    /// The smallest budget that a plan keeps to which needs so many bytes beside the context: its [`cap`](Self::cap) is no
    /// less.
    pub(super) fn budget_of(&self, needs: u64) -> u64 {
        self.high(needs.saturating_add(self.outside), 0)
    }

    /// The most reserved bytes whose upper bound keeps to the budget.
    pub(super) fn cap(&self) -> Option<u64> {
        self.cap_within(self.budget)
    }

    /// The same for another budget.
    pub(super) fn cap_within(&self, budget: u64) -> Option<u64> {
        let room = budget.checked_sub(self.bar.context_most())?.checked_sub(self.unbounded)?;
        Some(self.bar.within(room))
    }

    pub(super) fn peak(&self, program: &Program<'_>, replayed: &Replayed, time: StepTime, exchanges: u64) -> Peak {
        let device_bytes = self.device_bytes(replayed, exchanges);
        let as_far = self.bar.reserved(replayed, 0);
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
            low: self
                .bar
                .context_least()
                .saturating_add(exchanges)
                .saturating_add(replayed.reserved.saturating_sub(share(replayed.reserved, self.bar.error))),
            high: self.high(self.outside.saturating_add(exchanges).saturating_add(as_far), exchanges),
            phase,
            step,
            module: open.last().map_or_else(String::new, |&module| program.trace.module_name(module).to_owned()),
            event: replayed.event,
            holders: holders(program, replayed.event, HOLDERS),
            step_us: time.total_us,
        }
    }

    pub(super) fn answer(&self, verdict: Verdict, baseline: Peak, peak: Peak, phases: Vec<PhaseReport>) -> Fit {
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
            context_most_bytes: self.bar.context_most(),
            conf: limits.conf.clone().unwrap_or_default(),
            baseline,
            peak,
            peak_from: Basis::Trace,
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
    pub(super) fn timelines(&self, planner: &Planner<'_>, found: Option<&Found>) -> Option<Timelines> {
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
}

/// What exchanges between devices take beside the allocator in a program that was spread over some before its trace.
pub(super) fn exchanges_of(program: &Program<'_>, options: &FitOptions) -> u64 {
    let gpus = program.trace.sharded().map_or(1, |(_, gpus)| gpus);
    exchange::outside_bytes(program.trace, &options.device, gpus)
}

pub(super) fn phases(replayed: &Replayed) -> Vec<PhaseReport> {
    let report = |phase: &crate::replay::PhasePeak| PhaseReport {
        step: phase.step,
        phase: phase.phase,
        allocated_bytes: phase.allocated,
        reserved_bytes: phase.reserved,
    };
    replayed.phases.iter().map(report).collect()
}
