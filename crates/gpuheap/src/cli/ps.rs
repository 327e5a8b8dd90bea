//! The arguments of `gpuheap ps`.

use clap::Args;

const AFTER: &str = "\
Examples:
  gpuheap ps
  gpuheap ps --json | jq '.runs[].processes[] | {pid, spilled_bytes}'

USED is what counts against the budget, PEAK the most of it that there was, HOLDS all of it by
kind, FOR which library asked for it.
Processes of containers have the number that they have there.

Exit codes: 0 done, also if nothing runs, 2 bad use";

/// How to list.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Ps {
    /// Print one JSON object with exact bytes, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}
