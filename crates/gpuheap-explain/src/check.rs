//! Limits that a recording must keep: for continuous integration.

use gpuheap_record::Bytes;
use serde::Serialize;

use crate::report::{Finding, FindingKind, Report, Site, VerdictKind};
use crate::steps::FEWEST_BOUNDARIES;

/// What a recording must keep to. `None` and `false` check nothing.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Budget {
    /// The most allocated memory.
    pub max_peak: Option<Bytes>,
    /// The most reserved memory.
    pub max_reserved: Option<Bytes>,
    /// No leak and no saw-tooth.
    pub no_leaks: bool,
    /// The largest share of the most reserved memory that was never in use, in percent.
    pub max_waste: Option<f64>,
}

/// One thing that was checked.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Checked {
    /// What: `max-peak`, `max-reserved`, `no-leaks`, `max-waste`; `oom` where the program ran out of memory.
    pub name: &'static str,
    /// What was found, in one sentence with its figures.
    pub message: String,
    /// Whether it holds.
    pub holds: bool,
    /// The line to look at, where it does not hold and one is known.
    pub site: Option<Site>,
}

/// Checks a report against a budget: one entry for each part of the budget that is set.
#[must_use]
pub fn check(report: &Report, budget: &Budget) -> Vec<Checked> {
    let peaks = &report.peaks;
    let site_of = |kind: FindingKind| report.findings.iter().find(|finding| finding.kind == kind)?.site.clone();
    let most = |name, what: &str, bytes: Bytes, limit: Bytes, site: Option<Site>| {
        let holds = bytes <= limit;
        let relation = if holds { "within" } else { "above" };
        let message = format!("{what} is {bytes} ({} bytes), {relation} {limit} ({} bytes)", bytes.get(), limit.get());
        Checked { name, message, holds, site: site.filter(|_| !holds) }
    };
    let mut checked = Vec::new();
    if let Some(limit) = budget.max_peak {
        let site = report.holders.iter().find_map(|holder| holder.site.clone());
        checked.push(most("max-peak", "the most allocated memory", peaks.allocated_bytes, limit, site));
    }
    if let Some(limit) = budget.max_reserved {
        let site = site_of(FindingKind::Fragmentation);
        checked.push(most("max-reserved", "the most reserved memory", peaks.reserved_bytes, limit, site));
    }
    if budget.no_leaks {
        checked.push(leaks(report));
    }
    if let Some(limit) = budget.max_waste {
        let waste = (peaks.reserved_bytes - peaks.active_bytes).share_of(peaks.reserved_bytes) * 100.0;
        let holds = waste <= limit;
        let relation = if holds { "within" } else { "above" };
        let message = format!("{waste:.1} % of the most reserved memory was never in use, {relation} {limit} %");
        let site = site_of(FindingKind::Fragmentation).filter(|_| !holds);
        checked.push(Checked { name: "max-waste", message, holds, site });
    }
    // A run that died is never within its budget.
    if report.verdict.kind == VerdictKind::Oom {
        let site = report.verdict.site.clone();
        checked.push(Checked { name: "oom", message: report.verdict.headline.clone(), holds: false, site });
    }
    checked
}

fn leaks(report: &Report) -> Checked {
    let is_leak = |finding: &&Finding| matches!(finding.kind, FindingKind::Leak | FindingKind::Sawtooth);
    match report.findings.iter().find(is_leak) {
        Some(finding) => {
            Checked { name: "no-leaks", message: finding.title.clone(), holds: false, site: finding.site.clone() }
        }
        // What cannot be judged does not pass: a gate must be able to fail.
        None if report.steps.count < FEWEST_BOUNDARIES as u64 => {
            let message =
                format!("leaks cannot be judged: {} steps seen, {FEWEST_BOUNDARIES} needed", report.steps.count);
            Checked { name: "no-leaks", message, holds: false, site: None }
        }
        None => {
            let message = format!("no leak was found in {} steps", report.steps.count);
            Checked { name: "no-leaks", message, holds: true, site: None }
        }
    }
}
