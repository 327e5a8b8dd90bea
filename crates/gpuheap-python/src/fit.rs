//! Plans for models that Python has traced.

use std::path::{Path, PathBuf};

use gpuheap_fit::{Fit, FitOptions, fit, trace};
use gpuheap_report::Changes;
use pyo3::FromPyObject;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};

use crate::failure::Failure;

/// One text of a trace.
#[derive(FromPyObject, Debug)]
pub(crate) enum Text {
    Bytes(PyBackedBytes),
    Text(PyBackedStr),
}

/// A trace, or several of one model.
#[derive(FromPyObject, Debug)]
pub(crate) enum Traces {
    One(Text),
    Many(Vec<Text>),
}

/// The plan as JSON.
pub(crate) fn plan(traces: &Traces, options: &str) -> Result<String, Failure> {
    let options = FitOptions::from_json(options).map_err(Failure::fit)?;
    let read = |(number, text): (usize, &Text)| {
        let bytes: &[u8] = match text {
            Text::Bytes(bytes) => bytes,
            Text::Text(text) => text.as_bytes(),
        };
        let path = PathBuf::from(format!("trace {}", number + 1));
        trace::parse(bytes).map_err(|cause| Failure::fit(gpuheap_fit::Error::Trace { path, cause }))
    };
    let traces = match traces {
        Traces::One(text) => vec![read((0, text))?],
        Traces::Many(texts) => texts.iter().enumerate().map(read).collect::<Result<_, _>>()?,
    };
    let variants = gpuheap_fit::plan::variants(traces).map_err(Failure::fit)?;
    let answer = fit(&variants, &options, &mut |_, _| {}).map_err(Failure::fit)?;
    gpuheap_report::to_json(&answer).map_err(Failure::report)
}

/// The page of a plan that is JSON; `changes` are the changed lines of the program and the line that starts it.
pub(crate) fn html(plan: &str, changes: Option<(String, String)>) -> Result<String, Failure> {
    let plan = Fit::from_json(plan.as_bytes(), Path::new("plan")).map_err(Failure::fit)?;
    let changes = changes.map(|(diff, start)| Changes { diff, start });
    gpuheap_report::fit_to_html(&plan, changes.as_ref()).map_err(Failure::report)
}
