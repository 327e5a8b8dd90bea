//! What a recording means: a [`Recording`] goes in, a [`Report`] comes out.
//!
//! Nothing here knows a file format, and nothing prints.
#![forbid(unsafe_code)]

mod error;
mod frames;
mod initial;
mod lifetimes;
mod replay;
mod report;

use gpuheap_record::{Bytes, Recording};

pub use error::Error;
pub use report::*;

/// What to explain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The device by its ordinal; `None` for the one with an OOM, else the one that reserved most.
    pub device: Option<u32>,
    /// The card's size, or whatever limits the program.
    pub limit: Option<Bytes>,
    /// The moment for the ledger and the holders; `None` for the OOM if there was one, else the peak.
    pub at: Option<MomentName>,
}

/// Explains one device of a recording.
pub fn explain(_recording: &Recording, _options: &Options) -> Result<Report, Error> {
    todo!()
}
