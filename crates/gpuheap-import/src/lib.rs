//! Reads what other tools recorded into a [`Recording`].
//!
//! A file is recognised by its content: a pickled or JSON memory snapshot of `PyTorch`, or a recording of our own, plain,
//! gzip or zstd. Nothing in a file is ever run, imported or looked up; memory stays in proportion to the file; a file that cannot be read is an
//! [`Error`] that says where and why, and what to do about it.
//!
//! ```no_run
//! # fn main() -> Result<(), gpuheap_import::Error> {
//! let recording = gpuheap_import::read("snapshot.pickle".as_ref(), gpuheap_import::Options::default())?;
//! println!("{} events", recording.event_count());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod budget;
#[cfg(unix)]
pub mod driver_events;
mod error;
mod input;
mod own;
mod pickle;
mod sniff;
mod source;
mod torch;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use gpuheap_record::{Format, Recording};

pub use error::{At, Cause, Error, Lookalike};

/// How to read.
#[derive(Default)]
pub struct Options<'a> {
    /// Called now and then with how far reading got.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Options").field("progress", &self.progress.is_some()).finish()
    }
}

/// How far reading got, in bytes of the file as it is (compressed, if it is).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes read.
    pub read: u64,
    /// Bytes in all, where that is known.
    pub total: Option<u64>,
}

/// Reads the file `path`; `-` is standard input.
pub fn read(path: &Path, options: Options<'_>) -> Result<Recording, Error> {
    if path.as_os_str() == "-" {
        return read_from(io::stdin().lock(), None, path, options);
    }
    let failed = |source| Error::Open { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    // The length of a pipe or a device says nothing.
    let total = metadata.is_file().then_some(metadata.len());
    read_from(file, total, path, options)
}

/// Reads what `reader` yields. `total` is how many bytes that will be, if known; `path` is what messages call it.
pub fn read_from(
    mut reader: impl Read,
    total: Option<u64>,
    path: &Path,
    options: Options<'_>,
) -> Result<Recording, Error> {
    let failed = |cause| Error::Read { path: path.to_owned(), cause };
    let progress = options.progress.map(|progress| progress as &mut dyn FnMut(Progress));
    let source = source::Source::open(&mut reader, total, progress).map_err(failed)?;
    let (mut input, compression, count) = (source.input, source.compression, source.count);
    let failed = |cause: Box<Cause>| failed(Box::new(source::explain(*cause, compression)));
    let format = sniff::format(&mut input, compression).map_err(failed)?;
    let mut recording = match format {
        Format::TorchPickle => torch::read_pickle(&mut input),
        Format::TorchJson => torch::read_json(&mut input),
        Format::Gpuheap => own::read(&mut input),
    }
    .map_err(failed)?;
    recording.source = gpuheap_record::Source { path: path.to_owned(), format, compression, bytes: count.get() };
    Ok(recording)
}
