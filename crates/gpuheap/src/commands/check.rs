//! `gpuheap check`: whether recordings keep to a budget.

use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::process::ExitCode;

use gpuheap_explain::{Budget, Options, Report};
use gpuheap_record::Recording;
use gpuheap_report::{CheckReport, CheckedRecording, check};

use crate::budget::budget;
use crate::cli::{Check, Format};
use crate::errors::Error;
use crate::own::Own;
use crate::{input, output};

/// Something does not keep to the budget.
const VIOLATED: u8 = 1;

pub(super) fn run(arguments: &Check, own: &Own) -> Result<ExitCode, Error> {
    if let Some(plan) = &arguments.plan {
        return super::check_plan::run(plan, arguments, own);
    }
    let budget = budget(arguments)?;
    let mut recordings = Vec::new();
    for file in &arguments.files {
        recordings.extend(checked(file, &budget)?);
    }
    let report = CheckReport::new(recordings);
    let text = match arguments.format {
        Format::Text => check::to_text(&report),
        Format::Github => check::to_github(&report, &root()),
        Format::Junit => check::to_junit(&report),
        Format::Json => check::to_json(&report).map_err(Error::Report)?,
    };
    output::write(arguments.output.as_deref(), text.as_bytes())?;
    Ok(if report.holds { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) })
}

/// The checks of all devices of one file.
fn checked(file: &Path, budget: &Budget) -> Result<Vec<CheckedRecording>, Error> {
    let (recording, mut progress) = input::read(file, !stdout().is_terminal()).map_err(|error| match error {
        Error::ManyRecordings { path, found } => Error::ManyToCheck { path, count: found.len() },
        other => other,
    })?;
    progress.explaining(recording.event_count());
    let reports = reports(&recording)?;
    Ok(reports.iter().map(|report| CheckedRecording::new(report, gpuheap_explain::check(report, budget))).collect())
}

fn reports(recording: &Recording) -> Result<Vec<Report>, Error> {
    let explain =
        |device| gpuheap_explain::explain(recording, &Options { device, ..Options::default() }).map_err(Error::Explain);
    // A snapshot names all devices of the machine, also those that the program never used.
    let used = recording.devices.iter().filter(|device| !device.events.is_empty() || !device.segments.is_empty());
    let devices: Vec<u32> = used.map(|device| device.device.get()).collect();
    if devices.is_empty() {
        return Ok(vec![explain(None)?]);
    }
    devices.into_iter().map(|device| explain(Some(device))).collect()
}

/// The folder from which GitHub names files: the checkout's, else the one that we are in.
fn root() -> String {
    let here = || std::env::current_dir().map(|folder| folder.to_string_lossy().into_owned()).ok();
    std::env::var("GITHUB_WORKSPACE").ok().filter(|folder| !folder.is_empty()).or_else(here).unwrap_or_default()
}
