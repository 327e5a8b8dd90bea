//! The verdict: the first sentence of a report.

use crate::findings::{Facts, file_name, leak_too_short, oom_went_on, percent, plural};
use crate::report::{Confidence, Finding, FindingKind, Site, Verdict, VerdictKind};

/// What the findings come to.
pub(crate) fn verdict(facts: &Facts<'_>, findings: &[Finding]) -> Verdict {
    let kind_of = |finding: &Finding| match finding.kind {
        FindingKind::Oom => Some(VerdictKind::Oom),
        FindingKind::Leak => Some(VerdictKind::Leak),
        FindingKind::Sawtooth => Some(VerdictKind::Sawtooth),
        FindingKind::Stranded => Some(VerdictKind::Stranded),
        FindingKind::Fragmentation => Some(VerdictKind::Fragmentation),
        FindingKind::GrowingWorkingSet | FindingKind::Kept | FindingKind::DeferredFrees | FindingKind::Settings => None,
    };
    let survived_oom = |finding: &Finding| {
        finding.kind == FindingKind::Oom && facts.oom.as_ref().is_some_and(|&(tick, _)| oom_went_on(facts, tick))
    };
    let main =
        findings.iter().filter(|finding| !survived_oom(finding)).find_map(|finding| Some((finding, kind_of(finding)?)));
    match main {
        Some((finding, kind)) => Verdict {
            kind,
            headline: headline(finding, kind),
            site: finding.site.clone(),
            remedy: finding.remedy.text.clone(),
            confidence: finding.confidence,
        },
        None => healthy(facts, findings),
    }
}

fn headline(finding: &Finding, kind: VerdictKind) -> String {
    format!("{}: {}{}", kind.title(), finding.title, finding.site.as_ref().map_or_else(String::new, place))
}

fn place(site: &Site) -> String {
    if site.file.is_empty() {
        return format!(", by {}", site.function);
    }
    format!(", at {}:{} in `{}`", file_name(&site.file), site.line, site.function)
}

fn healthy(facts: &Facts<'_>, findings: &[Finding]) -> Verdict {
    let peaks = &facts.replay.peaks;
    let waste = (peaks.reserved_bytes - peaks.active_bytes).share_of(peaks.reserved_bytes);
    let waits = if peaks.active_bytes.share_of(peaks.allocated_bytes) > 1.05 {
        format!(" ({} with what waits for other streams)", peaks.active_bytes)
    } else {
        String::new()
    };
    let memory = format!(
        "{} allocated{waits} and {} reserved at most, {} of it never in use",
        peaks.allocated_bytes,
        peaks.reserved_bytes,
        percent(waste)
    );
    let nothing_to_judge = facts.device.events.is_empty();
    let too_short = leak_too_short(facts.steps);
    let analysis = facts.leaks.first().map(|(_, analysis)| analysis);
    let judgement = match (&too_short, analysis) {
        _ if nothing_to_judge => "the recording has no history, only the final state is known".to_owned(),
        (Some(why), _) => why.clone(),
        (None, Some(analysis)) => {
            format!("no leak in {} judged", plural(analysis.window.judged.len(), "step"))
        }
        (None, None) => "no leak found".to_owned(),
    };
    let has = |kind: FindingKind| findings.iter().find(|finding| finding.kind == kind);
    let besides = [
        has(FindingKind::GrowingWorkingSet).map(|finding| finding.title.clone()),
        has(FindingKind::Kept).map(|finding| finding.title.clone()),
        has(FindingKind::Oom).map(|_| "an allocation failed and the program went on".to_owned()),
    ];
    let besides: Vec<String> = besides.into_iter().flatten().collect();
    let remedy = match () {
        () if nothing_to_judge => {
            "Record a history: call `torch.cuda.memory._record_memory_history()` before the model is built."
        }
        () if facts.steps.ticks.is_empty() => {
            "Nothing that this recording shows. To judge leaks, record at least ten steps of a loop."
        }
        () if too_short.is_some() => "Nothing yet: record at least ten steps to judge leaks.",
        () if besides.is_empty() => "Nothing: this recording shows no fault.",
        () => "Nothing that must be changed.",
    };
    let confidence = match analysis {
        _ if nothing_to_judge => Confidence::Low,
        None => Confidence::Medium,
        Some(_) if facts.replay.unexplained > 0 || !besides.is_empty() => Confidence::Medium,
        Some(analysis) => analysis.confidence(),
    };
    Verdict {
        kind: VerdictKind::Healthy,
        headline: format!("Healthy: {}", [vec![memory, judgement], besides].concat().join("; ")),
        site: None,
        remedy: remedy.to_owned(),
        confidence,
    }
}
