//! A plan on a real GPU, by a child.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;

use gpuheap_fit::Fit;
use gpuheap_record::Bytes;
use serde::Deserialize;

use super::calibration_path;
use super::error::ChildError;
use super::python::Python;
use crate::errors::Error;
use crate::progress::Progress;

/// What the run came to.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(crate) struct Real {
    allocated_bytes: u64,
    reserved_bytes: u64,
    device_bytes: u64,
    step_us: f64,
}

/// What a verification says.
#[derive(Deserialize, Debug)]
pub(crate) struct Answer {
    real: Real,
    #[serde(default)]
    calibration: Option<serde_json::Value>,
    /// What compiled code may keep of the activations, where that had to be lowered.
    #[serde(default)]
    activation_memory_budget: Option<f64>,
}

/// Predicted and real.
#[derive(Debug)]
pub(crate) struct Verified {
    predicted: Real,
    real: Real,
    budget: u64,
    ran: bool,
    kept: Option<f64>,
}

impl Verified {
    /// Whether the run kept to the budget.
    pub(crate) fn fits(&self) -> bool {
        self.ran && self.real.device_bytes.max(self.real.reserved_bytes) <= self.budget
    }
}

/// Has the plan run two steps, and keeps what that says about the device.
pub(crate) fn verify(fit: &Fit, python: &Python<'_>, progress: &mut Progress) -> Result<Verified, Error> {
    let mut file = tempfile::NamedTempFile::new().map_err(|error| Error::Child(ChildError::Folder(error)))?;
    let plan = serde_json::to_vec(fit).map_err(|error| Error::Child(ChildError::NoAnswer(error)))?;
    file.write_all(&plan).map_err(|error| Error::Child(ChildError::Folder(error)))?;
    let calibration = calibration_path(&fit.device);
    let mut arguments: Vec<&OsStr> = vec![OsStr::new("verify"), file.path().as_os_str()];
    if let Some(path) = &calibration {
        arguments.extend([OsStr::new("--calibration"), path.as_os_str()]);
    }
    progress.doing("Verifying the plan on the GPU");
    let (code, text) = python.run(&arguments, "Failed to verify the plan", &[0, 1], progress).map_err(Error::Child)?;
    progress.clear();
    let answer: Answer = serde_json::from_str(&text).map_err(|error| Error::Child(ChildError::NoAnswer(error)))?;
    drop(answer.calibration);
    let predicted = Real {
        allocated_bytes: fit.peak.allocated_bytes,
        reserved_bytes: fit.peak.reserved_bytes,
        device_bytes: fit.peak.device_bytes,
        step_us: fit.step_us,
    };
    Ok(Verified {
        predicted,
        real: answer.real,
        budget: fit.budget_bytes,
        ran: code == 0,
        kept: answer.activation_memory_budget,
    })
}

/// Says what came of it, on standard error: standard output has the plan.
pub(crate) fn show(verified: &Verified) {
    let Verified { predicted, real, .. } = verified;
    let mut text = format!("{:<12}{:>12}{:>12}{:>9}\n", "", "predicted", "real", "error");
    // Writing to a string cannot fail.
    for (name, predicted, real) in [
        ("allocated", predicted.allocated_bytes, real.allocated_bytes),
        ("reserved", predicted.reserved_bytes, real.reserved_bytes),
        ("device", predicted.device_bytes, real.device_bytes),
    ] {
        if real > 0 {
            let (shown, of) = (Bytes::new(predicted).to_string(), Bytes::new(real).to_string());
            let _ = writeln!(text, "{name:<12}{shown:>12}{of:>12}{:>8.1} %", off(predicted as f64, real as f64));
        }
    }
    if real.step_us > 0.0 {
        let (shown, of) = (predicted.step_us / 1e3, real.step_us / 1e3);
        let _ = writeln!(text, "{:<12}{shown:>9.0} ms{of:>9.0} ms{:>8.1} %", "step", off(shown, of));
    }
    if let Some(kept) = verified.kept {
        let _ = writeln!(text, "This is with `activation_memory_budget` {kept}, which the plan has to be given.");
    }
    let held = if verified.fits() { "It fits." } else { "It does not fit." };
    text.push_str(held);
    text.push('\n');
    // There is nowhere to say that this failed.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// How far off a prediction is, in percent of the real.
fn off(predicted: f64, real: f64) -> f64 {
    (predicted - real) / real * 100.0
}
