//! `gpuheap completions`: scripts for shells.

use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::{Cli, Completions};
use crate::errors::Error;
use crate::output;

pub(super) fn run(arguments: &Completions) -> Result<ExitCode, Error> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "gpuheap", &mut script);
    output::print(&script)?;
    Ok(ExitCode::SUCCESS)
}
