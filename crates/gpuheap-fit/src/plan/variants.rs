//! Traces in any order, put together by what was applied to the model before they were made.

use super::Variant;
use crate::error::Error;
use crate::trace::Trace;

/// The variants of a model: the one with the fewest levers first.
pub fn variants(traces: Vec<Trace>) -> Result<Vec<Variant>, Error> {
    let mut groups: Vec<Vec<Trace>> = Vec::new();
    for trace in traces {
        match groups.iter_mut().find(|group| group[0].applied == trace.applied) {
            Some(group) => group.push(trace),
            None => groups.push(vec![trace]),
        }
    }
    groups.sort_by_key(|group| group[0].applied.len());
    groups.into_iter().map(Variant::new).collect()
}
