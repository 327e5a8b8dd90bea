//! `gpuheap fit`: whether a model fits a budget, and what makes it fit.

use std::path::Path;
use std::process::ExitCode;

use gpuheap_fit::device::{Calibration, Device};
use gpuheap_fit::plan::Limits;
use gpuheap_fit::{Fit, FitOptions};

use crate::cli::{self, Color};
use crate::errors::Error;
use crate::fit::python::Python;
use crate::fit::traces::{Child, read};
use crate::fit::{calibrate, calibration_path, changes, verify};
use crate::output;
use crate::own::Own;
use crate::progress::Progress;

/// A verification found that it does not fit.
const DISAGREES: u8 = 1;

pub(super) fn run(arguments: &cli::Fit, own: &Own, color: Color) -> Result<ExitCode, Error> {
    let mut progress = Progress::long(Path::new("trace"), output::is_quiet(&arguments.form));
    let device = Device::find(&arguments.device, arguments.device_file.as_deref()).map_err(Error::Fit)?;
    // Settings that PyTorch refuses are told before minutes of tracing.
    gpuheap_fit::replay::config(arguments.conf.as_deref().unwrap_or("")).map_err(Error::Fit)?;
    let python = Python {
        given: arguments.python.as_deref(),
        own,
        timeout: arguments.timeout.map(std::time::Duration::from_secs),
    };
    if arguments.calibrate {
        calibrate::calibrate(&device, &python, &mut progress)?;
        if arguments.make.is_none() && arguments.traces.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let options = options(arguments, device)?;
    let make = arguments.make.as_deref().unwrap_or_default();
    let mut child =
        Child { make, device: &options.device, keep: arguments.keep_trace.as_deref(), python: &python, progress };
    let mut fit = if arguments.traces.is_empty() {
        gpuheap_fit::fit_traced(&mut child, &options)?
    } else {
        let variants = read(&arguments.traces)?;
        let progress = &mut child.progress;
        gpuheap_fit::fit(&variants, &options, &mut |done, of| progress.planning(done, of)).map_err(Error::Fit)?
    };
    let mut progress = child.progress;
    if let Some(path) = &arguments.html {
        let page = page(&fit, arguments, &python, &mut progress)?;
        progress.clear();
        output::write(file(path), page.as_bytes())?;
    }
    progress.clear();
    // A page of its own has it: text and JSON are as they are without.
    fit.timelines = None;
    if let Some(path) = &arguments.front_svg {
        output::write(file(path), gpuheap_report::front_to_svg(&fit).as_bytes())?;
    }
    if ![&arguments.html, &arguments.front_svg].into_iter().flatten().any(|path| file(path).is_none()) {
        output::show(&fit, &arguments.form, false, color)?;
    }
    if arguments.verify {
        let verified = verify::verify(&fit, &python, &mut progress)?;
        verify::show(&verified);
        return Ok(if verified.fits() { ExitCode::SUCCESS } else { ExitCode::from(DISAGREES) });
    }
    Ok(ExitCode::SUCCESS)
}

/// The file that is meant; none for standard output.
fn file(path: &Path) -> Option<&Path> {
    Some(path).filter(|path| path.as_os_str() != "-")
}

/// The page, with the lines that change where there is a program to change.
fn page(fit: &Fit, arguments: &cli::Fit, python: &Python<'_>, progress: &mut Progress) -> Result<String, Error> {
    if !arguments.traces.is_empty() || fit.plan.is_empty() {
        return gpuheap_report::fit_to_html(fit, None).map_err(Error::Report);
    }
    let plan = arguments.form.output.as_deref().filter(|_| arguments.form.json).unwrap_or(Path::new("plan.json"));
    match changes::changes(fit, plan, python, progress) {
        Ok(changes) => gpuheap_report::fit_to_html(fit, Some(&changes)),
        Err(error) => {
            // All else is there: a page without them is worth more than none.
            let mut fit = fit.clone();
            fit.notes.push(format!("the lines that change in the program are not known: {error}"));
            gpuheap_report::fit_to_html(&fit, None)
        }
    }
    .map_err(Error::Report)
}

fn options(arguments: &cli::Fit, device: Device) -> Result<FitOptions, Error> {
    let path = calibration_path(&device.name);
    let kept = path.filter(|path| path.is_file());
    let calibration = kept.map(|path| Calibration::read(&path)).transpose().map_err(Error::Fit)?;
    Ok(FitOptions {
        device: calibration.iter().fold(device, |device, known| known.applied_to(device)),
        calibration,
        budget: arguments.budget.map(gpuheap_record::Bytes::get),
        limits: Limits {
            conf: arguments.conf.clone(),
            gpus: arguments.gpus,
            batch: arguments.batch,
            set: arguments.set.clone(),
            without: arguments.without.clone(),
            allow: arguments.allow.clone(),
            workspace: std::env::var("CUBLAS_WORKSPACE_CONFIG").ok(),
        },
        front: arguments.front || arguments.front_svg.is_some() || arguments.html.is_some(),
        timelines: arguments.html.is_some(),
    })
}
