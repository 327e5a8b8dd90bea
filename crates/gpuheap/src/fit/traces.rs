//! The traces of a model: read, or made by a child.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use gpuheap_fit::Lever;
use gpuheap_fit::levers::ShardForm;
use gpuheap_fit::device::Device;
use gpuheap_fit::plan::{Limits, Variant, spread};
use gpuheap_fit::trace::{self, Trace};

use super::error::ChildError;
use super::python::Python;
use crate::errors::Error;
use crate::progress::Progress;
use crate::replace::replace;

/// Which traces.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// The function that makes the model.
    pub(crate) make: Option<&'a str>,
    /// Files that have the traces already.
    pub(crate) files: &'a [PathBuf],
    /// The device to trace for.
    pub(crate) device: &'a Device,
    /// The batch size, if it is another than that of the model's batch.
    pub(crate) batch: Option<u64>,
    /// Levers that there must be a trace with.
    pub(crate) set: &'a [Lever],
    /// Names of levers that there may be a trace with.
    pub(crate) allow: &'a [String],
    /// What limits the plan.
    pub(crate) limits: &'a Limits,
    /// Whether a second batch size is traced, too: that tells about all others.
    pub(crate) sizes: bool,
    /// Where to keep the first trace.
    pub(crate) keep: Option<&'a Path>,
}

/// All traces that a fit works on: the model as it is first, then with levers that only a trace can tell about. With them
/// sentences about what could not be traced and is not needed.
pub(crate) fn variants(
    wanted: &Wanted<'_>,
    python: &Python<'_>,
    progress: &mut Progress,
) -> Result<(Vec<Variant>, Vec<String>), Error> {
    if !wanted.files.is_empty() {
        let traces: Result<Vec<Trace>, _> = wanted.files.iter().map(|path| trace::read(path)).collect();
        let variants = gpuheap_fit::plan::variants(traces.map_err(Error::Fit)?).map_err(Error::Fit)?;
        return Ok((variants, Vec::new()));
    }
    let mut variants = vec![variant(wanted, python, Vec::new(), progress)?];
    let mut traced: Vec<Vec<Lever>> = Vec::new();
    let is_shard = |lever: &&Lever| matches!(lever, Lever::Shard { .. });
    let set: Vec<Lever> = wanted.set.iter().filter(|lever| lever.is_traced() && !is_shard(lever)).cloned().collect();
    let set_count = set.len();
    if !set.is_empty() {
        traced.push(set);
    }
    for name in ["autocast", "parameters"] {
        if wanted.allow.iter().any(|allow| allow == name) {
            let lever: Option<Lever> = format!("{name}=bfloat16").parse().ok();
            traced.extend(lever.map(|lever| vec![lever]).filter(|levers| traced.first() != Some(levers)));
        }
    }
    let mut notes = Vec::new();
    // What is only allowed is no must: the work is spread without it as well.
    let must = set_count > 0;
    let beside: Vec<Vec<Lever>> = (!must).then(Vec::new).into_iter().chain(traced.iter().cloned()).collect();
    let ways = spread::ways(&beside, wanted.limits, &variants[0]);
    for levers in traced {
        variants.push(variant(wanted, python, levers, progress)?);
    }
    for levers in ways {
        match variant(wanted, python, levers.clone(), progress) {
            Ok(variant) => variants.push(variant),
            // What was asked for has to be there; of what was only tried the others will do.
            Err(error) if wanted.set.iter().any(|lever| is_shard(&lever)) => return Err(error),
            Err(Error::Child(error)) => notes.push(spread::not_considered(&levers, &reason(&error))),
            Err(error) => return Err(error),
        }
    }
    Ok((variants, notes))
}

/// What a child said went wrong, in one line.
fn reason(error: &ChildError) -> String {
    match error {
        ChildError::Failed { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

/// The model with `levers`, at its own batch size and at half of it.
fn variant(
    wanted: &Wanted<'_>,
    python: &Python<'_>,
    levers: Vec<Lever>,
    progress: &mut Progress,
) -> Result<Variant, Error> {
    let folder = tempfile::tempdir().map_err(|error| Error::Child(ChildError::Folder(error)))?;
    let path = folder.path().join("trace.json");
    let pipeline = levers.iter().any(|lever| matches!(lever, Lever::Shard { form: ShardForm::Pipeline, .. }));
    let first = traced(wanted, python, wanted.batch, &levers, &path, progress)?;
    if let Some(keep) = wanted.keep.filter(|_| levers.is_empty()) {
        let copied = || -> std::io::Result<()> {
            let text = std::fs::read(&path)?;
            replace(keep, |file| std::io::Write::write_all(file, &text))
        };
        copied().map_err(|source| Error::Write { path: keep.to_owned(), source })?;
    }
    let size = first.batch.size;
    let mut traces = vec![first];
    // A pipeline works on the batch in parts by itself.
    if wanted.sizes && size >= 2 && !pipeline {
        // A batch that cannot be halved is no reason to give no answer.
        if let Ok(half) = traced(wanted, python, Some(size / 2), &levers, &path, progress) {
            traces.push(half);
        }
    }
    // Nor is a model that does something else with half a batch.
    let variant = Variant::new(traces.clone()).or_else(|_| Variant::new(traces.drain(..1).collect()));
    Ok(Variant { levers, ..variant.map_err(Error::Fit)? })
}

/// The model at its own batch size with levers applied, as a plan has them.
pub(crate) fn with(
    wanted: &Wanted<'_>,
    python: &Python<'_>,
    levers: &[Lever],
    progress: &mut Progress,
) -> Result<Trace, Error> {
    let folder = tempfile::tempdir().map_err(|error| Error::Child(ChildError::Folder(error)))?;
    traced(wanted, python, wanted.batch, levers, &folder.path().join("trace.json"), progress)
}

fn traced(
    wanted: &Wanted<'_>,
    python: &Python<'_>,
    batch: Option<u64>,
    levers: &[Lever],
    path: &Path,
    progress: &mut Progress,
) -> Result<Trace, Error> {
    let make = wanted.make.unwrap_or_default();
    let mut arguments: Vec<&OsStr> = vec![OsStr::new("trace"), OsStr::new(make), OsStr::new("--out"), path.as_os_str()];
    let batch = batch.map(|batch| batch.to_string());
    if let Some(batch) = &batch {
        arguments.extend([OsStr::new("--batch"), OsStr::new(batch)]);
    }
    let file = path.with_extension("levers");
    if !levers.is_empty() {
        let text = serde_json::to_vec(levers).map_err(std::io::Error::from);
        let written = text.and_then(|text| std::fs::write(&file, text));
        written.map_err(|source| Error::Write { path: file.clone(), source })?;
        arguments.extend([OsStr::new("--apply"), file.as_os_str()]);
    }
    let capability = wanted.device.compute_capability;
    let capability = format!("{}.{}", capability / 10, capability % 10);
    arguments.extend([OsStr::new("--capability"), OsStr::new(&capability)]);
    progress.doing("Tracing the model");
    let what = format!("Failed to trace `{make}`");
    // That of the trace before says nothing about this one.
    let _ = std::fs::remove_file(path);
    python.run(&arguments, &what, &[0], progress).map_err(Error::Child)?;
    if !path.is_file() {
        let message = "the program ended Python before it was traced".to_owned();
        return Err(Error::Child(ChildError::Failed { what, message, more: None, hint: None }));
    }
    trace::read(path).map_err(Error::Fit)
}
