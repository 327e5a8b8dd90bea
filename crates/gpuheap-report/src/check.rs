//! The result of a check in the forms that people, services and programs read.

mod github;
mod junit;
mod text;

use gpuheap_explain::{Checked, Report};
use serde::Serialize;

use crate::error::Error;
use crate::{json, sentences};

pub use github::to_github;
pub use junit::to_junit;
pub use text::to_text;

/// The name and version of the JSON form.
pub const CHECK_SCHEMA: &str = "gpuheap.check/1";

/// What was checked, in one or several recordings.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CheckReport {
    /// [`CHECK_SCHEMA`].
    pub schema: &'static str,
    /// Whether everything holds.
    pub holds: bool,
    /// One entry for each device of each recording.
    pub recordings: Vec<CheckedRecording>,
}

/// What was checked for one device of one recording.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CheckedRecording {
    /// The file, or `-`.
    pub path: String,
    /// How many devices the recording has.
    pub devices: u64,
    /// The device.
    pub device: u32,
    /// One entry for each part of the budget.
    pub checks: Vec<Checked>,
}

impl CheckReport {
    /// The result of these checks.
    #[must_use]
    pub fn new(recordings: Vec<CheckedRecording>) -> Self {
        let holds = recordings.iter().all(|recording| recording.checks.iter().all(|check| check.holds));
        Self { schema: CHECK_SCHEMA, holds, recordings }
    }

    /// Each check with its recording.
    fn checks(&self) -> impl Iterator<Item = (&CheckedRecording, &Checked)> {
        self.recordings.iter().flat_map(|recording| recording.checks.iter().map(move |check| (recording, check)))
    }

    /// The checks that do not hold.
    fn violations(&self) -> impl Iterator<Item = (&CheckedRecording, &Checked)> {
        self.checks().filter(|(_, check)| !check.holds)
    }
}

impl CheckedRecording {
    /// What `checks` say about the device that `report` is about.
    #[must_use]
    pub fn new(report: &Report, checks: Vec<Checked>) -> Self {
        Self { path: report.source.path.clone(), devices: report.source.devices, device: report.source.device, checks }
    }

    /// The recording in words, with the device if there are several.
    fn name(&self) -> String {
        let file = sentences::file(&self.path);
        if self.devices > 1 { format!("{file} (device {})", self.device) } else { file.to_owned() }
    }
}

/// The result as one JSON object, with a line end after it.
pub fn to_json(report: &CheckReport) -> Result<String, Error> {
    json::write(report)
}
