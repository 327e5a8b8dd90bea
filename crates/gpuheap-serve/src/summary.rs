//! What the list of recordings says about each: it stays when the recording is dropped from memory.

use gpuheap_explain::{Finding, Peaks, Report, Verdict};
use gpuheap_record::Bytes;
use serde::Serialize;

/// One device of a recording in the list.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Summary {
    /// The device's ordinal.
    pub(crate) device: u32,
    /// How many devices the recording has.
    pub(crate) devices: u64,
    /// Events of this device.
    pub(crate) events: u64,
    /// Whether the history starts at the first allocation.
    pub(crate) complete: bool,
    pub(crate) verdict: Verdict,
    /// The verdict's kind, for people.
    pub(crate) verdict_title: &'static str,
    pub(crate) peaks: Peaks,
    pub(crate) steps: u64,
    /// What one step is, in words.
    pub(crate) step_unit: String,
    /// Bytes by which the fastest growing finding grows each step; 0 where nothing grows.
    pub(crate) growth_bytes_per_step: Bytes,
    /// What is wrong: the number of findings.
    pub(crate) findings: usize,
}

impl Summary {
    pub(crate) fn of(report: &Report) -> Self {
        Self {
            device: report.source.device,
            devices: report.source.devices,
            events: report.source.device_events,
            complete: report.source.complete,
            verdict_title: report.verdict.kind.title(),
            verdict: report.verdict.clone(),
            peaks: report.peaks,
            steps: report.steps.count,
            step_unit: report.steps.unit.clone(),
            growth_bytes_per_step: growth(&report.findings),
            findings: report.findings.len(),
        }
    }
}

fn growth(findings: &[Finding]) -> Bytes {
    findings.iter().filter_map(|finding| finding.bytes_per_step).max().unwrap_or_default()
}
