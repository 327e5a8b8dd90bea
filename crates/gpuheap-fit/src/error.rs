//! Why a fit cannot be worked out.

use std::io;
use std::path::PathBuf;

use crate::json::JsonError;

/// What went wrong, where, and with what.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened or read.
    #[error("Failed to read `{}`", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A trace could be opened, and its content is no trace that can be used.
    #[error("Failed to read trace `{}`", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: TraceError,
    },
    /// A file of device constants cannot be used.
    #[error("Failed to read device file `{}`", path.display())]
    DeviceFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: JsonError,
    },
    /// A device that nobody described.
    #[error("No device is called `{name}`; known are {known}")]
    NoSuchDevice {
        /// What was asked for.
        name: String,
        /// All that there are.
        known: String,
    },
    /// Settings of the allocator that PyTorch would refuse.
    #[error("The allocator settings `{conf}` cannot be used")]
    BadConf {
        /// The settings.
        conf: String,
        /// What PyTorch says.
        source: gpuheap_alloc::torch::ConfError,
    },
    /// Traces of one model that cannot be compared.
    #[error("The traces at batch {first} and {second} differ in more than sizes: {how}")]
    Unlike {
        /// The batch size of one.
        first: u64,
        /// The batch size of the other.
        second: u64,
        /// The first difference.
        how: String,
    },
    /// A batch size that no trace tells about.
    #[error("One trace at batch {traced} says nothing about batch {wanted}")]
    OneBatch {
        /// The batch size that was traced.
        traced: u64,
        /// The one that was asked for.
        wanted: u64,
    },
    /// A batch that is larger than any machine.
    #[error("No machine has the memory for a batch of {batch}")]
    TooLarge {
        /// The size that was asked for.
        batch: u64,
    },
    /// Levers that exclude each other, or cannot be used with this model.
    #[error("The lever `{lever}` cannot be used: {why}")]
    Lever {
        /// The lever's name.
        lever: String,
        /// Why not.
        why: String,
    },
    /// A plan that is none.
    #[error("Failed to read plan `{}`", path.display())]
    Plan {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: JsonError,
    },
    /// Options that are no options.
    #[error("The options are not valid")]
    Options(#[source] JsonError),
}

/// What is wrong with the content of a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file holds nothing.
    #[error("the file is empty")]
    Empty,
    /// Compressed data that is damaged or cut short.
    #[error("the {compression} data is damaged or cut short after {offset} decompressed bytes")]
    Compressed {
        /// `gzip` or `zstd`.
        compression: &'static str,
        /// How far decompression came.
        offset: u64,
        /// What the decompressor says.
        source: io::Error,
    },
    /// More text than any trace has.
    #[error("the trace has more than {limit} bytes of text")]
    TooLarge {
        /// The most that is read.
        limit: u64,
    },
    /// A text that is not JSON, or JSON that is no trace.
    #[error("line {line}, column {column}: {message}")]
    Json {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// Another form of trace.
    #[error("its schema is `{found}`, and this version reads `{expected}`")]
    Schema {
        /// What the file says it is.
        found: String,
        /// What is read.
        expected: &'static str,
    },
    /// Columns of storages that are not of one length.
    #[error("`storages.{column}` has {found} entries where `storages.bytes` has {expected}")]
    Columns {
        /// The column.
        column: &'static str,
        /// Its length.
        found: usize,
        /// The length it should have.
        expected: usize,
    },
    /// A number that cannot be true.
    #[error("{what} is {value}, out of range, at {place}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: String,
        /// Where it stands.
        place: String,
    },
    /// Something that is freed or used without being alive, or made twice.
    #[error("event {event}: storage {storage} is {problem}")]
    Life {
        /// The number of the event, from 0.
        event: usize,
        /// The storage.
        storage: u32,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A module that ends without having begun.
    #[error("event {event}: module {module} is left without having been entered")]
    Unentered {
        /// The number of the event, from 0.
        event: usize,
        /// The module.
        module: u32,
    },
    /// A trace in which nothing happens.
    #[error("there is no step in it")]
    NoSteps,
}

impl Error {
    /// What the user can do about it, in one or two sentences.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Trace { cause, .. } => return cause.hint().map(str::to_owned),
            Self::DeviceFile { .. } => {
                "a device file is a JSON object of devices by name; `gpuheap fit --device-file` takes what the \
                 documentation's section on devices shows"
            }
            Self::NoSuchDevice { .. } => "describe it in a file and name that with `--device-file`",
            Self::BadConf { .. } => {
                "`--conf` takes what `PYTORCH_CUDA_ALLOC_CONF` takes, such as `--conf expandable_segments:True`"
            }
            Self::Unlike { .. } => "trace without `--batch`, so that one size is enough, and leave accumulation out",
            Self::OneBatch { .. } => {
                "trace the model at a second batch size and give both: `--trace a.json --trace b.json`"
            }
            Self::Plan { .. } => "`gpuheap fit … --json --output plan.json` writes a plan",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

impl TraceError {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Empty => Some("the tracer may have failed before it wrote anything; run it again"),
            Self::Compressed { .. } => Some("the file is damaged or cut short; write it again"),
            Self::Json { .. } => {
                Some("`gpuheap fit train.py:make --keep-trace trace.json` writes a trace that can be read")
            }
            Self::Schema { .. } => Some("write the trace with the gpuheap that reads it"),
            Self::Life { .. } | Self::Unentered { .. } => {
                Some("the trace contradicts itself; a report with the file would help")
            }
            _ => None,
        }
    }
}
