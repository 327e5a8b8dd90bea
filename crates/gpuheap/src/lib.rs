//! The command `gpuheap` as a library, for everything that carries it: the program of that name and the Python package.
#![forbid(unsafe_code)]

mod budget;
mod cli;
mod commands;
mod errors;
mod files;
mod fit;
mod input;
mod output;
mod own;
mod progress;
mod replace;
#[cfg(target_os = "linux")]
mod run;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

pub use own::Own;
pub use replace::replace;

/// Runs the command as the program does: `arguments` start with the name by which it was called, output goes to the
/// standard streams of the process. 0 is done, 1 a check that failed, 2 bad input or use; `gpuheap run` ends as its
/// program did.
pub fn main_with(own: &Own, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    #[cfg(target_os = "linux")]
    if let Some(answer) = run::probe::answer(&arguments) {
        return answer;
    }
    match cli::Cli::try_parse_from(&arguments) {
        Ok(cli) => {
            let color = cli.color;
            commands::run(cli, own).unwrap_or_else(|error| errors::report(&error, color))
        }
        Err(answer) => match file_as_command(&answer, &arguments) {
            Some(path) => errors::report(&errors::Error::NoCommand { path }, cli::Color::Auto),
            None => errors::usage(&answer),
        },
    }
}

/// The file that stands where a subcommand belongs.
fn file_as_command(answer: &clap::Error, arguments: &[OsString]) -> Option<PathBuf> {
    let path = PathBuf::from(arguments.get(1)?);
    (answer.kind() == ErrorKind::InvalidSubcommand && path.is_file()).then_some(path)
}
