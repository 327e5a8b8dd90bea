//! The extension module `gpuheap._core`: the thin face of the Rust crates for Python. What it offers, with the texts that
//! users read, is declared in `python/gpuheap/_core.pyi`.
//!
//! Long work runs in a thread of its own without the interpreter's lock, see `work.rs`; errors become `gpuheap.Error`, see
//! `failure.rs`. The only `unsafe` code is what `PyO3` generates.

mod failure;
mod files;
mod fit;
mod record;
mod watch;
mod work;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use gpuheap_explain::{Analysis, MomentName, Options};
use gpuheap_record::{Bytes, Recording};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::failure::Failure;

/// A recording of a program that leaks, for `python -m gpuheap demo`.
static DEMO: &[u8] = include_bytes!("../../../examples/loss_accumulate.pickle.gz");

/// Where a recording comes from.
#[derive(FromPyObject)]
enum Source {
    Bytes(PyBackedBytes),
    Path(PathBuf),
}

/// An amount of memory: a number of bytes, or text such as `80GiB`.
#[derive(FromPyObject)]
enum Amount {
    Bytes(u64),
    Text(String),
}

#[pymodule(name = "_core")]
mod core_module {
    use super::{
        Amount, Arc, DEMO, ExitCode, Failure, OsString, PathBuf, Py, PyAny, PyAnyMethods as _, PyBackedBytes, PyModule,
        PyModuleMethods as _, PyResult, Python, Source, files, fit, options, own, page, read, record, work,
        write_recording,
    };
    use pyo3::exceptions::PyException;
    use pyo3::pyfunction;
    use pyo3::types::PyBytes;

    #[pymodule_export]
    use super::watch::Monitor;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, PyModule>) -> PyResult<()> {
        module.add("version", env!("CARGO_PKG_VERSION"))
    }

    #[pyfunction]
    #[pyo3(signature = (path, /, *, device=None, limit=None, at=None))]
    fn explain(
        py: Python<'_>,
        path: PathBuf,
        device: Option<u32>,
        limit: Option<Amount>,
        at: Option<&str>,
    ) -> PyResult<Py<PyAny>> {
        let options = options(py, device, limit, at)?;
        let text = work::run(py, move |_| {
            let report = gpuheap_explain::explain(&read(&path)?, &options).map_err(Failure::explain)?;
            gpuheap_report::to_json(&report).map_err(Failure::report)
        })?;
        Ok(py.import("json")?.call_method1("loads", (text,))?.unbind())
    }

    #[pyfunction]
    #[pyo3(signature = (source, out, /))]
    fn convert(py: Python<'_>, source: Source, out: PathBuf) -> PyResult<()> {
        work::run(py, move |running| {
            let recording = match source {
                Source::Path(path) => read(&path)?,
                Source::Bytes(bytes) => super::read_bytes(&bytes)?,
            };
            files::replace(&out, running, |file| write_recording(&recording, file))
        })
    }

    #[pyfunction]
    #[pyo3(signature = (source, out, beside, /))]
    fn save(py: Python<'_>, source: PyBackedBytes, out: PathBuf, beside: record::Beside) -> PyResult<()> {
        work::run(py, move |running| {
            let mut recording = super::read_bytes(&source)?;
            record::add(&mut recording, beside);
            files::replace(&out, running, |file| write_recording(&recording, file))
        })
    }

    #[pyfunction]
    #[pyo3(signature = (path, out, /, *, device=None, limit=None, at=None))]
    fn html(
        py: Python<'_>,
        path: PathBuf,
        out: PathBuf,
        device: Option<u32>,
        limit: Option<Amount>,
        at: Option<&str>,
    ) -> PyResult<()> {
        let options = options(py, device, limit, at)?;
        work::run(py, move |running| {
            let page = page(Arc::new(read(&path)?), &options)?;
            files::replace(&out, running, |file| std::io::Write::write_all(file, page.as_bytes()))
        })
    }

    #[pyfunction]
    #[pyo3(signature = (arguments, /))]
    fn main(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
        let own = own(py)?;
        work::run(py, move |_| {
            let name = OsString::from("gpuheap");
            let code = gpuheap::main_with(&own, std::iter::once(name).chain(arguments));
            // An exit code does not give its number away, but there are not many.
            Ok((0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1))
        })
    }

    #[pyfunction]
    #[pyo3(signature = (traces, options, /))]
    fn fit_plan(py: Python<'_>, traces: fit::Traces, options: String) -> PyResult<String> {
        work::run(py, move |_| fit::plan(&traces, &options))
    }

    #[pyfunction]
    #[pyo3(signature = (trace, options, /))]
    fn fit_traced(py: Python<'_>, trace: Py<PyAny>, options: String) -> PyResult<String> {
        let mut answer = move |py: Python<'_>, (levers, batch): fit::Question| -> PyResult<fit::Answer> {
            match trace.call1(py, (levers, batch)) {
                Ok(found) => Ok(Ok(found.extract(py)?)),
                // Interruptions end all; an error may be about this trace only.
                Err(error) if error.is_instance_of::<PyException>(py) => {
                    let text = error.value(py).to_string();
                    Ok(Err((error, text)))
                }
                Err(error) => Err(error),
            }
        };
        work::converse(py, &mut answer, move |_, asker| fit::traced(asker, &options))
    }

    #[pyfunction]
    #[pyo3(signature = (plan, out, /, *, changes=None))]
    fn fit_html(py: Python<'_>, plan: String, out: PathBuf, changes: Option<(String, String)>) -> PyResult<()> {
        work::run(py, move |running| {
            let page = fit::html(&plan, changes)?;
            files::replace(&out, running, |file| std::io::Write::write_all(file, page.as_bytes()))
        })
    }

    #[pyfunction]
    fn demo(py: Python<'_>) -> Py<PyBytes> {
        PyBytes::new(py, DEMO).unbind()
    }
}

/// How the command is called again: by this interpreter. Its libraries lie in the package's folder.
fn own(py: Python<'_>) -> PyResult<gpuheap::Own> {
    let interpreter: Option<OsString> = py.import("sys")?.getattr("executable")?.extract()?;
    let module: PathBuf = py.import("gpuheap._core")?.getattr("__file__")?.extract()?;
    let command = interpreter.into_iter().chain(["-m", "gpuheap"].map(OsString::from)).collect();
    Ok(gpuheap::Own { command, folder: module.parent().map(Path::to_path_buf) })
}

fn options(py: Python<'_>, device: Option<u32>, limit: Option<Amount>, at: Option<&str>) -> PyResult<Options> {
    let limit = match limit {
        None => None,
        Some(Amount::Bytes(bytes)) => Some(Bytes::new(bytes)),
        Some(Amount::Text(text)) => match text.parse() {
            Ok(bytes) => Some(bytes),
            Err(error) => return Err(Failure::use_of("limit", &text, &error).into_error(py)),
        },
    };
    let at = match at {
        None => None,
        Some("peak") => Some(MomentName::Peak),
        Some("peak-reserved" | "peak_reserved") => Some(MomentName::PeakReserved),
        Some("oom") => Some(MomentName::Oom),
        Some("end") => Some(MomentName::End),
        Some(text) => {
            let cause = "expected `peak`, `peak-reserved`, `oom` or `end`";
            return Err(Failure::use_of("at", text, &cause).into_error(py));
        }
    };
    Ok(Options { device, limit, at })
}

fn read(path: &Path) -> Result<Recording, Failure> {
    gpuheap_import::read(path, gpuheap_import::Options::default()).map_err(Failure::import)
}

fn read_bytes(bytes: &[u8]) -> Result<Recording, Failure> {
    let total = u64::try_from(bytes.len()).ok();
    let name = Path::new("bytes");
    gpuheap_import::read_from(bytes, total, name, gpuheap_import::Options::default()).map_err(Failure::import)
}

fn write_recording(recording: &Recording, file: &mut std::fs::File) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(file);
    gpuheap_record::file::write(recording, &mut out)?;
    out.flush()
}

fn page(recording: Arc<Recording>, options: &Options) -> Result<String, Failure> {
    let analysis = Analysis::new(recording, options).map_err(Failure::explain)?;
    let curves = analysis.whatif_curves(&|_, _| {}).map_err(Failure::explain)?;
    gpuheap_report::to_html(&analysis, curves).map_err(Failure::report)
}
