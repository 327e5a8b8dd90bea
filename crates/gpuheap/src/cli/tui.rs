//! The arguments of `gpuheap tui`.

use std::path::PathBuf;

use clap::Args;
use gpuheap_record::Bytes;

use super::explain::At;

const AFTER: &str = "\
Examples:
  gpuheap tui snapshot.pickle                  look around, over SSH too
  gpuheap tui snapshot.pickle --at end         start at the end and not at the peak
  gpuheap tui snapshot.pickle --limit 80GiB    with the card's size in the timeline
  zstdcat snapshot.pickle.zst | gpuheap tui -

Keys: 1 to 4 for the views, ? for all keys of a view, Esc to close what is open, q to quit

Exit codes: 0 done, 2 bad input or use, or no terminal";

/// What to look at.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Tui {
    /// The recording: a file, a folder that holds one, or `-` for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Show the device with this ordinal [default: the one with an OOM, else the fullest]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// Close the account to this size, such as the card's, and draw it as a line: `80GiB`, `24GB` or bytes
    #[arg(long, value_name = "SIZE", value_parser = super::limit)]
    pub(crate) limit: Option<Bytes>,

    /// Start at this moment [default: oom if there was one, else peak]
    #[arg(long, value_name = "MOMENT")]
    pub(crate) at: Option<At>,
}
