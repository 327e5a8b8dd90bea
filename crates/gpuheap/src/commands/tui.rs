//! `gpuheap tui`: a recording to look around in, on a terminal.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;

use gpuheap_explain::Analysis;

use crate::cli::{Color, Tui};
use crate::errors::Error;
use crate::{input, output};

pub(super) fn run(arguments: &Tui, color: Color) -> Result<ExitCode, Error> {
    // Said before minutes of reading, not after them.
    let from_input = arguments.file.as_os_str() == "-";
    if !io::stdout().is_terminal() {
        return Err(Error::NoTerminal { stream: "output" });
    }
    if from_input && cfg!(target_os = "macos") {
        // There, nobody can wait for keys of the terminal while something else is the input.
        return Err(Error::NoKeys);
    }
    if !from_input && !io::stdin().is_terminal() {
        return Err(Error::NoTerminal { stream: "input" });
    }
    let (recording, mut progress) = input::read(&arguments.file, false)?;
    progress.explaining(recording.event_count());
    let options =
        gpuheap_explain::Options { device: arguments.device, limit: arguments.limit, at: arguments.at.map(Into::into) };
    let analysis = Analysis::new(Arc::new(recording), &options).map_err(Error::Explain)?;
    let options = gpuheap_tui::Options {
        color: output::colored(&io::stdout(), color),
        unicode: output::unicode(),
        limit: arguments.limit,
    };
    gpuheap_tui::run(analysis, &options, || progress.clear()).map_err(Error::Tui)?;
    Ok(ExitCode::SUCCESS)
}
