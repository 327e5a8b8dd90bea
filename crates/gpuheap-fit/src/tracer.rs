//! What has a model traced: a command by a child, Python by a call. Which traces an answer needs is said here alone.

use std::fmt::Display;

use crate::confirm::confirmed;
use crate::error::Error;
use crate::fit::{Fit, FitOptions, fit};
use crate::levers::Lever;
use crate::plan::{Limits, Variant};
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
    let variants = variants(tracer, &options.limits)?;
    // What one of several devices holds is not traced yet.
    if options.limits.gpus > 1 {
        return Ok(fit(&variants, options, &mut |done, of| tracer.planning(done, of))?);
    }
    confirmed(&variants, options, tracer)
}

/// All traces that plans are made from: the model as it is first.
fn variants<T: Tracer>(tracer: &mut T, limits: &Limits) -> Result<Vec<Variant>, T::Error> {
    let mut wanted: Vec<Vec<Lever>> = vec![Vec::new()];
    let set: Vec<Lever> = limits.set.iter().filter(|lever| lever.is_traced()).cloned().collect();
    if !set.is_empty() {
        wanted.push(set);
    }
    for (name, text) in ALLOWED {
        let lever: Option<Lever> = text.parse().ok().filter(|_| limits.allows(name));
        wanted.extend(lever.map(|lever| vec![lever]).filter(|levers| !wanted.contains(levers)));
    }
    let sizes = !limits.forbids("accumulate")
        || limits.gpus > 1
        || limits.set.iter().any(|lever| matches!(lever, Lever::Accumulate { .. }));
    wanted.into_iter().map(|levers| variant(tracer, levers, limits.batch, sizes)).collect()
}

/// The model with `levers`, at its own batch size and at half of it: two tell about all others.
fn variant<T: Tracer>(
    tracer: &mut T,
    levers: Vec<Lever>,
    batch: Option<u64>,
    sizes: bool,
) -> Result<Variant, T::Error> {
    let first = tracer.trace(&levers, batch)?;
    let size = first.batch.size;
    if sizes && size >= 2 {
        match tracer.trace(&levers, Some(size / 2)) {
            // Nor is a model that does something else with half a batch a reason to give no answer.
            Ok(half) => {
                if let Ok(family) = Family::new(vec![first.clone(), half]) {
                    return Ok(Variant { levers, family });
                }
            }
            Err(error) if tracer.ends(&error) => return Err(error),
            // A batch that cannot be halved is none.
            Err(_) => {}
        }
    }
    Ok(Variant { levers, family: Family::new(vec![first])? })
}
