//! The GPU of this machine, measured by a child, for the times of plans.

use std::ffi::OsStr;
use std::io::Write as _;

use gpuheap_fit::device::Device;

use super::calibration_path;
use super::error::ChildError;
use super::python::Python;
use crate::errors::Error;
use crate::progress::Progress;

/// Measures, and keeps what came of it where plans for that device look for it.
pub(crate) fn calibrate(device: &Device, python: &Python<'_>, progress: &mut Progress) -> Result<(), Error> {
    let what = "Failed to calibrate";
    let path = calibration_path(&device.name).ok_or_else(|| {
        Error::Child(ChildError::Failed {
            what: what.to_owned(),
            message: "there is no folder for settings".to_owned(),
            more: None,
            hint: Some("set `HOME` or `XDG_CONFIG_HOME`".to_owned()),
        })
    })?;
    let arguments = ["calibrate", "--device", &device.name, "--calibration"].map(OsStr::new);
    let arguments: Vec<&OsStr> = arguments.into_iter().chain([path.as_os_str()]).collect();
    progress.doing("Measuring the GPU");
    let (_, text) = python.run(&arguments, what, &[0], progress).map_err(Error::Child)?;
    progress.clear();
    // On standard error: standard output has the plan, if there is one. There is nowhere to say that this failed.
    let text = format!("{}\nKept in {}\n", text.trim_end(), path.display());
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
    Ok(())
}
