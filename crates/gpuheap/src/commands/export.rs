//! `gpuheap export`: a recording for other tools.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use gpuheap_explain::Analysis;

use crate::cli::Export;
use crate::errors::Error;
use crate::{input, output};

pub(super) fn run(arguments: &Export) -> Result<ExitCode, Error> {
    let format = arguments.to.0;
    let file = arguments.output.as_deref().filter(|&path| path != Path::new("-"));
    let shown = file.is_none() && io::stdout().is_terminal();
    if shown && !format.is_text() {
        return Err(Error::Terminal { format: format.name() });
    }
    // Lines that come and go are not to stand between those of the export.
    let (recording, mut progress) = input::read(&arguments.file, shown)?;
    progress.explaining(recording.event_count());
    let at = arguments.at.map(Into::into);
    let options = gpuheap_explain::Options { device: arguments.device, limit: None, at };
    let analysis = Analysis::new(Arc::new(recording), &options).map_err(Error::Explain)?;
    progress.clear();
    let generator = concat!("gpuheap ", env!("CARGO_PKG_VERSION")).to_owned();
    let options = gpuheap_export::Options { at, generator };
    output::stream(file, &mut progress, |out| gpuheap_export::write(format, &analysis, &options, out))?;
    Ok(ExitCode::SUCCESS)
}
