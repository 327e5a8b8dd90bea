//! The lines of a program that a plan changes, by a child: only Python reads Python.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;

use gpuheap_fit::Fit;
use gpuheap_report::Changes;

use super::error::ChildError;
use super::python::Python;
use crate::errors::Error;
use crate::progress::Progress;

/// The changed lines; `plan` is where the changed program will find the plan.
pub(crate) fn changes(fit: &Fit, plan: &Path, python: &Python<'_>, progress: &mut Progress) -> Result<Changes, Error> {
    let mut file = tempfile::NamedTempFile::new().map_err(|error| Error::Child(ChildError::Folder(error)))?;
    let without = Fit { timelines: None, ..fit.clone() };
    let text = serde_json::to_vec(&without).map_err(|error| Error::Child(ChildError::NoAnswer(error)))?;
    file.write_all(&text).map_err(|error| Error::Child(ChildError::Folder(error)))?;
    let arguments = [OsStr::new("changes"), file.path().as_os_str(), OsStr::new("--plan"), plan.as_os_str()];
    let (_, text) =
        python.run(&arguments, "Failed to find the lines that change", &[0], progress).map_err(Error::Child)?;
    serde_json::from_str(&text).map_err(|error| Error::Child(ChildError::NoAnswer(error)))
}
