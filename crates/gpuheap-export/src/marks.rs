//! What happened at one moment: named moments, findings, the ends of steps.

use gpuheap_explain::{Analysis, FindingKind, MomentName, Site};

use crate::names::harmless;

/// Something to point at.
pub(crate) struct Mark {
    pub(crate) tick: u32,
    pub(crate) kind: MarkKind,
    pub(crate) name: String,
    /// Names and values.
    pub(crate) details: Vec<(&'static str, Detail)>,
}

/// The sorts of mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MarkKind {
    Moment,
    Finding,
    Step,
}

impl MarkKind {
    pub(crate) const ALL: [Self; 3] = [Self::Moment, Self::Finding, Self::Step];

    /// What to call all of them.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Moment => "moments",
            Self::Finding => "findings",
            Self::Step => "steps",
        }
    }
}

/// A value.
pub(crate) enum Detail {
    Bytes(u64),
    Text(String),
}

/// All marks by their ticks; at the same tick moments first.
pub(crate) fn marks(analysis: &Analysis) -> Vec<Mark> {
    let report = analysis.report();
    let mut marks = Vec::new();
    for (name, tick) in analysis.moments() {
        let (allocated, reserved) = analysis.counters(tick);
        let mut details =
            vec![("allocated_bytes", Detail::Bytes(allocated)), ("reserved_bytes", Detail::Bytes(reserved))];
        if let (MomentName::Oom, Some(oom)) = (name, &report.oom) {
            details.push(("asked_bytes", Detail::Bytes(oom.asked_bytes.get())));
            details.extend(oom.site.iter().map(|site| ("site", Detail::Text(site_text(site)))));
        }
        let name = match name {
            MomentName::Peak => "peak of allocated memory",
            MomentName::PeakReserved => "peak of reserved memory",
            MomentName::Oom => "out of memory",
            MomentName::End => "end",
        };
        marks.push(Mark { tick, kind: MarkKind::Moment, name: name.to_owned(), details });
    }
    for finding in &report.findings {
        // An OOM is a moment already.
        let Some(event) = finding.event.filter(|_| finding.kind != FindingKind::Oom) else { continue };
        let tick = u32::try_from(event.saturating_add(1)).unwrap_or(u32::MAX).min(analysis.last_tick());
        let mut details = vec![
            ("id", Detail::Text(finding.id.clone())),
            ("bytes", Detail::Bytes(finding.bytes.get())),
            ("remedy", Detail::Text(harmless(&finding.remedy.text, None).into_owned())),
        ];
        details.extend(finding.site.iter().map(|site| ("site", Detail::Text(site_text(site)))));
        let name = harmless(&finding.title, None).into_owned();
        marks.push(Mark { tick, kind: MarkKind::Finding, name, details });
    }
    for (index, tick) in analysis.step_ticks().into_iter().enumerate() {
        let name = format!("step {} ends", index + 1);
        marks.push(Mark { tick, kind: MarkKind::Step, name, details: Vec::new() });
    }
    marks.sort_by_key(|mark| mark.tick);
    marks
}

/// A site as it is shown: `train (train.py:16)`.
pub(crate) fn site_text(site: &Site) -> String {
    let (function, file) = (harmless(&site.function, None), harmless(&site.file, None));
    format!("{function} ({file}:{})", site.line)
}

/// A tick in words.
pub(crate) fn moment_text(tick: u32) -> String {
    match tick.checked_sub(1) {
        Some(event) => format!("after event {event}"),
        None => "before the first event".to_owned(),
    }
}
