//! Something large that was made in the middle of the run and stays, although nothing grows.

use gpuheap_record::Bytes;

use super::{Facts, event_at, percent};
use crate::frames::{site, sites};
use crate::report::{Confidence, Finding, FindingKind, Remedy};

/// From this share of the most allocated memory on it is worth a word.
const SHARE: f64 = 0.1;

pub(crate) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let (steps, analysis) = facts.leaks.first()?;
    let (key, step, bytes) = analysis.kept?;
    let bytes = Bytes::new(bytes);
    let share = bytes.share_of(facts.replay.peaks.allocated_bytes);
    // What grows is another finding; what a buffer holds changes with its steps and is not made once.
    if share < SHARE || !analysis.groups.is_empty() || analysis.oldest_freed >= 2 || facts.sawtooth.is_some() {
        return None;
    }
    let frame = facts.marks.site_frame(facts.recording, key.stack);
    Some(Finding {
        id: String::new(),
        kind: FindingKind::Kept,
        title: format!("{bytes} made after the warm-up stay to the last step, without growing"),
        site: frame.map(|frame| site(facts.recording, frame)),
        stack: sites(facts.recording, key.stack),
        bytes,
        bytes_per_step: None,
        confidence: Confidence::Medium,
        evidence: vec![
            format!("the first of it was made in step {} ({})", step + 1, steps.unit),
            format!("{} of the most allocated memory", percent(share)),
        ],
        remedy: Remedy {
            text: "Nothing, if the program still needs it. Otherwise look for what was kept then: a caught exception holds \
                   every local tensor of the frames that it passed."
                .to_owned(),
            conf: None,
            saves_bytes: None,
        },
        event: steps.ticks.get(step).and_then(|&tick| event_at(tick)),
        growth: analysis.total_curve.iter().map(|&bytes| Bytes::new(bytes)).collect(),
    })
}
