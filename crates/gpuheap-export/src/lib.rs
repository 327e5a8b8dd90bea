//! A recording for the tools that people have: Perfetto, Chrome, pprof, speedscope, Firefox, folded stacks, CSV, Parquet, and
//! in our own form.
//!
//! An [`Analysis`] goes in, a file comes out: [`write()`] streams it, one file of this crate a [`Format`]. Sizes are bytes
//! everywhere. A format either has the whole recording or describes one moment of it, see [`Format::scope`].
//!
//! Names of functions and files come from the recording and may hold anything: control characters become `U+FFFD`, and
//! of very long names the end is cut, so that every file is valid and its size in proportion. Nothing else is altered.
//! In particular a name that starts with `=` stays as it is: open CSV from people you do not trust as text.
#![forbid(unsafe_code)]

mod chrome;
mod clock;
mod csv;
mod error;
mod firefox;
mod folded;
mod format;
mod held;
mod large;
mod marks;
mod names;
mod parquet;
mod perfetto;
mod pprof;
mod rows;
#[cfg(test)]
mod sample;
mod series;
mod speedscope;
#[cfg(test)]
mod tests;

use std::io::Write;

use gpuheap_explain::{Analysis, MomentName};

pub use error::Error;
pub use format::{Format, Scope};
pub use rows::COLUMNS;

/// What to export.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The moment to describe; `None` for that of the report. Rows are limited to what is held then only if it is given.
    pub at: Option<MomentName>,
    /// The program that writes, with its version.
    pub generator: String,
}

/// Writes a recording in a format. The writer should be buffered.
pub fn write(
    format: Format,
    analysis: &Analysis,
    options: &Options,
    out: &mut (dyn Write + Send),
) -> Result<(), Error> {
    let at = options.at.unwrap_or(analysis.report().ledger_at);
    let tick = analysis.tick_of(at).ok_or(Error::NoSuchMoment { asked: at })?;
    if options.at.is_some() && format.scope() == Scope::Recording {
        return Err(Error::EveryMoment { format });
    }
    let rows_at = options.at.map(|_| tick);
    match format {
        Format::Perfetto => perfetto::write(analysis, options, out),
        Format::Chrome => chrome::write(analysis, options, out),
        Format::Pprof => pprof::write(analysis, options, tick, out),
        Format::Speedscope => speedscope::write(analysis, options, at, out),
        Format::Firefox => firefox::write(analysis, options, tick, out),
        Format::Folded => folded::write(analysis, tick, out),
        Format::Csv => csv::write(analysis, rows_at, out),
        Format::Parquet => parquet::write(analysis, options, rows_at, out),
        Format::Gpuheap => Ok(gpuheap_record::file::write(analysis.recording(), out)?),
    }
}
