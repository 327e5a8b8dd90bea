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
        FindingKind::GrowingWorkingSet | FindingKind::DeferredFrees => None,
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
            confidence: finding.confidence,
        },
        None => healthy(facts, findings),
    }
}

fn headline(finding: &Finding, kind: VerdictKind) -> String {
    let name = match kind {
        VerdictKind::Healthy => "Healthy",
        VerdictKind::Leak => "Leak",
        VerdictKind::Sawtooth => "Saw-tooth",
        VerdictKind::Fragmentation => "Fragmentation",
        VerdictKind::Stranded => "Stranded cache",
        VerdictKind::Oom => "Out of memory",
    };
    format!("{name}: {}{}", finding.title, finding.site.as_ref().map_or_else(String::new, place))
}

fn place(site: &Site) -> String {
    format!(", at {}:{} in `{}`", file_name(&site.file), site.line, site.function)
}

fn healthy(facts: &Facts<'_>, findings: &[Finding]) -> Verdict {
    let peaks = &facts.replay.peaks;
    let waste = (peaks.reserved_bytes - peaks.active_bytes).share_of(peaks.reserved_bytes);
    let memory = format!(
        "{} allocated and {} reserved at most ({} never in use)",
        peaks.allocated_bytes,
        peaks.reserved_bytes,
        percent(waste)
    );
    let nothing_to_judge = facts.device.events.is_empty();
    let too_short = leak_too_short(facts.steps);
    let judgement = match (&too_short, facts.leaks.first()) {
        _ if nothing_to_judge => "the recording has no history, only the final state is known".to_owned(),
        (Some(why), _) => why.clone(),
        (None, Some((steps, analysis))) => {
            let what = if steps.unit.starts_with("call of") { "turn" } else { "step" };
            let count = plural(analysis.window.judged.len(), what);
            match analysis.oldest_freed {
                0 | 1 => format!("no leak in {count}: nothing that a step made outlives the next one"),
                age => format!("no leak in {count}: what a step made is gone after at most {}", plural(age, "step")),
            }
        }
        (None, None) => "no leak found".to_owned(),
    };
    let and_oom = if findings.iter().any(|finding| finding.kind == FindingKind::Oom) {
        "; an allocation failed and the program went on"
    } else {
        ""
    };
    Verdict {
        kind: VerdictKind::Healthy,
        headline: format!("Healthy: {memory}; {judgement}{and_oom}"),
        site: None,
        confidence: if nothing_to_judge {
            Confidence::Low
        } else if too_short.is_some() || facts.replay.unexplained > 0 {
            Confidence::Medium
        } else {
            Confidence::High
        },
    }
}
