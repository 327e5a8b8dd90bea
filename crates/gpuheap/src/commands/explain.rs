//! `gpuheap explain`: what a recording means.

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;

use gpuheap_report::Style;

use crate::cli::{Color, Explain};
use crate::errors::Error;
use crate::progress::Progress;
use crate::{files, output};

pub(super) fn run(arguments: &Explain, color: Color) -> Result<ExitCode, Error> {
    let path = files::recording(&arguments.file)?;
    let quiet = arguments.json && arguments.output.is_none() && !stdout().is_terminal();
    let mut progress = Progress::new(&path, quiet);
    let mut update = |state: gpuheap_import::Progress| progress.read(state.read, state.total);
    let recording =
        gpuheap_import::read(&path, gpuheap_import::Options { progress: Some(&mut update) }).map_err(Error::Import)?;
    progress.explaining(recording.event_count());
    let options =
        gpuheap_explain::Options { device: arguments.device, limit: arguments.limit, at: arguments.at.map(Into::into) };
    let report = gpuheap_explain::explain(&recording, &options).map_err(Error::Explain)?;
    progress.clear();

    let text = if arguments.json {
        gpuheap_report::to_json(&report).map_err(Error::Report)?
    } else if arguments.md {
        gpuheap_report::to_markdown(&report)
    } else {
        gpuheap_report::render(&report, &style(arguments, color))
    };
    match &arguments.output {
        Some(path) => output::write_file(path, text.as_bytes())?,
        None => output::print(text.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn style(arguments: &Explain, color: Color) -> Style {
    let to_file = arguments.output.is_some();
    Style {
        width: arguments.width.map_or_else(|| output::width(to_file), usize::from),
        color: match color {
            Color::Auto if to_file => false,
            choice => output::colored(&stdout(), choice),
        },
        unicode: output::unicode(),
        details: arguments.details,
    }
}
