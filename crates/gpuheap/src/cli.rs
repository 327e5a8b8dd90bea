//! The arguments of the command, and nothing of what it does: one file a subcommand.

mod check;
mod completions;
mod diff;
mod explain;
mod export;
mod fit;
mod open;
#[cfg(target_os = "linux")]
mod ps;
#[cfg(target_os = "linux")]
mod run;
mod serve;
mod tui;
mod whatif;
#[cfg(target_os = "linux")]
mod r#yield;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gpuheap_record::Bytes;

pub(crate) use check::{Check, Format};
pub(crate) use completions::Completions;
pub(crate) use diff::Diff;
pub(crate) use explain::Explain;
pub(crate) use export::Export;
pub(crate) use fit::Fit;
pub(crate) use open::Open;
#[cfg(target_os = "linux")]
pub(crate) use ps::Ps;
#[cfg(target_os = "linux")]
pub(crate) use run::{Run, Spill};
pub(crate) use serve::Serve;
pub(crate) use tui::Tui;
pub(crate) use whatif::WhatIf;
#[cfg(target_os = "linux")]
pub(crate) use r#yield::{Wake, Yield};

/// After the options of every command, before those of the parser itself.
const LAST: usize = 900;

/// Explains GPU memory: where it went, why it ran out, what leaks, what to change.
#[derive(Parser, Debug)]
#[command(name = "gpuheap", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// When to use color; `auto` is for terminals only and respects `NO_COLOR` and `CLICOLOR_FORCE`
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", display_order = LAST)]
    pub(crate) color: Color,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Explain a recording: verdict, what to change, where the memory went
    ///
    /// Reads a memory snapshot of PyTorch, pickle or JSON, plain or compressed (gzip, zstd). Nothing in the file is
    /// run, and no GPU is needed.
    Explain(Explain),
    /// Find the allocator settings that waste least, by replay
    ///
    /// Runs the recorded program through PyTorch's allocator under other settings and says what each would have
    /// reserved. The last line is the one to copy.
    #[command(name = "whatif")]
    WhatIf(WhatIf),
    /// Compare two recordings: by class, by line, each step
    ///
    /// Lines are the same if file, function and order in the function are: an edit that moves them does not matter.
    Diff(Diff),
    /// Check recordings against a budget, for continuous integration
    ///
    /// Every device of every recording is checked against every part of the budget. The exit code tells.
    Check(Check),
    /// Open a recording's page in the browser
    ///
    /// The page is one file that needs no network. For recordings that are too large for one, and for folders of them,
    /// there is `gpuheap serve`.
    Open(Open),
    /// Serve the pages of recordings, a folder of them or a large one, on this machine
    ///
    /// Detail is fetched as the reader zooms. Only this machine can connect, unless `--listen` says otherwise.
    Serve(Serve),
    /// Look around in a recording on a terminal, over SSH too
    ///
    /// For machines without a browser: findings, sites, memory through time, the map of memory. Sites, map and ledger
    /// show one moment, which the timeline chooses; findings are about the whole recording.
    Tui(Tui),
    /// Export a recording to the tools that you have: Perfetto, pprof, speedscope, Parquet, …
    ///
    /// Sizes are bytes, times those of the recording; where it has none, the export says so.
    Export(Export),
    /// Know whether a model fits before it runs, and what makes it fit
    ///
    /// The model is traced once, without a GPU; the trace is replayed through PyTorch's allocator, with every change that
    /// helps. The answer is the fastest plan that keeps to the budget.
    Fit(Fit),
    /// Run a program within a memory budget, past the card's size, yielding to others
    ///
    /// No change to the program: a library of gpuheap's stands between it and the CUDA driver. Programs that use no CUDA
    /// are not touched.
    #[cfg(target_os = "linux")]
    Run(Run),
    /// List what runs under `gpuheap run`, and what every process of it holds
    #[cfg(target_os = "linux")]
    Ps(Ps),
    /// Let a process move its memory to the host, for others to use the device
    ///
    /// The process must be of a `gpuheap run`.
    #[cfg(target_os = "linux")]
    Yield(Yield),
    /// Let a process that yielded move its memory back
    #[cfg(target_os = "linux")]
    Wake(Wake),
    /// Print a script that completes commands and options in a shell
    Completions(Completions),
    /// Print the manual page
    Man,
}

/// When to use color.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

/// In which form to show a report, and where.
#[derive(Args, Debug)]
pub(crate) struct Form {
    /// Print one JSON object with exact bytes, and nothing else
    #[arg(long, conflicts_with = "md")]
    pub(crate) json: bool,

    /// Print Markdown for an issue or a pull request
    #[arg(long)]
    pub(crate) md: bool,

    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,

    /// Columns of the text [default: the terminal's, at most 120; 80 if there is none]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=1000))]
    pub(crate) width: Option<u16>,
}

/// Fewer bytes than this, without a unit, are meant in another one.
const LEAST: u64 = 1 << 20;

/// An amount of memory that limits something.
pub(crate) fn limit(text: &str) -> Result<Bytes, String> {
    match text.parse::<Bytes>() {
        Ok(Bytes::ZERO) => Err("nothing fits into no memory at all".to_owned()),
        Ok(bytes) => match too_few(bytes) {
            Some(why) if text.trim().bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') => Err(why),
            _ => Ok(bytes),
        },
        Err(error) => Err(error.to_string()),
    }
}

/// Why a number without a unit is not taken for bytes.
pub(crate) fn too_few(bytes: Bytes) -> Option<String> {
    let number = bytes.get();
    let unit = if number < 1024 { "GiB" } else { "MiB" };
    let noun = if number == 1 { "byte is" } else { "bytes are" };
    (number < LEAST).then(|| format!("{number} {noun} less than any card has: did you mean `{number}{unit}`?"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
