//! The arguments of `gpuheap export`.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use gpuheap_export::Format;

use super::explain::At;

const AFTER: &str = "\
Examples:
  gpuheap export snapshot.pickle --to perfetto -o run.pftrace     open in ui.perfetto.dev
  gpuheap export snapshot.pickle --to chrome -o run.json          open in chrome://tracing
  gpuheap export snapshot.pickle --to firefox -o run.json         open in profiler.firefox.com
  gpuheap export snapshot.pickle --to speedscope -o run.json      open in speedscope.app
  gpuheap export snapshot.pickle --to pprof -o run.pb.gz && go tool pprof -http=: run.pb.gz
  gpuheap export snapshot.pickle --to folded --at end | flamegraph.pl --countname bytes > end.svg
  gpuheap export snapshot.pickle --to gpuheap -o run.gpuheap      a tenth of a pickle, for mail
  gpuheap export snapshot.pickle --to parquet -o run.parquet
  duckdb -c \"SELECT class, sum(size_bytes) FROM 'run.parquet' WHERE freed_event IS NULL GROUP BY 1\"

perfetto and chrome show memory through time with all its moments; pprof, speedscope, firefox
and folded what was held at one moment, by stack; csv and parquet have a row for each allocation,
with --at for those of a moment. csv repeats every stack: parquet is a hundredth of its size.

Exit codes: 0 done, 2 bad input or use";

/// What to export, and where to.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Export {
    /// The recording: a file, a folder that holds one, or `-` for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The form to write
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: To,

    /// Write to this file instead of standard output; `-` is standard output
    #[arg(long, short, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,

    /// Export the device with this ordinal [default: the one with an OOM, else the fullest]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// Export what was held at this moment [default: oom if there was one, else peak; csv and parquet: everything]
    #[arg(long, value_name = "MOMENT")]
    pub(crate) at: Option<At>,
}

/// A form of export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct To(pub(crate) Format);

impl ValueEnum for To {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [To; Format::ALL.len()] = {
            let mut all = [To(Format::Perfetto); Format::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = To(Format::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            Format::Perfetto => "Trace of Perfetto: counters, large blocks, moments",
            Format::Chrome => "The same as JSON, for chrome://tracing and Perfetto",
            Format::Pprof => "Profile of pprof, compressed",
            Format::Speedscope => "Profile of speedscope: one for each moment",
            Format::Firefox => "Profile of the Firefox Profiler: retained memory, counters, markers",
            Format::Folded => "Folded stacks with bytes, for flame graphs",
            Format::Csv => "Table of allocations as text",
            Format::Parquet => "The same for DuckDB, pandas, Polars, Spark",
            Format::Gpuheap => "The recording itself, all of it, in gpuheap's own small form",
        };
        Some(PossibleValue::new(self.0.name()).help(help))
    }
}
