//! The subcommands: one file each.

mod check;
mod completions;
mod diff;
mod explain;
mod export;
mod man;
mod open;
mod page;
mod serve;
mod tui;
mod whatif;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::errors::Error;

/// Does what was asked for.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, Error> {
    match cli.command {
        Command::Explain(arguments) => explain::run(&arguments, cli.color),
        Command::WhatIf(arguments) => whatif::run(&arguments, cli.color),
        Command::Diff(arguments) => diff::run(&arguments, cli.color),
        Command::Check(arguments) => check::run(&arguments),
        Command::Open(arguments) => open::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Tui(arguments) => tui::run(&arguments, cli.color),
        Command::Export(arguments) => export::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man => man::run(),
    }
}
