//! The arguments of the command, and nothing of what it does.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gpuheap_explain::MomentName;
use gpuheap_record::Bytes;

/// Explains GPU memory: where it went, why it ran out, what leaks, what to change.
#[derive(Parser, Debug)]
#[command(name = "gpuheap", version, disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// When to use color; `auto` is for terminals only and respects `NO_COLOR` and `CLICOLOR_FORCE`
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
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
    /// Print a script that completes commands and options in a shell
    Completions(Completions),
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

/// When to use color.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

const EXPLAIN_AFTER: &str = "\
Examples:
  gpuheap explain snapshot.pickle              the answer on one screen
  gpuheap explain snapshot.pickle --details    with evidence, stacks and rules
  gpuheap explain snapshot.pickle --json | jq .verdict
  gpuheap explain snapshot.pickle --md --output report.md
  zstdcat snapshot.pickle.zst | gpuheap explain -

To record a snapshot in PyTorch:
  torch.cuda.memory._record_memory_history(max_entries=1_000_000)  # at the start
  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")               # at the end, or after an OOM

Exit codes: 0 done (whatever the verdict), 2 bad input or use";

/// What to explain, and how to show it.
#[derive(Args, Debug)]
#[command(after_help = EXPLAIN_AFTER)]
pub(crate) struct Explain {
    /// The recording: a file, a folder that holds one, or `-` for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print one JSON object with exact bytes, and nothing else
    #[arg(long, conflicts_with = "md")]
    pub(crate) json: bool,

    /// Print Markdown for an issue or a pull request
    #[arg(long)]
    pub(crate) md: bool,

    /// Show everything: evidence, stacks, holders, rules of the classes, all moments (JSON and Markdown always do)
    #[arg(long)]
    pub(crate) details: bool,

    /// Explain the device with this ordinal [default: the one with an OOM, else the fullest]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// Close the account to this size, such as the card's: `80GiB`, `24GB` or bytes
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit: Option<Bytes>,

    /// Describe where the memory was at this moment [default: oom if there was one, else peak]
    #[arg(long, value_name = "MOMENT")]
    pub(crate) at: Option<At>,

    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,

    /// Columns of the text [default: the terminal's, at most 120; 80 if there is none]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=1000))]
    pub(crate) width: Option<u16>,
}

/// A moment of a recording.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    /// Most allocated memory
    Peak,
    /// Most reserved memory
    PeakReserved,
    /// The last failed allocation
    Oom,
    /// After the last event
    End,
}

impl From<At> for MomentName {
    fn from(at: At) -> Self {
        match at {
            At::Peak => Self::Peak,
            At::PeakReserved => Self::PeakReserved,
            At::Oom => Self::Oom,
            At::End => Self::End,
        }
    }
}

/// For which shell.
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
