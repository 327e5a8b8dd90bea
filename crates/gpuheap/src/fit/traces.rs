//! The traces of a model: read, or made by a child.

use std::ffi::OsStr;
use std::path::Path;

use gpuheap_fit::Lever;
use gpuheap_fit::device::Device;
use gpuheap_fit::plan::Variant;
use gpuheap_fit::scale::Family;
use gpuheap_fit::trace::{self, Trace};

use super::error::ChildError;
use super::python::Python;
use crate::cli;
use crate::errors::Error;
use crate::progress::Progress;
use crate::replace::replace;

/// All traces that a fit works on: the model as it is first, then with levers that only a trace can tell about.
pub(crate) fn variants(
    arguments: &cli::Fit,
    python: &Python<'_>,
    progress: &mut Progress,
) -> Result<Vec<Variant>, Error> {
    if !arguments.traces.is_empty() {
        let traces: Result<Vec<Trace>, _> = arguments.traces.iter().map(|path| trace::read(path)).collect();
        return gpuheap_fit::plan::variants(traces.map_err(Error::Fit)?).map_err(Error::Fit);
    }
    let make = arguments.make.as_deref().unwrap_or_default();
    let mut variants = vec![variant(arguments, python, make, Vec::new(), progress)?];
    let allowed = |name: &str| arguments.allow.iter().any(|allow| allow == name);
    let mut traced: Vec<Vec<Lever>> = Vec::new();
    let set: Vec<Lever> = arguments.set.iter().filter(|lever| lever.is_traced()).cloned().collect();
    if !set.is_empty() {
        traced.push(set);
    }
    let lever = |name: &str| -> Option<Lever> { format!("{name}=bfloat16").parse().ok() };
    for name in ["autocast", "parameters"] {
        if allowed(name) {
            traced.extend(lever(name).map(|lever| vec![lever]));
        }
    }
    for levers in traced {
        variants.push(variant(arguments, python, make, levers, progress)?);
    }
    Ok(variants)
}

/// The model with `levers`, at its own batch size and at half of it: two sizes tell about all others.
fn variant(
    arguments: &cli::Fit,
    python: &Python<'_>,
    make: &str,
    levers: Vec<Lever>,
    progress: &mut Progress,
) -> Result<Variant, Error> {
    let folder = tempfile::tempdir().map_err(|error| Error::Child(ChildError::Folder(error)))?;
    let path = folder.path().join("trace.json");
    let device = Device::find(&arguments.device, arguments.device_file.as_deref()).map_err(Error::Fit)?;
    let capability = format!("{}.{}", device.compute_capability / 10, device.compute_capability % 10);
    let keep = arguments.keep_trace.as_deref().filter(|_| levers.is_empty());
    let first = traced(python, make, arguments.batch, (&levers, &capability), &path, progress)?;
    if let Some(keep) = keep {
        let copied = || -> std::io::Result<()> {
            let text = std::fs::read(&path)?;
            replace(keep, |file| std::io::Write::write_all(file, &text))
        };
        copied().map_err(|source| Error::Write { path: keep.to_owned(), source })?;
    }
    let size = first.batch.size;
    let mut traces = vec![first];
    let wants_sizes = !arguments.without.iter().any(|name| name == "accumulate" || name == "all")
        || arguments.gpus > 1
        || arguments.set.iter().any(|lever| matches!(lever, Lever::Accumulate { .. }));
    if wants_sizes && size >= 2 {
        // A batch that cannot be halved is no reason to give no answer.
        if let Ok(half) = traced(python, make, Some(size / 2), (&levers, &capability), &path, progress) {
            traces.push(half);
        }
    }
    let family = Family::new(traces.clone()).or_else(|_| Family::new(traces.drain(..1).collect()));
    Ok(Variant { levers, family: family.map_err(Error::Fit)? })
}

fn traced(
    python: &Python<'_>,
    make: &str,
    batch: Option<u64>,
    (levers, capability): (&[Lever], &str),
    path: &Path,
    progress: &mut Progress,
) -> Result<Trace, Error> {
    let mut arguments: Vec<&OsStr> = vec![OsStr::new("trace"), OsStr::new(make), OsStr::new("--out"), path.as_os_str()];
    let batch = batch.map(|batch| batch.to_string());
    if let Some(batch) = &batch {
        arguments.extend([OsStr::new("--batch"), OsStr::new(batch)]);
    }
    let file = path.with_extension("levers");
    if !levers.is_empty() {
        let written = serde_json::to_vec(levers).map_err(std::io::Error::from).and_then(|text| std::fs::write(&file, text));
        written.map_err(|source| Error::Write { path: file.clone(), source })?;
        arguments.extend([OsStr::new("--apply"), file.as_os_str()]);
    }
    arguments.extend([OsStr::new("--capability"), OsStr::new(capability)]);
    progress.doing("Tracing the model");
    let what = format!("Failed to trace `{make}`");
    python.run(&arguments, &what, &[0], progress).map_err(Error::Child)?;
    trace::read(path).map_err(Error::Fit)
}
