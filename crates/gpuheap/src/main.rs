//! The command `gpuheap`: explains GPU memory.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    gpuheap::main_with(std::env::args_os())
}
