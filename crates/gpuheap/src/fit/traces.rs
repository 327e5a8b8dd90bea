//! The traces of a model: read, or made by a child.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use gpuheap_fit::device::Device;
use gpuheap_fit::plan::Variant;
use gpuheap_fit::trace::{self, Trace};
use gpuheap_fit::{Lever, Tracer};

use super::error::ChildError;
use super::python::Python;
use crate::errors::Error;
use crate::progress::Progress;
use crate::replace::replace;

/// Has a model traced by a child.
#[derive(Debug)]
pub(crate) struct Child<'a> {
    /// The function that makes the model.
    pub(crate) make: &'a str,
    /// The device to trace for.
    pub(crate) device: &'a Device,
    /// Where to keep the first trace.
    pub(crate) keep: Option<&'a Path>,
    /// Where the model's packages are.
    pub(crate) python: &'a Python<'a>,
    /// Who hears of it.
    pub(crate) progress: Progress,
}

/// The variants of a model in files.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Variant>, Error> {
    let traces: Result<Vec<Trace>, _> = files.iter().map(|path| trace::read(path)).collect();
    gpuheap_fit::plan::variants(traces.map_err(Error::Fit)?).map_err(Error::Fit)
}

impl Tracer for Child<'_> {
    type Error = Error;

    fn trace(&mut self, levers: &[Lever], batch: Option<u64>) -> Result<Trace, Error> {
        let folder = tempfile::tempdir().map_err(|error| Error::Child(ChildError::Folder(error)))?;
        let path = folder.path().join("trace.json");
        self.run(levers, batch, &path)?;
        if let Some(keep) = self.keep.take() {
            let copied = || -> std::io::Result<()> {
                let text = std::fs::read(&path)?;
                replace(keep, |file| std::io::Write::write_all(file, &text))
            };
            copied().map_err(|source| Error::Write { path: keep.to_owned(), source })?;
        }
        trace::read(&path).map_err(Error::Fit)
    }

    fn planning(&mut self, done: usize, of: usize) {
        self.progress.planning(done, of);
    }
}

impl Child<'_> {
    fn run(&mut self, levers: &[Lever], batch: Option<u64>, path: &Path) -> Result<(), Error> {
        let mut arguments: Vec<&OsStr> =
            vec![OsStr::new("trace"), OsStr::new(self.make), OsStr::new("--out"), path.as_os_str()];
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
        let capability = self.device.compute_capability;
        let capability = format!("{}.{}", capability / 10, capability % 10);
        arguments.extend([OsStr::new("--capability"), OsStr::new(&capability)]);
        self.progress.doing("Tracing the model");
        let what = format!("Failed to trace `{}`", self.make);
        self.python.run(&arguments, &what, &[0], &mut self.progress).map_err(Error::Child)?;
        if !path.is_file() {
            let message = "the program ended Python before it was traced".to_owned();
            return Err(Error::Child(ChildError::Failed { what, message, more: None, hint: None }));
        }
        Ok(())
    }
}
