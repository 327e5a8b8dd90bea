//! The command `gpuheap`: explains GPU memory.
#![forbid(unsafe_code)]

mod budget;
mod cli;
mod commands;
mod errors;
mod files;
mod input;
mod output;
mod progress;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => {
            let color = cli.color;
            commands::run(cli).unwrap_or_else(|error| errors::report(&error, color))
        }
        Err(answer) => errors::usage(&answer),
    }
}
