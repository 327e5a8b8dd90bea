//! Memory that the program dropped and that waits for another stream.

use gpuheap_record::Bytes;

use super::{Facts, event_at, percent};
use crate::fragmentation::most_pending;
use crate::frames::{site, sites};
use crate::lifetimes::Tick;
use crate::report::{Confidence, Finding, FindingKind, Remedy};

/// From this share of the most reserved memory on it is a finding.
const SHARE: f64 = 0.2;

pub(crate) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let (bytes, when) = most_pending(facts.replay);
    let share = bytes.share_of(facts.replay.peaks.reserved_bytes);
    if share < SHARE {
        return None;
    }
    let waits = |freed: Tick, completed: Tick| freed <= when && when < completed;
    let rows = facts.replay.allocations.rows().iter();
    let largest = rows.filter(|row| waits(row.freed, row.completed)).max_by_key(|row| row.size);
    let stack = largest.map(|row| row.stack).unwrap_or_default();
    let frame = facts.marks.site_frame(facts.recording, stack);
    let allocated = Bytes::new(facts.replay.allocated.get(when.index()).copied().unwrap_or(0));
    Some(Finding {
        id: String::new(),
        kind: FindingKind::DeferredFrees,
        title: format!("{bytes} waited for another stream at once, beside {allocated} in use"),
        site: frame.map(|frame| site(facts.recording, frame)),
        stack: sites(facts.recording, stack),
        bytes,
        bytes_per_step: None,
        confidence: Confidence::High,
        evidence: vec![
            format!("{} of the most reserved memory", percent(share)),
            "tensors marked with `record_stream` can be used again only after the other stream has passed them and the \
             program allocates again"
                .to_owned(),
        ],
        remedy: Remedy {
            text: "Make the main stream wait (`wait_stream`) and drop the tensor there, instead of `record_stream`; or keep \
                   a bound on how far the side stream runs ahead."
                .to_owned(),
            conf: None,
            saves_bytes: None,
        },
        event: event_at(when),
        growth: Vec::new(),
    })
}
