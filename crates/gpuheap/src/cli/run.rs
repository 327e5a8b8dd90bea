//! The arguments of `gpuheap run`.

use std::ffi::OsString;

use clap::Args;
use gpuheap_record::Bytes;

const AFTER: &str = "\
Examples:
  gpuheap run --budget 12GiB -- python train.py     no more than 12 GiB on each device
  gpuheap run --budget 12GiB --spill 16GiB -- python train.py
  gpuheap run --spill auto python train.py          past the card's size, onto the host
  gpuheap run -- torchrun --nproc-per-node 2 train.py

Options of gpuheap stand before the program, all after it is the program's own.
While it runs: `gpuheap ps` in another terminal, `gpuheap yield PID`, `gpuheap wake PID`.

A run inside a run counts in the outer one: no `--spill` there, and no `--budget` smaller than the outer one's.

Exit codes: the program's own, 128 and the signal's number if one ended it, 127 no such program, 126 it cannot be run,
2 bad use, no driver, nowhere to write";

/// Within what to run a program.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Run {
    /// The most that all processes of the run may hold on each device: `12GiB`, `24GB` or bytes [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = super::limit)]
    pub(crate) budget: Option<Bytes>,

    /// Host memory that may stand behind device addresses when the device or the budget is full: a size, `auto` (half of
    /// the memory that is free) or `off` [default: off]
    #[arg(long, value_name = "SIZE|auto|off", value_parser = spill)]
    pub(crate) spill: Option<Spill>,

    /// Leave memory where it is: nothing spills, and `gpuheap yield` is refused
    #[arg(long)]
    pub(crate) no_move: bool,

    /// Print nothing of what gpuheap sees: no refused requests, no summary
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) program: Vec<OsString>,
}

/// How much may spill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spill {
    /// Nothing.
    Off,
    /// What the machine has to spare.
    Auto,
    /// So much.
    Most(Bytes),
}

fn spill(text: &str) -> Result<Spill, String> {
    match text {
        "off" => Ok(Spill::Off),
        "auto" => Ok(Spill::Auto),
        size => super::limit(size).map(Spill::Most).map_err(|why| format!("{why}, or `auto` or `off`")),
    }
}
