//! Plans for models that Python has traced.

use std::path::{Path, PathBuf};

use gpuheap_fit::{Fit, FitOptions, Lever, Trace, Tracer, fit, fit_traced, trace};
use gpuheap_report::Changes;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::{FromPyObject, PyErr};

use crate::failure::Failure;
use crate::work::Asker;

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

impl Text {
    fn parse(&self, name: &str) -> Result<Trace, gpuheap_fit::Error> {
        let bytes: &[u8] = match self {
            Self::Bytes(bytes) => bytes,
            Self::Text(text) => text.as_bytes(),
        };
        trace::parse(bytes).map_err(|cause| gpuheap_fit::Error::Trace { path: PathBuf::from(name), cause })
    }
}

/// The plan as JSON, from traces that there are.
pub(crate) fn plan(traces: &Traces, options: &str) -> Result<String, Failure> {
    let options = FitOptions::from_json(options).map_err(Failure::fit)?;
    let read = |(number, text): (usize, &Text)| text.parse(&format!("trace {}", number + 1)).map_err(Failure::fit);
    let traces = match traces {
        Traces::One(text) => vec![read((0, text))?],
        Traces::Many(texts) => texts.iter().enumerate().map(read).collect::<Result<_, _>>()?,
    };
    let variants = gpuheap_fit::plan::variants(traces).map_err(Failure::fit)?;
    let answer = fit(&variants, &options, &mut |_, _| {}).map_err(Failure::fit)?;
    gpuheap_report::to_json(&answer).map_err(Failure::report)
}

/// What Python is asked for: a trace with levers, as JSON, at a batch size or at the program's own.
pub(crate) type Question = (String, Option<u64>);
/// The trace, or what was raised and its text.
pub(crate) type Answer = Result<Text, (PyErr, String)>;

/// Has Python trace the program.
struct Asked<'a>(&'a Asker<Question, Answer>);

/// Why there is no trace, or no plan.
#[derive(Debug)]
enum Missing {
    Fit(gpuheap_fit::Error),
    Raised(PyErr, String),
    /// Nobody waits any more.
    Gone,
}

impl From<gpuheap_fit::Error> for Missing {
    fn from(error: gpuheap_fit::Error) -> Self {
        Self::Fit(error)
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fit(error) => error.fmt(form),
            Self::Raised(_, text) => form.write_str(text),
            Self::Gone => form.write_str("interrupted"),
        }
    }
}

impl Tracer for Asked<'_> {
    type Error = Missing;

    fn trace(&mut self, levers: &[Lever], batch: Option<u64>) -> Result<Trace, Missing> {
        // Levers are plain data, which always has a JSON form.
        let levers = serde_json::to_string(levers).unwrap_or_default();
        let answer = self.0.ask((levers, batch)).ok_or(Missing::Gone)?;
        let text = answer.map_err(|(error, text)| Missing::Raised(error, text))?;
        Ok(text.parse("the program")?)
    }

    fn ends(&self, error: &Missing) -> bool {
        matches!(error, Missing::Gone)
    }
}

/// The plan as JSON, of a program that Python traces when it is asked to.
pub(crate) fn traced(asker: &Asker<Question, Answer>, options: &str) -> Result<String, Failure> {
    let options = FitOptions::from_json(options).map_err(Failure::fit)?;
    let answer = fit_traced(&mut Asked(asker), &options).map_err(|error| match error {
        Missing::Fit(error) => Failure::fit(error),
        Missing::Raised(error, text) => Failure::raised(error, text),
        Missing::Gone => Failure::defect("nobody waits for the plan"),
    })?;
    gpuheap_report::to_json(&answer).map_err(Failure::report)
}

/// The page of a plan that is JSON; `changes` are the changed lines of the program and the line that starts it.
pub(crate) fn html(plan: &str, changes: Option<(String, String)>) -> Result<String, Failure> {
    let plan = Fit::from_json(plan.as_bytes(), Path::new("plan")).map_err(Failure::fit)?;
    let changes = changes.map(|(diff, start)| Changes { diff, start });
    gpuheap_report::fit_to_html(&plan, changes.as_ref()).map_err(Failure::report)
}
