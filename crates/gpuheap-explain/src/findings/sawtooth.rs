//! The saw-tooth: garbage in reference cycles.

use gpuheap_record::Bytes;

use super::{Facts, event_at, file_name, per_step, plural};
use crate::frames::{site, sites};
use crate::report::{Confidence, Finding, FindingKind, Remedy};

/// Whether the garbage is worth a word: this share of the most allocated memory.
pub(crate) const SHARE: f64 = 0.02;

pub(crate) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let sawtooth = facts.sawtooth.as_ref()?;
    let bytes = Bytes::new(sawtooth.bytes);
    if bytes.share_of(facts.replay.peaks.allocated_bytes) < SHARE {
        return None;
    }
    let frame = facts.marks.site_frame(facts.recording, sawtooth.main.stack);
    let place = frame.map_or_else(String::new, |frame| {
        format!(", most of it made at {}:{}", file_name(facts.recording.file(frame)), facts.recording.frame(frame).line)
    });
    let largest = sawtooth.bursts.iter().max_by_key(|burst| burst.bytes);
    let oldest = sawtooth.bursts.iter().map(|burst| burst.ages).max().unwrap_or(0);
    let steps: Vec<String> = sawtooth.bursts.iter().take(6).map(|burst| (burst.step + 1).to_string()).collect();
    let evidence = vec![
        format!("{}, in steps {}", plural(sawtooth.bursts.len(), "burst"), steps.join(", ")),
        format!("up to {} in one burst, made in up to {}{place}", bytes, plural(oldest, "different step")),
        "within a burst the oldest died first, as when Python's collector frees reference cycles; a list that is cleared \
         frees its youngest first"
            .to_owned(),
    ];
    Some(Finding {
        id: String::new(),
        kind: FindingKind::Sawtooth,
        title: format!(
            "+{} of garbage per {} until the collector runs, up to {bytes}",
            per_step(sawtooth.rate),
            facts.steps.unit
        ),
        site: frame.map(|frame| site(facts.recording, frame)),
        stack: sites(facts.recording, sawtooth.main.stack),
        bytes,
        bytes_per_step: Some(per_step(sawtooth.rate)),
        confidence: if sawtooth.bursts.len() >= 3 { Confidence::High } else { Confidence::Medium },
        evidence,
        remedy: Remedy {
            text: "Break the reference cycle that holds these tensors (an object that refers to itself through a closure, \
                   a hook, a parent or an exception): use `weakref`, or set the attribute to `None`. Until then call \
                   `gc.collect()` every few steps."
                .to_owned(),
            conf: None,
            saves_bytes: Some(bytes),
        },
        event: largest.and_then(|burst| facts.steps.ticks.get(burst.step)).and_then(|&tick| event_at(tick)),
        growth: sawtooth.curve.iter().map(|&bytes| Bytes::new(bytes)).collect(),
    })
}
