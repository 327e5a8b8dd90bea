//! The arguments of `gpuheap explain`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gpuheap_explain::MomentName;
use gpuheap_record::Bytes;

use super::Form;

const AFTER: &str = "\
Examples:
  gpuheap explain snapshot.pickle              the answer on one screen
  gpuheap explain snapshot.pickle --details    with evidence, stacks and rules
  gpuheap explain snapshot.pickle --html report.html
  gpuheap explain snapshot.pickle --json | jq .verdict
  gpuheap explain snapshot.pickle --md --output report.md
  zstdcat snapshot.pickle.zst | gpuheap explain -

To record a snapshot in PyTorch:
  # before the model is built
  torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=\"python\")
  # at the end, or after an OOM
  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")

Exit codes: 0 done (whatever the verdict), 2 bad input or use";

/// What to explain, and how to show it.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Explain {
    /// The recording: a file, a folder that holds one, or `-` for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) form: Form,

    /// Show everything: evidence, stacks, holders, rules of the classes, all moments (JSON and Markdown always do)
    #[arg(long)]
    pub(crate) details: bool,

    /// Write the report as one HTML file, to be opened in a browser, with charts, a flame graph and the map of memory;
    /// it needs no network. `-` is standard output
    #[arg(long, value_name = "PATH", conflicts_with_all = ["json", "md", "output", "details", "width"])]
    pub(crate) html: Option<PathBuf>,

    /// Explain the device with this ordinal [default: the one with an OOM, else the fullest]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// Close the account to this size, such as the card's: `80GiB`, `24GB` or bytes
    #[arg(long, value_name = "SIZE", value_parser = super::limit)]
    pub(crate) limit: Option<Bytes>,

    /// Describe where the memory was at this moment [default: oom if there was one, else peak]
    #[arg(long, value_name = "MOMENT")]
    pub(crate) at: Option<At>,
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
