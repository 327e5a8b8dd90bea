//! Errors as Python has them.

use std::fmt::{Display, Write as _};

use pyo3::prelude::*;

/// Why something could not be done, before the interpreter hears of it.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    /// What Python raised when it was asked, which is raised again.
    raised: Option<PyErr>,
}

#[expect(clippy::needless_pass_by_value, reason = "what `map_err` takes")]
impl Failure {
    fn new(error: &dyn std::error::Error, hint: Option<String>) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let _ = write!(message, "\n  cause: {error}");
            cause = error.source();
        }
        Self { message, hint, raised: None }
    }

    pub(crate) fn import(error: gpuheap_import::Error) -> Self {
        let is_missing = matches!(&error, gpuheap_import::Error::Open { source, .. }
            if source.kind() == std::io::ErrorKind::NotFound)
            && error.path().is_relative();
        let missing = || is_missing.then(|| "paths start from the folder in which the program runs".to_owned());
        let hint = error.hint().or_else(missing);
        Self::new(&error, hint)
    }

    pub(crate) fn explain(error: gpuheap_explain::Error) -> Self {
        let hint = match error {
            gpuheap_explain::Error::Nothing => {
                Some("the program allocated nothing on a GPU before the snapshot was taken".to_owned())
            }
            gpuheap_explain::Error::NoSuchDevice { .. } => Some("leave `device` out to take the fullest".to_owned()),
            gpuheap_explain::Error::NoSuchMoment { .. } => Some("leave `at` out to explain the peak".to_owned()),
            _ => None,
        };
        Self::new(&error, hint)
    }

    pub(crate) fn fit(error: gpuheap_fit::Error) -> Self {
        let hint = error.hint();
        Self::new(&error, hint)
    }

    pub(crate) fn report(error: gpuheap_report::Error) -> Self {
        Self::new(&error, None)
    }

    pub(crate) fn write(path: &std::path::Path, cause: &std::io::Error) -> Self {
        Self { message: format!("Failed to write `{}`\n  cause: {cause}", path.display()), hint: None, raised: None }
    }

    /// An argument that cannot be used.
    pub(crate) fn use_of(name: &str, value: &str, cause: &dyn Display) -> Self {
        Self { message: format!("Failed to read `{value}` as `{name}`\n  cause: {cause}"), hint: None, raised: None }
    }

    /// What Python raised when it was asked something.
    pub(crate) fn raised(error: PyErr, message: String) -> Self {
        Self { message, hint: None, raised: Some(error) }
    }

    /// A defect of ours.
    pub(crate) fn defect(what: &str) -> Self {
        let hint = "this is a defect of gpuheap; a report with the recording would help".to_owned();
        Self { message: format!("Failed in an unforeseen way\n  cause: {what}"), hint: Some(hint), raised: None }
    }

    /// The exception `gpuheap.Error`.
    pub(crate) fn into_error(self, py: Python<'_>) -> PyErr {
        if let Some(raised) = self.raised {
            return raised;
        }
        let made = || -> PyResult<PyErr> {
            let class = py.import("gpuheap.errors")?.getattr("Error")?;
            Ok(PyErr::from_value(class.call1((self.message, self.hint))?))
        };
        made().unwrap_or_else(|error| error)
    }
}
