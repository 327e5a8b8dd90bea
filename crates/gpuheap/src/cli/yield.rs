//! The arguments of `gpuheap yield` and `gpuheap wake`.

use clap::Args;
use gpuheap_record::Bytes;

const YIELD: &str = "\
Examples:
  gpuheap yield 4711                  all that can move goes to the host
  gpuheap yield 4711 --keep 2GiB      so much may stay
  gpuheap yield 4711 --hold           until `gpuheap wake 4711`, not until it has work

`gpuheap ps` has the numbers. Pointers of the program stay valid; it is not stopped, only its work
for the device waits while memory moves.

Exit codes: 0 done, 1 the process refused, 2 bad use, no such process";

const WAKE: &str = "\
Examples:
  gpuheap wake 4711

Exit codes: 0 done, 1 the process refused, 2 bad use, no such process";

/// Who is to make room, and how much.
#[derive(Args, Debug)]
#[command(after_help = YIELD)]
pub(crate) struct Yield {
    /// The process, by its number
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: u32,

    /// Leave this much on its devices
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub(crate) keep: Bytes,

    /// Let its work wait until it is woken; otherwise it wakes when it next has work for a device
    #[arg(long)]
    pub(crate) hold: bool,

    /// Print one JSON object with exact bytes, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// Who is to go on.
#[derive(Args, Debug)]
#[command(after_help = WAKE)]
pub(crate) struct Wake {
    /// The process, by its number
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: u32,

    /// Print one JSON object with exact bytes, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}
