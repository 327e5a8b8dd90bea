//! What can go wrong when a file of the own format is read.

use std::io;

/// Why a file of the own format cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Reading failed.
    #[error("reading failed at byte {offset}")]
    Read {
        /// How far reading got.
        offset: u64,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The first bytes are others.
    #[error("this is not a gpuheap recording")]
    NotARecording,
    /// The file is of a later version, or has a part that this version must know and does not.
    #[error("the recording was written by a newer gpuheap ({what}, at byte {offset})")]
    Newer {
        /// What is not known.
        what: String,
        /// Where.
        offset: u64,
    },
    /// The file ends, or is damaged, before its first whole part.
    #[error("the recording is cut short or damaged at byte {offset}, before anything whole: {what}")]
    Damaged {
        /// Where.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A part is whole and contradicts itself.
    #[error("the part `{tag}` at byte {offset} is malformed: {what}")]
    Malformed {
        /// The part's tag.
        tag: String,
        /// Where the part starts.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Reading on would take memory out of proportion to the file.
    #[error("the recording needs more memory than a file of this size can justify (at byte {offset})")]
    TooLarge {
        /// Where.
        offset: u64,
    },
}
