//! Why a file could not be read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use gpuheap_record::Compression;
use gpuheap_record::file::FileError;

/// A file that could not be read as a recording.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be opened.
    #[error("Failed to open `{}`", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file could be opened, and its content is not a recording that can be read.
    #[error("Failed to read snapshot `{}`", path.display())]
    Read {
        /// The file, or `-` for standard input.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: Box<Cause>,
    },
}

impl Error {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Open { path, .. } | Self::Read { path, .. } => path,
        }
    }

    /// What is wrong with the content, if the file could be opened.
    #[must_use]
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Open { .. } => None,
            Self::Read { cause, .. } => Some(cause),
        }
    }

    /// What the user can do about it: one or two sentences.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Open { source, .. } if source.kind() == io::ErrorKind::IsADirectory => {
                Some("name the snapshot file inside the folder".to_owned())
            }
            Self::Open { .. } => None,
            Self::Read { cause, .. } => cause.hint(),
        }
    }
}

/// A place in the decompressed content of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// The byte with this offset, from 0.
    Byte(u64),
    /// This line of a JSON text, from 1.
    Line(u64),
}

impl fmt::Display for At {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Byte(offset) => write!(formatter, "byte {offset}"),
            Self::Line(line) => write!(formatter, "line {line}"),
        }
    }
}

/// What is wrong with the content of a file. Offsets count decompressed bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// Reading failed.
    #[error("reading failed at byte {offset}")]
    Input {
        /// How far reading got.
        offset: u64,
        /// What the system says.
        source: io::Error,
    },
    /// The compressed data is damaged or cut short.
    #[error("the {} data is damaged or cut short after {offset} decompressed bytes", name_of(*compression))]
    Compressed {
        /// The compression.
        compression: Compression,
        /// How far decompression got.
        offset: u64,
        /// What the decompressor says.
        source: io::Error,
    },
    /// There is nothing in the file.
    #[error("the file is empty")]
    Empty,
    /// The content is neither a pickle nor JSON.
    #[error("this is not a memory snapshot: it looks like {looks_like}")]
    UnknownFormat {
        /// What the first bytes look like.
        looks_like: Lookalike,
    },
    /// The content ends too early.
    #[error("unexpected end of file at byte {offset}: {expected} should follow")]
    Truncated {
        /// Where the file ends.
        offset: u64,
        /// What should have come.
        expected: &'static str,
    },
    /// The pickle wants to import or call something. Nothing of it was looked up or carried out.
    #[error("the pickle asks for {}, at byte {offset} ({opcode})", asked_for(global.as_deref()))]
    Refused {
        /// The opcode, as `pickletools` names it.
        opcode: &'static str,
        /// Where it is.
        offset: u64,
        /// The global that it names, such as `os.system`.
        global: Option<String>,
    },
    /// An opcode that no memory snapshot needs, or no opcode at all.
    #[error("byte {offset} is {}, which no memory snapshot needs", opcode_text(*opcode))]
    Opcode {
        /// The byte.
        opcode: u8,
        /// Where it is.
        offset: u64,
    },
    /// A pickle protocol that does not exist yet.
    #[error("pickle protocol {version} is not known (the newest is 5)")]
    Protocol {
        /// The protocol that the file names.
        version: u8,
    },
    /// The pickle contradicts itself.
    #[error("malformed pickle at byte {offset}: {opcode} {problem}")]
    Malformed {
        /// Where it is.
        offset: u64,
        /// The opcode that cannot be carried out.
        opcode: &'static str,
        /// Why not.
        problem: &'static str,
    },
    /// Something is nested deeper than any snapshot.
    #[error("nested more than {limit} deep at byte {offset}")]
    TooDeep {
        /// Where.
        offset: u64,
        /// How deep is allowed.
        limit: usize,
    },
    /// Reading on would take memory out of proportion to the file.
    #[error("the file needs more memory than a file of this size can justify (at {at})")]
    Memory {
        /// How far reading got.
        at: At,
    },
    /// A number that cannot be true.
    #[error("`{field}` is {value}, out of range, in the object that ends at {at}")]
    OutOfRange {
        /// The key in the snapshot.
        field: &'static str,
        /// Its value.
        value: String,
        /// Where the object that holds it ends.
        at: At,
    },
    /// One object stands in two places where each must have its own.
    #[error("the same {what} appears twice, or out of order, at {at}")]
    Shared {
        /// What kind of object.
        what: &'static str,
        /// Where the second use ends.
        at: At,
    },
    /// Something changes after other objects have used it. No pickler does that.
    #[error("a {what} changes after its use, at {at}")]
    Changed {
        /// What kind of object.
        what: &'static str,
        /// Where the change ends.
        at: At,
    },
    /// A text that is not JSON.
    #[error("the JSON is invalid")]
    Json {
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: u64,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A recording of our own format that cannot be read.
    #[error(transparent)]
    Recording(gpuheap_record::file::FileError),
    /// Readable, but no snapshot.
    #[error("this is not a memory snapshot: it holds {found}, without `segments` or `device_traces`")]
    NotASnapshot {
        /// What the top-level object is.
        found: String,
    },
}

/// What a file is that is not a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Lookalike {
    /// A zip archive: `torch.save` writes these.
    Zip,
    /// The older format of `torch.save`.
    LegacyCheckpoint,
    /// An HTML or XML page, such as the output of `memory_viz`.
    Html,
    /// A file format without any snapshot in it, by name.
    Named(&'static str),
    /// Data compressed in a way that is not read here, and the command that decompresses it.
    Compressed(&'static str, &'static str),
    /// A compressed file inside a compressed file.
    CompressedTwice,
    /// Text of an unknown kind.
    Text,
    /// The first bytes, in hexadecimal.
    Unknown(String),
}

impl fmt::Display for Lookalike {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zip => formatter.write_str("a zip archive, such as `torch.save` writes"),
            Self::LegacyCheckpoint => formatter.write_str("a checkpoint of `torch.save`"),
            Self::Html => formatter.write_str("an HTML page"),
            Self::Named(name) => formatter.write_str(name),
            Self::Compressed(name, _) => write!(formatter, "{name} data"),
            Self::CompressedTwice => formatter.write_str("a compressed file inside a compressed file"),
            Self::Text => formatter.write_str("plain text"),
            Self::Unknown(bytes) => write!(formatter, "unknown data (it begins with the bytes {bytes})"),
        }
    }
}

/// How to get a snapshot, for those who brought something else.
const HOW_TO_RECORD: &str = "record one with `torch.cuda.memory._record_memory_history()` before the work and \
                             `torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")` after it";

impl Cause {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Truncated { .. } => {
                "the file is cut short; the process may have been killed while writing it".to_owned()
            }
            Self::Compressed { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof => {
                "the file is cut short; the process may have been killed while writing it".to_owned()
            }
            Self::Compressed { .. } => "copy the file again, or compress it again".to_owned(),
            Self::Json { source, .. } if source.is_eof() => {
                "the file is cut short; the process may have been killed while writing it".to_owned()
            }
            Self::Empty => {
                "the process may have been killed before it wrote anything, or the disk may be full".to_owned()
            }
            Self::UnknownFormat { looks_like } => match looks_like {
                Lookalike::Zip | Lookalike::LegacyCheckpoint => {
                    format!("a checkpoint holds tensors, not the history of memory; {HOW_TO_RECORD}")
                }
                Lookalike::Html => {
                    format!("gpuheap reads the snapshot that the page was made from; {HOW_TO_RECORD}")
                }
                Lookalike::Compressed(_, command) => format!("decompress it first: `{command}`"),
                Lookalike::CompressedTwice => "decompress it once before".to_owned(),
                Lookalike::Named(_) | Lookalike::Text | Lookalike::Unknown(_) => HOW_TO_RECORD.to_owned(),
            },
            Self::Refused { .. } => format!(
                "a memory snapshot holds only lists, dicts, numbers and texts, and gpuheap never imports or runs what \
                 a pickle asks for; {HOW_TO_RECORD}"
            ),
            Self::NotASnapshot { .. } => HOW_TO_RECORD.to_owned(),
            Self::Protocol { .. } => "a newer gpuheap may read it; or dump the snapshot with `protocol=4`".to_owned(),
            Self::Opcode { .. } | Self::Malformed { .. } => {
                "the file is damaged, or was not written by a pickler; copy it again from where it was written"
                    .to_owned()
            }
            Self::Recording(FileError::Newer { .. }) => "install the newest gpuheap".to_owned(),
            Self::Recording(FileError::Damaged { .. }) => {
                "the process may have been killed before it had written anything whole".to_owned()
            }
            Self::Recording(FileError::Malformed { .. }) => {
                "the file was not written by gpuheap, or by a version with a fault".to_owned()
            }
            Self::Recording(_)
            | Self::Input { .. }
            | Self::TooDeep { .. }
            | Self::Memory { .. }
            | Self::OutOfRange { .. }
            | Self::Shared { .. }
            | Self::Changed { .. }
            | Self::Json { .. } => return None,
        };
        Some(hint)
    }

    /// The same cause in a file whose places are lines.
    pub(crate) fn on_line(mut self, line: u64) -> Self {
        if let Self::Memory { at } | Self::OutOfRange { at, .. } | Self::Shared { at, .. } | Self::Changed { at, .. } =
            &mut self
        {
            *at = At::Line(line);
        }
        self
    }
}

fn asked_for(global: Option<&str>) -> String {
    match global {
        Some(global) => format!("`{global}` of the program that reads it"),
        None => "code to be run".to_owned(),
    }
}

fn opcode_text(opcode: u8) -> String {
    match crate::pickle::opcode_name(opcode) {
        Some(name) => format!("the opcode {name}"),
        None => format!("0x{opcode:02x}, not a pickle opcode"),
    }
}

pub(crate) const fn name_of(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "uncompressed",
        Compression::Gzip => "gzip",
        Compression::Zstd => "zstd",
    }
}
