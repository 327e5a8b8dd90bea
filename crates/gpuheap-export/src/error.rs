//! What can go wrong when a recording is exported.

use std::io;

use gpuheap_explain::MomentName;

use crate::Format;

/// Why a recording cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The place that is written to failed.
    #[error("Failed to write the export")]
    Write(#[from] io::Error),
    /// The moment that was asked for never came.
    #[error("The recording has no such moment: no allocation failed")]
    NoSuchMoment {
        /// The moment that was asked for.
        asked: MomentName,
    },
    /// A moment was asked for where all of them are written.
    #[error("The format `{}` has every moment of the recording", format.name())]
    EveryMoment {
        /// The format.
        format: Format,
    },
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::Write(error.into())
    }
}
