//! Steps that need more and more, and keep nothing.

use gpuheap_record::Bytes;

use super::{Facts, per_step, plural};
use crate::report::{Confidence, Finding, FindingKind, Remedy};
use crate::trend::{slope, straightness};

/// The growth over the judged steps must be this share of what is alive.
const SHARE: f64 = 0.02;
/// How much of the variation a straight line must explain.
const STRAIGHT: f64 = 0.8;

/// Whether a level, from the end of the warm-up on, rises steadily by `per_step` and still does.
pub(crate) fn is_trend(curve: &[u64], per_step: f64, judged: usize) -> bool {
    let growth = self::per_step(per_step * judged as f64);
    let level = Bytes::new(curve.last().copied().unwrap_or(0));
    per_step > 0.0
        && growth.share_of(level) >= SHARE
        && straightness(curve) >= STRAIGHT
        // A buffer that has filled no longer grows.
        && slope(&curve[curve.len() - curve.len() / 3..]) > 0.3 * per_step
}

pub(crate) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let (steps, analysis) = facts.leaks.first()?;
    let growth = per_step(analysis.total_slope * analysis.window.judged.len() as f64);
    let curve = &analysis.total_curve[analysis.window.warm_up..];
    let is_trend = is_trend(curve, analysis.total_slope, analysis.window.judged.len());
    if !analysis.groups.is_empty() || facts.sawtooth.is_some() || !is_trend {
        return None;
    }
    Some(Finding {
        id: String::new(),
        kind: FindingKind::GrowingWorkingSet,
        title: format!(
            "each {} holds about {} more at its end than the one before, though nothing that a step made outlives the next one",
            steps.unit,
            per_step(analysis.total_slope)
        ),
        site: None,
        stack: Vec::new(),
        bytes: growth,
        bytes_per_step: Some(per_step(analysis.total_slope)),
        confidence: Confidence::Medium,
        evidence: vec![
            format!("nothing that was made in {} survives", plural(analysis.window.judged.len(), "judged step")),
            "batches or sequences that grow look like this; so does one tensor that is replaced by a larger one each step"
                .to_owned(),
        ],
        remedy: Remedy {
            text: "Nothing, if sizes grow by plan. Otherwise look for a tensor that is joined with new data every step."
                .to_owned(),
            conf: None,
            saves_bytes: None,
        },
        event: None,
        growth: analysis.total_curve.iter().map(|&bytes| Bytes::new(bytes)).collect(),
    })
}
