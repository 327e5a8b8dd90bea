//! Batch and sequence as parameters: traces at two or more sizes tell what every storage and every operator is at any
//! other.
//!
//! The peak of a program is a maximum over moments, so it bends where another moment takes over; the size of a single
//! storage does not. So sizes are interpolated storage by storage and the program is replayed at the new size: two
//! traces are enough for batches, three for sequences, whose attention grows with the square.

mod align;

use crate::error::Error;
use crate::program::{Program, Slot};
use crate::trace::{Call, Class, Event, MOST_IN_ALL, Trace};

/// Traces of one model at several sizes.
#[derive(Clone, Debug)]
pub struct Family {
    /// By size, smallest first.
    traces: Vec<(u64, Trace)>,
}

impl Family {
    /// Traces at different batch sizes. They have to be alike in all but sizes and scratch memory.
    pub fn new(traces: Vec<Trace>) -> Result<Self, Error> {
        Self::over(traces.into_iter().map(|trace| (trace.batch.size, trace)).collect())
    }

    /// Traces at different sizes of anything, such as a sequence: each with its size.
    pub fn over(mut traces: Vec<(u64, Trace)>) -> Result<Self, Error> {
        traces.sort_by_key(|&(size, _)| size);
        traces.dedup_by_key(|&mut (size, _)| size);
        let differ =
            |traces: &[(u64, Trace)]| traces.windows(2).any(|pair| difference(&pair[0].1, &pair[1].1).is_some());
        if differ(&traces) {
            let aligned = align::align(&traces.iter().map(|(_, trace)| trace).collect::<Vec<_>>());
            for ((_, trace), aligned) in traces.iter_mut().zip(aligned.into_iter().flatten()) {
                *trace = aligned;
            }
        }
        for pair in traces.windows(2) {
            if let Some(how) = difference(&pair[0].1, &pair[1].1) {
                return Err(Error::Unlike { first: pair[0].0, second: pair[1].0, how });
            }
        }
        Ok(Self { traces })
    }

    /// The sizes that were traced.
    pub fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        self.traces.iter().map(|&(size, _)| size)
    }

    /// The trace at the largest size.
    #[must_use]
    pub fn largest(&self) -> Option<&Trace> {
        self.traces.last().map(|(_, trace)| trace)
    }

    /// Whether there is a way to another size than the traced one.
    #[must_use]
    pub fn scales(&self) -> bool {
        self.traces.len() > 1
    }

    /// The trace at `size`: a traced one as it is, any other by a polynomial through the traced ones, which is a line for
    /// two of them.
    pub fn at(&self, size: u64) -> Result<Trace, Error> {
        if let Some((_, trace)) = self.traces.iter().find(|&&(traced, _)| traced == size) {
            return Ok(trace.clone());
        }
        let Some(((traced, trace), true)) = self.traces.last().map(|last| (last, self.traces.len() > 1)) else {
            let traced = self.traces.first().map_or(0, |&(size, _)| size);
            return Err(Error::OneBatch { traced, wanted: size });
        };
        let weights = self.weights(size);
        let mut result = trace.clone();
        // Exact for whole numbers as long as they are far from 2^52: the weights of two points are ratios of small sizes.
        let mix = |values: &mut dyn Iterator<Item = f64>| -> f64 {
            values.zip(&weights).map(|(value, weight)| value * weight).sum::<f64>()
        };
        for (index, storage) in result.storages.iter_mut().enumerate() {
            let all = || self.traces.iter().map(|(_, trace)| trace.storages[index].bytes);
            if storage.class == Class::Workspace && all().any(|bytes| bytes == 0) {
                storage.bytes = self.nearest(size, index);
            } else if all().any(|bytes| bytes != storage.bytes) {
                let bytes = mix(&mut self.traces.iter().map(|(_, trace)| trace.storages[index].bytes as f64));
                storage.bytes = whole(bytes);
            }
        }
        let all = result.storages.iter().fold(0_u64, |all, storage| all.saturating_add(storage.bytes));
        if all > MOST_IN_ALL {
            return Err(Error::TooLarge { batch: size });
        }
        for (index, call) in result.calls.iter_mut().enumerate() {
            let of = |field: &dyn Fn(&Call) -> f64| {
                mix(&mut self.traces.iter().map(|(_, trace)| field(&trace.calls[index])))
            };
            call.flops = of(&|call| call.flops).max(0.0);
            call.read = whole(of(&|call| call.read as f64)).min(MOST_IN_ALL);
            call.written = whole(of(&|call| call.written as f64)).min(MOST_IN_ALL);
        }
        if result.batch.size == *traced {
            result.batch.size = size;
        }
        Ok(result)
    }

    /// Scratch memory that some of the sizes have and others have not: as at the traced size that is nearest, in
    /// proportion. Which way a kernel takes between two traced sizes is not known.
    fn nearest(&self, size: u64, index: usize) -> u64 {
        let far = |traced: u64| (size as f64 / traced.max(1) as f64).ln().abs();
        let nearest = self.traces.iter().min_by(|one, other| far(one.0).total_cmp(&far(other.0)));
        nearest.map_or(0, |(traced, trace)| {
            whole(trace.storages[index].bytes as f64 * size as f64 / (*traced).max(1) as f64)
        })
    }

    /// Lagrange's weights of the traced sizes at `size`.
    fn weights(&self, size: u64) -> Vec<f64> {
        let at = size as f64;
        let points: Vec<f64> = self.sizes().map(|size| size as f64).collect();
        let weight = |&point: &f64| {
            points
                .iter()
                .filter(|&&other| (other - point).abs() > 0.5)
                .map(|&other| (at - other) / (point - other))
                .product()
        };
        points.iter().map(weight).collect()
    }
}

/// The sizes of the slots of a program at another size, without a trace of their own: for many sizes in a row.
#[must_use]
pub fn with_sizes<'t>(program: &Program<'t>, trace: &Trace) -> Program<'t> {
    let mut result = program.clone();
    for (slot, storage) in result.slots.iter_mut().zip(&trace.storages) {
        *slot = Slot { bytes: storage.bytes, ..*slot };
    }
    result
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and saturates")]
fn whole(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

/// The first difference between two traces beside sizes.
fn difference(one: &Trace, other: &Trace) -> Option<String> {
    if one.storages.len() != other.storages.len() {
        return Some(format!("{} storages and {}", one.storages.len(), other.storages.len()));
    }
    if one.events.len() != other.events.len() || one.calls.len() != other.calls.len() {
        return Some(format!("{} events and {}", one.events.len(), other.events.len()));
    }
    let same =
        |one: &Event, two: &Event| one == two || matches!((one, two), (Event::Phase(a), Event::Phase(b)) if a == b);
    if let Some(at) = one.events.iter().zip(&other.events).position(|(one, two)| !same(one, two)) {
        return Some(format!("event {at}"));
    }
    let op = one.calls.iter().zip(&other.calls).position(|(a, b)| one.op_name(a) != other.op_name(b));
    op.map(|at| format!("operator {at}: `{}` and `{}`", one.op_name(&one.calls[at]), other.op_name(&other.calls[at])))
}
