//! The command `gpuheap`: explains GPU memory.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    gpuheap::main_with(&gpuheap::Own::program(), std::env::args_os())
}
