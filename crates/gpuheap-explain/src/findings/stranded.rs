//! Memory cached for streams that no longer allocate.

use gpuheap_record::Bytes;

use super::{Facts, event_at, percent, plural};
use crate::frames::{site, sites};
use crate::ledger::stream_name;
use crate::lifetimes::Tick;
use crate::report::{Confidence, Finding, FindingKind, Remedy};

/// From this share of the most reserved memory on it is a finding.
const SHARE: f64 = 0.1;

pub(crate) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let bytes: Bytes = facts.stranded.iter().map(|stream| Bytes::new(stream.bytes)).sum();
    let releasable: Bytes = facts.stranded.iter().map(|stream| Bytes::new(stream.releasable)).sum();
    let share = bytes.share_of(facts.replay.peaks.reserved_bytes);
    if share < SHARE {
        return None;
    }
    let main = facts.stranded.first()?;
    let most = facts.replay.peaks.reserved_bytes;
    let gain = |reserved: Bytes| (most - reserved).share_of(most);
    let evidence = facts
        .stranded
        .iter()
        .take(5)
        .map(|stream| {
            format!(
                "{} free on {}, which made {} and none of the last {}",
                Bytes::new(stream.bytes),
                stream_name(stream.stream),
                plural(stream.allocations, "allocation"),
                stream.allocations_since
            )
        })
        .chain([format!("{} of the most reserved memory; no other stream can use it", percent(share))])
        .chain(facts.settings().changes.iter().filter(|(_, reserved)| gain(*reserved) >= 0.02).map(
            |(what, reserved)| format!("in replay the same run reserves at most {reserved} {what}, {most} without"),
        ))
        .collect();
    // The largest allocation of the stream shows what it was for.
    let rows = facts.replay.allocations.rows();
    let largest = rows
        .iter()
        .filter(|row| facts.replay.lanes.get(row.lane).stream == main.stream && row.born > Tick::START)
        .max_by_key(|row| (row.size, std::cmp::Reverse(row.born)));
    let stack = largest.map(|row| row.stack).unwrap_or_default();
    let frame = facts.marks.site_frame(facts.recording, stack);
    let text = if releasable > Bytes::ZERO {
        format!(
            "Call `torch.cuda.empty_cache()` once after the work on {} is done: that gives {releasable} back. Or do \
             that work on the stream that the rest of the program uses.",
            stream_name(main.stream)
        )
    } else {
        format!(
            "Do the work of {} on the stream that the rest of the program uses: live blocks keep its segments from \
             being released.",
            stream_name(main.stream)
        )
    };
    Some(Finding {
        id: String::new(),
        kind: FindingKind::Stranded,
        title: match facts.stranded.len() {
            1 => format!("{bytes} are cached for a stream that no longer allocates"),
            count => format!("{bytes} are cached for {count} streams that no longer allocate"),
        },
        site: frame.map(|frame| site(facts.recording, frame)),
        stack: sites(facts.recording, stack),
        bytes,
        bytes_per_step: None,
        confidence: Confidence::High,
        evidence,
        remedy: Remedy { text, conf: None, saves_bytes: Some(releasable) },
        event: event_at(main.last_used),
        growth: Vec::new(),
    })
}
