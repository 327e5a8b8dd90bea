//! `gpuheap explain`: what a recording means.

use std::process::ExitCode;

use crate::cli::{Color, Explain};
use crate::commands::page;
use crate::errors::Error;
use crate::{input, output};

pub(super) fn run(arguments: &Explain, color: Color) -> Result<ExitCode, Error> {
    let (recording, mut progress) = input::read(&arguments.file, output::is_quiet(&arguments.form))?;
    progress.explaining(recording.event_count());
    let options =
        gpuheap_explain::Options { device: arguments.device, limit: arguments.limit, at: arguments.at.map(Into::into) };
    if let Some(path) = &arguments.html {
        let page = page::write(recording, &options, progress)?;
        output::write(Some(path.as_path()).filter(|path| path.as_os_str() != "-"), page.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = gpuheap_explain::explain(&recording, &options).map_err(Error::Explain)?;
    progress.clear();
    output::show(&report, &arguments.form, arguments.details, color)?;
    Ok(ExitCode::SUCCESS)
}
