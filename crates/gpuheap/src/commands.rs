//! The subcommands: one file each.

mod completions;
mod explain;
mod man;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::errors::Error;

/// Does what was asked for.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, Error> {
    match cli.command {
        Command::Explain(arguments) => explain::run(&arguments, cli.color),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man => man::run(),
    }
}
