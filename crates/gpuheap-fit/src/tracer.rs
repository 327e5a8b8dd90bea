//! What has a model traced: a command by a child, Python by a call. Which traces an answer needs is said here alone.

use std::fmt::Display;

use crate::confirm::confirmed;
use crate::error::Error;
use crate::fit::{Fit, FitOptions};
use crate::levers::Lever;
use crate::plan::{Limits, Variant, spread};
use crate::scale::Family;
use crate::trace::Trace;

/// Levers that results change with, that are traced where they are allowed, and how.
const ALLOWED: [(&str, &str); 2] = [("autocast", "autocast=bfloat16"), ("parameters", "parameters=bfloat16")];

/// Traces a model.
pub trait Tracer {
    /// Why it cannot.
    type Error: From<Error> + Display;

    /// The model with levers applied, at so many samples; none for as many as its own batch has.
    fn trace(&mut self, levers: &[Lever], batch: Option<u64>) -> Result<Trace, Self::Error>;

    /// Whether an error ends all, such as an interruption; else it is only this trace that there is none of.
    fn ends(&self, error: &Self::Error) -> bool {
        let _ = error;
        false
    }

    /// Hears how many of how many combinations of levers are worked out.
    fn planning(&mut self, done: usize, of: usize) {
        let _ = (done, of);
    }
}

/// Answers for a model that `tracer` traces: as it is, with the levers that only a trace can tell about, and with the plan
/// that was found.
pub fn fit_traced<T: Tracer>(tracer: &mut T, options: &FitOptions) -> Result<Fit, T::Error> {
    let (variants, batch, notes) = variants(tracer, &options.limits)?;
    // Traces can be at other sizes than the one that is asked about.
    let limits = Limits { batch: Some(batch).filter(|&batch| batch > 0), ..options.limits.clone() };
    let sized = FitOptions { limits, ..options.clone() };
    let mut fit = confirmed(&variants, &sized, options.limits.batch, tracer)?;
    fit.notes.extend(notes);
    Ok(fit)
}

/// Traces that plans are made from, the samples of the model's own batch, and what to say of ways that were not traced.
type Traced = (Vec<Variant>, u64, Vec<String>);

/// All traces that plans are made from, the model as it is first.
fn variants<T: Tracer>(tracer: &mut T, limits: &Limits) -> Result<Traced, T::Error> {
    let mut wanted: Vec<Vec<Lever>> = vec![Vec::new()];
    let is_shard = |lever: &Lever| matches!(lever, Lever::Shard { .. });
    let set: Vec<Lever> = limits.set.iter().filter(|lever| lever.is_traced() && !is_shard(lever)).cloned().collect();
    let must = !set.is_empty();
    if must {
        wanted.push(set);
    }
    for (name, text) in ALLOWED {
        let lever: Option<Lever> = text.parse().ok().filter(|_| limits.allows(name));
        wanted.extend(lever.map(|lever| vec![lever]).filter(|levers| !wanted.contains(levers)));
    }
    let sizes = !limits.forbids("accumulate")
        || limits.gpus > 1
        || limits.set.iter().any(|lever| matches!(lever, Lever::Accumulate { .. }));
    let mut variants = Vec::with_capacity(wanted.len());
    let mut batch = 0;
    // The work is spread over devices beside all that has to be there; what is only allowed may be left out.
    let beside: Vec<Vec<Lever>> = wanted[usize::from(must)..].to_vec();
    for levers in wanted {
        let first = tracer.trace(&levers, limits.batch)?;
        if variants.is_empty() {
            batch = first.batch.size;
        }
        variants.push(variant(tracer, first, levers, sizes)?);
    }
    let mut notes = Vec::new();
    for levers in spread::ways(&beside, limits, &variants[0]) {
        match tracer.trace(&levers, limits.batch) {
            Ok(first) => {
                // A pipeline works on parts of the batch by itself.
                let sizes = sizes && first.ranks.is_empty();
                variants.push(variant(tracer, first, levers, sizes)?);
            }
            // What was asked for has to be there; of what was only tried the others will do.
            Err(error) if tracer.ends(&error) || limits.set.iter().any(is_shard) => return Err(error),
            Err(error) => notes.push(spread::not_considered(&levers, &error.to_string())),
        }
    }
    Ok((variants, batch, notes))
}

fn variant<T: Tracer>(tracer: &mut T, first: Trace, levers: Vec<Lever>, sizes: bool) -> Result<Variant, T::Error> {
    if !first.ranks.is_empty() || !sizes {
        return Ok(Variant { levers, ..Variant::new(vec![first])? });
    }
    let family = family(tracer, first, &levers)?;
    Ok(Variant { levers, family, ranks: Vec::new() })
}

/// A trace and one at another size, which tell about all others: at half of it, or where the model does something else then,
/// as with a single sample, at twice of it.
fn family<T: Tracer>(tracer: &mut T, first: Trace, levers: &[Lever]) -> Result<Family, T::Error> {
    let size = first.batch.size;
    for other in [size / 2, size.saturating_mul(2)] {
        // A batch of one has no parts.
        if size < 2 || other == 0 {
            continue;
        }
        match tracer.trace(levers, Some(other)) {
            Ok(other) => {
                if let Ok(family) = Family::new(vec![first.clone(), other]) {
                    return Ok(family);
                }
            }
            Err(error) if tracer.ends(&error) => return Err(error),
            // A batch that has no other size is no reason to give no answer.
            Err(_) => {}
        }
    }
    Ok(Family::new(vec![first])?)
}
