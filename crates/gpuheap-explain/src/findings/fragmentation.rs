//! Reserved memory that could not serve what was asked.

use gpuheap_record::Bytes;

use super::{Facts, percent, plural};
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
    let settings = &facts.recording.settings;
    let (text, conf) = if settings.expandable_segments {
        let text = "Segments are expandable already. Keep sizes apart less: pad to a few lengths, or release the cache \
                    between phases with `torch.cuda.empty_cache()`.";
        (text.to_owned(), None)
    } else if settings.max_split_size.is_some() {
        let text = "Remove `max_split_size_mb`: blocks above it are never split, which wastes what this program reserved. \
                    Expandable segments grow in place instead of being cut.";
        (text.to_owned(), Some("expandable_segments:True".to_owned()))
    } else {
        let text = format!(
            "Use expandable segments: they grow in place instead of leaving pieces behind. An allocator without any waste \
             would have needed {}.",
            found.active
        );
        (text, Some("expandable_segments:True".to_owned()))
    };
    Some(Finding {
        id: String::new(),
        kind: FindingKind::Fragmentation,
        title: format!(
            "{} reserved for {} in use: {} ({}) lie in pieces that did not fit",
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
        remedy: Remedy { text, conf, saves_bytes: None },
        growth: facts
            .steps
            .ticks
            .iter()
            .map(|tick| Bytes::new(facts.replay.reserved.get(tick.index()).copied().unwrap_or(0)))
            .collect(),
    })
}
