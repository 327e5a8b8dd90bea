//! The arguments of `gpuheap whatif`.

use std::path::PathBuf;

use clap::Args;
use gpuheap_record::Bytes;

use super::Form;

const AFTER: &str = "\
Examples:
  gpuheap whatif snapshot.pickle                 search for the settings that reserve least
  gpuheap whatif snapshot.pickle --limit 24GiB   would it run on a card with this much left?
  gpuheap whatif snapshot.pickle --conf \"\" --conf max_split_size_mb:128
  gpuheap whatif snapshot.pickle --verify        is the replay exact?

Exit codes: 0 done, 1 `--verify` found a difference, 2 bad input or use";

/// What to replay, and how to show it.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct WhatIf {
    /// The recording: a file, a folder that holds one, or `-` for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Try these settings, as in `PYTORCH_CUDA_ALLOC_CONF`, instead of searching; may be repeated, `""` is stock
    /// PyTorch
    #[arg(long = "conf", value_name = "STRING")]
    pub(crate) confs: Vec<String>,

    /// Let PyTorch reserve no more than this: `80GiB`, `24GB` or bytes
    #[arg(long, value_name = "SIZE", value_parser = super::limit)]
    pub(crate) limit: Option<Bytes>,

    /// Replay the device with this ordinal [default: the one with an OOM, else the fullest]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// Only replay the recorded settings, and say how many of the recorded segment events they predict
    #[arg(long, conflicts_with_all = ["confs", "limit"])]
    pub(crate) verify: bool,

    #[command(flatten)]
    pub(crate) form: Form,
}
