//! The subcommands: one file each.

mod check;
mod check_plan;
mod completions;
mod diff;
mod explain;
mod export;
mod fit;
mod man;
mod open;
mod page;
#[cfg(target_os = "linux")]
mod ps;
#[cfg(target_os = "linux")]
mod run;
mod serve;
mod tui;
#[cfg(target_os = "linux")]
mod wake;
mod whatif;
#[cfg(target_os = "linux")]
mod r#yield;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::errors::Error;
use crate::own::Own;

/// Does what was asked for.
pub(crate) fn run(cli: Cli, own: &Own) -> Result<ExitCode, Error> {
    match cli.command {
        Command::Explain(arguments) => explain::run(&arguments, cli.color),
        Command::WhatIf(arguments) => whatif::run(&arguments, cli.color),
        Command::Diff(arguments) => diff::run(&arguments, cli.color),
        Command::Check(arguments) => check::run(&arguments, own),
        Command::Open(arguments) => open::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Tui(arguments) => tui::run(&arguments, cli.color),
        Command::Export(arguments) => export::run(&arguments),
        Command::Fit(arguments) => fit::run(&arguments, own, cli.color),
        #[cfg(target_os = "linux")]
        Command::Run(arguments) => run::run(&arguments, own),
        #[cfg(target_os = "linux")]
        Command::Ps(arguments) => ps::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Yield(arguments) => r#yield::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Wake(arguments) => wake::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man => man::run(),
    }
}
