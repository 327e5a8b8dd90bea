//! The arguments of `gpuheap diff`.

use std::path::PathBuf;

use clap::Args;

use super::Form;

const AFTER: &str = "\
Examples:
  gpuheap diff before.pickle after.pickle
  gpuheap diff run.pickle run.pickle --device-a 0 --device-b 1    two ranks of one file
  gpuheap diff main.pickle branch.pickle --md >> comment.md

Exit codes: 0 done (whatever changed), 2 bad input or use";

/// What to compare, and how to show it.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Diff {
    /// The recording before: a file, a folder that holds one, or `-` for standard input
    #[arg(value_name = "A")]
    pub(crate) before: PathBuf,

    /// The recording after; may be the same file
    #[arg(value_name = "B")]
    pub(crate) after: PathBuf,

    /// Compare the device with this ordinal in both [default: the one with an OOM, else the fullest]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// The device in A
    #[arg(long, value_name = "N", conflicts_with = "device")]
    pub(crate) device_a: Option<u32>,

    /// The device in B
    #[arg(long, value_name = "N", conflicts_with = "device")]
    pub(crate) device_b: Option<u32>,

    /// Show every line that changed, not only the 15 that changed most (JSON and Markdown always do)
    #[arg(long)]
    pub(crate) details: bool,

    #[command(flatten)]
    pub(crate) form: Form,
}
