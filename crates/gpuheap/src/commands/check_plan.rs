//! `gpuheap check --plan`: whether a plan still fits, now that the model may have changed.

use std::path::Path;
use std::process::ExitCode;

use gpuheap_fit::device::Device;
use gpuheap_fit::plan::Limits;
use gpuheap_fit::{Fit, FitOptions, Lever};
use gpuheap_record::Bytes;
use serde::Serialize;

use crate::cli::{Check, Format};
use crate::errors::Error;
use crate::fit::python::Python;
use crate::fit::traces::{Child, read};
use crate::output;
use crate::own::Own;
use crate::progress::Progress;

/// It does not fit any more.
const VIOLATED: u8 = 1;

/// The result as JSON.
#[derive(Serialize)]
struct Checked {
    schema: &'static str,
    holds: bool,
    budget_bytes: u64,
    planned_bytes: u64,
    device_bytes: u64,
    high: u64,
}

pub(super) fn run(path: &Path, arguments: &Check, own: &Own) -> Result<ExitCode, Error> {
    let failed = |error| Error::Fit(error);
    let text =
        std::fs::read(path).map_err(|source| failed(gpuheap_fit::Error::Open { path: path.to_owned(), source }))?;
    let plan = Fit::from_json(&text, path).map_err(failed)?;
    let device = Device::find(&plan.device, None).map_err(failed)?;
    let mut levers: Vec<Lever> = plan.plan.iter().map(|planned| planned.lever.clone()).collect();
    let spilled = levers.iter().find_map(|lever| match lever {
        Lever::Spill { bytes } => Some(*bytes),
        _ => None,
    });
    levers.retain(|lever| !matches!(lever, Lever::Spill { .. }));
    let progress = Progress::long(path, arguments.format == Format::Json);
    let python = Python { given: arguments.python.as_deref(), own, timeout: None };
    let options = FitOptions {
        device,
        calibration: None,
        budget: Some(plan.budget_bytes),
        limits: Limits {
            conf: Some(plan.conf.clone()).filter(|conf| !conf.is_empty()),
            gpus: plan.gpus,
            batch: Some(plan.batch.size).filter(|&size| size > 0),
            set: levers,
            without: vec!["all".to_owned()],
            allow: Vec::new(),
            workspace: None,
        },
        front: false,
        timelines: false,
    };
    let make = plan.source.make.as_str();
    let mut child = Child { make, device: &options.device, keep: None, python: &python, progress };
    let now = if arguments.traces.is_empty() {
        gpuheap_fit::fit_traced(&mut child, &options)?
    } else {
        gpuheap_fit::fit(&read(&arguments.traces)?, &options, &mut |_, _| {}).map_err(Error::Fit)?
    };
    child.progress.clear();
    let high = now.peak.high.saturating_sub(spilled.unwrap_or(0));
    let checked = Checked {
        schema: "gpuheap.fit.check/1",
        holds: high <= plan.budget_bytes,
        budget_bytes: plan.budget_bytes,
        planned_bytes: plan.peak.device_bytes,
        device_bytes: now.peak.device_bytes,
        high,
    };
    output::write(arguments.output.as_deref(), said(path, &checked, arguments.format).as_bytes())?;
    Ok(if checked.holds { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) })
}

fn said(path: &Path, checked: &Checked, format: Format) -> String {
    let name = gpuheap_report::sanitize(&path.to_string_lossy());
    let [budget, planned, now, high] =
        [checked.budget_bytes, checked.planned_bytes, checked.device_bytes, checked.high].map(Bytes::new);
    let sentence = if checked.holds {
        format!("{name}: fits in {budget}: {now}, at most {high} (planned {planned})")
    } else {
        let more = if checked.planned_bytes <= checked.budget_bytes { " any more" } else { "" };
        format!("{name}: does not fit in {budget}{more}: {now}, up to {high} (planned {planned})")
    };
    match format {
        Format::Json => {
            let mut text = serde_json::to_string_pretty(checked).unwrap_or_default();
            text.push('\n');
            text
        }
        Format::Github if !checked.holds => format!("::error title=gpuheap fit::{sentence}\n"),
        Format::Junit => {
            let text = gpuheap_report::text::escape_html(&sentence);
            let (failures, inner) =
                if checked.holds { (0, String::new()) } else { (1, format!("<failure message=\"{text}\"/>")) };
            format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites><testsuite name=\"gpuheap fit\" tests=\"1\" \
                 failures=\"{failures}\"><testcase name=\"{}\">{inner}</testcase></testsuite></testsuites>\n",
                gpuheap_report::text::escape_html(&name)
            )
        }
        _ => format!("{sentence}\n"),
    }
}
