//! The arguments of `gpuheap open`.

use std::path::PathBuf;

use clap::Args;
use gpuheap_record::Bytes;

const AFTER: &str = "\
Examples:
  gpuheap open snapshot.pickle
  gpuheap open run/ --device 1

The page is kept for a week in a folder that only you can read; its path is printed. To keep it longer or to mail it:
  gpuheap explain snapshot.pickle --html report.html

Exit codes: 0 done (whatever the verdict), 2 bad input or use";

/// What to open.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Open {
    /// The recording: a file, a folder that holds one, or `-` for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Show the device with this ordinal [default: the one with an OOM, else the fullest]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// Close the account to this size, such as the card's: `80GiB`, `24GB` or bytes
    #[arg(long, value_name = "SIZE", value_parser = super::limit)]
    pub(crate) limit: Option<Bytes>,
}
