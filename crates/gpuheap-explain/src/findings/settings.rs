//! Traps in the recorded settings: what does nothing, what is read otherwise than it looks, what does harm.

use gpuheap_alloc::torch::Config;
use gpuheap_record::{Bytes, EventKind};

use super::{Facts, percent, plural};
use crate::report::{Confidence, Finding, FindingKind, Remedy};

/// Settings that reserve at least this share more than stock settings do harm.
const SHARE: f64 = 0.05;

pub(crate) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let config = Config::from(&facts.recording.settings);
    if facts.device.events.is_empty() || config == Config::default() {
        return Vec::new();
    }
    let all = [
        idle_collection(facts, &config),
        split_and_expandable(facts, &config),
        misread(facts),
        harmful(facts, &config),
    ];
    all.into_iter().flatten().collect()
}

fn finding(title: String, bytes: Bytes, evidence: Vec<String>, remedy: Remedy) -> Finding {
    Finding {
        id: String::new(),
        kind: FindingKind::Settings,
        title,
        site: None,
        stack: Vec::new(),
        bytes,
        bytes_per_step: None,
        confidence: Confidence::High,
        evidence,
        remedy,
        event: None,
        growth: Vec::new(),
    }
}

fn advice(text: &str) -> Remedy {
    Remedy { text: text.to_owned(), conf: None, saves_bytes: None }
}

/// A collection threshold works only under a memory fraction.
fn idle_collection(facts: &Facts<'_>, config: &Config) -> Option<Finding> {
    let went_back = facts.device.events.kinds().contains(&EventKind::SegmentFree);
    if config.garbage_collection_threshold <= 0.0 || went_back || config.memory_fraction < 1.0 {
        return None;
    }
    let made = facts.replay.segments.len();
    Some(finding(
        format!("`garbage_collection_threshold:{}` did nothing", config.garbage_collection_threshold),
        Bytes::ZERO,
        vec![format!("{} came from the driver, none was ever collected", plural(made, "segment"))],
        advice(
            "The threshold is a share of a cap: set one with `torch.cuda.set_per_process_memory_fraction(0.9)` or \
             `per_process_memory_fraction:0.9`, or remove the threshold.",
        ),
    ))
}

/// Blocks above the split limit are never cut, also at the end of a segment that grows: it grows on and on.
fn split_and_expandable(facts: &Facts<'_>, config: &Config) -> Option<Finding> {
    if config.max_split == u64::MAX || !config.expandable {
        return None;
    }
    let waste = facts.replay.peaks.reserved_bytes - facts.replay.peaks.active_bytes;
    Some(finding(
        "`max_split_size_mb` together with `expandable_segments:True` can make reserved memory grow without end"
            .to_owned(),
        Bytes::ZERO,
        vec![format!("{waste} of {} reserved were never in use in this recording", facts.replay.peaks.reserved_bytes)],
        advice("Remove `max_split_size_mb`: expandable segments do not need it."),
    ))
}

/// Values that PyTorch reads otherwise than they look.
fn misread(facts: &Facts<'_>) -> Option<Finding> {
    let mut evidence = Vec::new();
    for setting in facts.recording.settings.conf.split(',') {
        let Some((name, value)) = setting.split_once(':') else { continue };
        let (name, value) = (name.trim(), value.trim());
        if name.ends_with("_mb") && value.contains('.') {
            let read = value.split('.').next().unwrap_or(value);
            evidence.push(format!("`{name}:{value}` is read as {read}"));
        }
        if name == "roundup_power2_divisions" && value == "1" {
            evidence.push(format!("`{name}:1` rounds nothing: it is the same as not setting it"));
        }
    }
    (!evidence.is_empty()).then(|| {
        let title = "a setting is read otherwise than it looks".to_owned();
        finding(title, Bytes::ZERO, evidence, advice("Write what is meant, or remove it."))
    })
}

/// Settings under which the recorded program reserves more than with stock settings.
fn harmful(facts: &Facts<'_>, config: &Config) -> Option<Finding> {
    // A threshold acts only under a cap, which the recording does not name: it cannot be held against it.
    if config.garbage_collection_threshold > 0.0 || !facts.replay.complete {
        return None;
    }
    let rows = &facts.settings().rows;
    let recorded = rows.first()?;
    let stock = rows.iter().skip(1).find(|row| row.conf.is_empty() && !row.oom)?;
    let cost = recorded.peak_reserved_bytes - stock.peak_reserved_bytes;
    if cost.share_of(recorded.peak_reserved_bytes) < SHARE {
        return None;
    }
    Some(finding(
        format!("`{}` costs {cost}", recorded.conf),
        cost,
        vec![format!(
            "in replay the same run reserves {} with stock settings, {} with these ({} more)",
            stock.peak_reserved_bytes,
            recorded.peak_reserved_bytes,
            percent(cost.share_of(stock.peak_reserved_bytes))
        )],
        Remedy { text: "Remove these settings.".to_owned(), conf: Some(String::new()), saves_bytes: Some(cost) },
    ))
}
