//! A plan is worked out from traces without it, by rules of what each lever does. Before it is believed the model is traced
//! once more with the plan applied, as it will run. What the trace says corrects the rules for plans of that combination of
//! levers and of others that share what may be at fault, and the planner is asked again: for another plan where this one
//! takes too much, and for a faster one where it takes less than the rules say. If none was right, plans whose rules are
//! exact are the last to be traced: that a model does not fit is not to follow from rules that are wrong.
//! A lever that the model refuses, so that it cannot be traced, is left out, and another plan found.

use gpuheap_record::Bytes;

use crate::error::Error;
use crate::fit::{Answer, Basis, ENDLESS, Fit, FitOptions, Fitter, Peak, Verdict};
use crate::levers::Lever;
use crate::plan::spread::not_considered;
use crate::plan::{Limits, Variant};
use crate::scale::Family;
use crate::trace::{Trace, Unknown};
use crate::tracer::Tracer;

/// Plans that are traced, at most, where one is confirmed.
const TURNS: usize = 5;
/// Plans that are traced, at most, where none is.
const MOST: usize = 8;
/// How many of them are kept for plans whose rules are exact, and for the smallest.
const RESORTS: usize = 3;
/// What is said of a plan that was traced.
const CONFIRMED: &str = "the peak is of a trace with the plan applied";
/// What is said of one that was traced, with some of it on the host.
const BEFORE_SPILL: &str = "the peak is of a trace with the plan applied, before anything lies on the host";
/// What is said of a peak that no trace has.
const BY_RULES: &str = "the peak is worked out by rules from a trace without the plan";
/// The part of a step that a plan must save to be worth another trace.
const GAIN: f64 = 0.005;

/// The answer for a model whose traces are `variants`, its plan traced at `batch` samples, or at the model's own.
pub(crate) fn confirmed<T: Tracer>(
    variants: &[Variant],
    options: &FitOptions,
    batch: Option<u64>,
    tracer: &mut T,
) -> Result<Fit, T::Error> {
    let mut fitter = Fitter::new(variants, options)?;
    let mut answer = fitter.answer(&mut |done, of| tracer.planning(done, of))?;
    let mut best: Option<Answer> = None;
    let mut told = None;
    let mut turns = 0;
    let mut left_out: Vec<String> = Vec::new();
    // The first plan that could not be traced.
    let mut reckoned: Option<Answer> = None;
    loop {
        if turns >= if best.is_some() { TURNS } else { MOST } {
            break;
        }
        // What was traced already is no news: the planner has nothing else.
        if best.is_none()
            && turns > 0
            && (turns + RESORTS >= MOST || fitter.is_traced(&answer))
            && let Some(resort) = fitter.resorts()?
        {
            answer = resort;
        }
        let levers = levers(&answer.fit);
        if levers.is_empty() || fitter.is_traced(&answer) || !is_better(&answer, best.as_ref()) {
            break;
        }
        turns += 1;
        if is_a_trace(variants, &levers) {
            answer.fit.peak_from = Basis::Trace;
            best = Some(answer.clone());
            break;
        }
        let trace = match tracer.trace(&levers, batch) {
            Ok(trace) => trace,
            Err(error) if tracer.ends(&error) => return Err(error),
            // What the model refuses is left out, and another plan found. What was asked for is not.
            Err(error) => {
                let why = error.to_string();
                if best.is_none() && levers.iter().all(|lever| is_asked_for(lever, options)) {
                    return Err(error);
                }
                let refused = fitter.refuse(&answer, &why);
                left_out.extend(refused.iter().map(|lever| not_considered(std::slice::from_ref(lever), &why)));
                let next = fitter.answer(&mut |done, of| tracer.planning(done, of))?;
                let last = std::mem::replace(&mut answer, next);
                reckoned = reckoned.or(Some(last));
                if refused.is_empty() {
                    left_out.push(format!("the model could not be traced with the plan: {why}"));
                    break;
                }
                continue;
            }
        };
        let unknown = trace.unknown.clone();
        let Fit { peak, phases, timelines, .. } = as_traced(trace, options, &levers)?;
        let (planned, high) = (answer.fit.peak.device_bytes, peak.high);
        told = Some((Bytes::new(planned), Bytes::new(peak.device_bytes)));
        fitter.learn(&answer, peak.clone());
        if answer.fit.verdict == Verdict::Fits && high <= fitter.budget() {
            // What is recomputed, hooked and cut is really in that trace; what devices send each other is not.
            let step_us = if options.limits.gpus <= 1 { peak.step_us } else { answer.fit.step_us };
            answer.fit.step_us = step_us;
            answer.fit.peak = Peak { step_us, ..peak };
            answer.fit.peak_from = Basis::Trace;
            answer.fit.phases = phases;
            if let (Some(shown), Some(traced)) = (&mut answer.fit.timelines, timelines) {
                shown.planned = Some(traced.baseline);
            }
            answer.fit.notes.extend(notes_of(&unknown, &answer.fit.unknown));
            answer.fit.unknown = unknown;
            if best.as_ref().is_none_or(|best| step_us < best.fit.step_us) {
                best = Some(answer);
            }
        }
        answer = fitter.answer(&mut |done, of| tracer.planning(done, of))?;
    }
    let answer = match best {
        Some(best) => best,
        // No plan at all could be traced: that says nothing against any of them.
        None if told.is_none() && reckoned.is_some() => reckoned.unwrap_or(answer),
        None => unconfirmed(answer, &fitter, turns, told),
    };
    let mut fit = answer.fit;
    fit.notes.extend(left_out);
    fit.notes.extend(basis(&fit).map(str::to_owned));
    Ok(fitter.complete(fit))
}

/// What to say of where the peak of a plan is from.
fn basis(fit: &Fit) -> Option<&'static str> {
    let plan = levers(fit);
    match (fit.verdict, fit.peak_from) {
        _ if plan.is_empty() => None,
        (_, Basis::Rules) => Some(BY_RULES),
        (Verdict::Fits, Basis::Trace) => Some(CONFIRMED),
        (Verdict::FitsWithSpill, Basis::Trace) => Some(BEFORE_SPILL),
        (Verdict::DoesNotFit, Basis::Trace) => None,
    }
}

/// Whether the traces that plans are made from have one with just these levers. Settings of the allocator are no part of a
/// trace: they are replayed.
fn is_a_trace(variants: &[Variant], levers: &[Lever]) -> bool {
    let levers: Vec<&Lever> = levers.iter().filter(|lever| !matches!(lever, Lever::Allocator { .. })).collect();
    variants.iter().any(|variant| {
        !levers.is_empty()
            && variant.levers.len() == levers.len()
            && levers.iter().all(|&one| variant.levers.contains(one))
    })
}

/// What could not be traced with the plan, and could without it.
fn notes_of(unknown: &[Unknown], before: &[Unknown]) -> Vec<String> {
    let new = unknown.iter().filter(|one| !before.contains(one));
    let note = |one: &Unknown| match one.bound_bytes {
        Some(bytes) => format!("at most {} more: {} in {}", Bytes::new(bytes), one.what, one.place),
        None => format!("not in the figures: {} in {}", one.what, one.place),
    };
    new.map(note).collect()
}

/// Whether a plan is worth a trace beside one that was confirmed.
fn is_better(answer: &Answer, best: Option<&Answer>) -> bool {
    best.is_none_or(|best| answer.fit.verdict == Verdict::Fits && answer.fit.step_us < best.fit.step_us * (1.0 - GAIN))
}

/// An answer whose plan no trace has confirmed: that it fits is not said then.
fn unconfirmed(mut answer: Answer, fitter: &Fitter<'_>, turns: usize, told: Option<(Bytes, Bytes)>) -> Answer {
    let Some((planned, traced)) = told else { return answer };
    if answer.fit.verdict == Verdict::Fits && !answer.fit.plan.is_empty() && !fitter.is_traced(&answer) {
        answer.fit.verdict = Verdict::DoesNotFit;
        answer.fit.notes.push(format!(
            "{turns} plans took more than the budget when the model was traced with them, the smallest among them; the last \
             of them {traced}, where rules say {planned}"
        ));
    }
    answer
}

/// Whether a lever has to be in the plan.
fn is_asked_for(lever: &Lever, options: &FitOptions) -> bool {
    options.limits.set.iter().any(|asked| asked.name() == lever.name())
}

/// What a plan applies to the program: how much lies on the host is up to `gpuheap run`.
fn levers(fit: &Fit) -> Vec<Lever> {
    let all = fit.plan.iter().map(|planned| planned.lever.clone());
    all.filter(|lever| !matches!(lever, Lever::Spill { .. })).collect()
}

/// What a trace with the plan applied takes, with the plan's settings of the allocator.
fn as_traced(mut trace: Trace, options: &FitOptions, levers: &[Lever]) -> Result<Fit, Error> {
    // Of ranks that differ the fullest counts.
    let others = std::mem::take(&mut trace.ranks);
    let mut fullest = rank_as_traced(trace, options, levers)?;
    for other in others {
        let rank = rank_as_traced(other, options, levers)?;
        if rank.peak.high > fullest.peak.high {
            fullest = rank;
        }
    }
    Ok(fullest)
}

/// The same of one rank.
fn rank_as_traced(trace: Trace, options: &FitOptions, levers: &[Lever]) -> Result<Fit, Error> {
    let family = Family::new(vec![trace])?;
    let planned = levers.iter().find_map(|lever| match lever {
        Lever::Allocator { conf } => Some(conf.clone()),
        _ => None,
    });
    let limits = Limits {
        conf: planned.or_else(|| options.limits.conf.clone()).or_else(|| Some(String::new())),
        // The trace is what one of them does.
        gpus: 1,
        without: vec!["all".to_owned()],
        workspace: options.limits.workspace.clone(),
        ..Limits::default()
    };
    let options = FitOptions { budget: Some(ENDLESS), limits, front: false, ..options.clone() };
    let variants = [Variant { levers: Vec::new(), family, ranks: Vec::new() }];
    Ok(Fitter::new(&variants, &options)?.answer(&mut |_, _| ())?.fit)
}
