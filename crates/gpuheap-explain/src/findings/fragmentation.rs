//! Reserved memory that could not serve what was asked.

use gpuheap_record::Bytes;

use super::{Facts, event_at, percent, plural};
use crate::fragmentation;
use crate::frames::{site, sites};
use crate::report::{Confidence, Finding, FindingKind, Remedy};

pub(crate) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let stranded: Bytes = facts.stranded.iter().map(|stream| Bytes::new(stream.bytes)).sum();
    let found = fragmentation::find(facts.replay, stranded)?;
    let worst = found
        .worst
        .and_then(super::super::lifetimes::Tick::event)
        .map(|event| facts.device.events.stack(event))
        .unwrap_or_default();
    let frame = facts.marks.site_frame(facts.recording, worst);
    let mut evidence = vec![
        format!("most reserved: {}; most in use at once: {}", found.reserved, found.active),
        format!(
            "when most was reserved, {} were free in {}, the largest of {}",
            found.free,
            plural(found.free_ranges, "piece"),
            found.largest_free
        ),
    ];
    if found.needless_segments > 0 {
        evidence.push(format!(
            "{} ({}) were taken from the driver while as much lay free in pieces",
            plural(found.needless_segments, "segment"),
            found.needless_bytes
        ));
    }
    if !facts.replay.complete {
        evidence.push("the recording starts late: an earlier peak may have needed the memory".to_owned());
    }
    let remedy = remedy(facts, found.reserved, found.active);
    for (what, reserved) in &facts.settings().changes {
        if (found.reserved - *reserved).share_of(found.reserved) >= 0.05 {
            evidence.push(format!("in replay the same run reserves {reserved} {what}"));
        }
    }
    Some(Finding {
        id: String::new(),
        kind: FindingKind::Fragmentation,
        title: format!(
            "{} reserved for {} in use: {} ({}) lay in pieces that did not fit",
            found.reserved,
            found.active,
            found.waste,
            percent(found.waste.share_of(found.reserved))
        ),
        site: frame.map(|frame| site(facts.recording, frame)),
        stack: sites(facts.recording, worst),
        bytes: found.waste,
        bytes_per_step: None,
        confidence: if facts.replay.complete { Confidence::High } else { Confidence::Medium },
        evidence,
        remedy,
        event: event_at(facts.replay.peak_reserved),
        growth: facts
            .steps
            .ticks
            .iter()
            .map(|tick| Bytes::new(facts.replay.reserved.get(tick.index()).copied().unwrap_or(0)))
            .collect(),
    })
}

/// The setting that helps, with the bytes that it saves in replay.
fn remedy(facts: &Facts<'_>, reserved: Bytes, active: Bytes) -> Remedy {
    let settings = facts.settings();
    let Some((best, saved)) = settings.best_saving(reserved).filter(|(_, saved)| saved.share_of(reserved) >= 0.01)
    else {
        return Remedy {
            text: format!(
                "No allocator setting that was tried in replay helps; an allocator without any waste would have needed \
                 {active}. Keep sizes apart less (pad to a few lengths), or release the cache between phases with \
                 `torch.cuda.empty_cache()`."
            ),
            conf: None,
            saves_bytes: None,
        };
    };
    let what = if best.conf.is_empty() {
        "Go back to stock settings".to_owned()
    } else {
        "Use expandable segments, which grow in place instead of leaving pieces behind".to_owned()
    };
    Remedy {
        text: format!("{what}: in replay the same run reserves {}.", best.peak_reserved_bytes),
        conf: Some(best.conf.clone()),
        saves_bytes: Some(saved),
    }
}
