//! `gpuheap diff`: what changed from one recording to another.

use std::process::ExitCode;

use gpuheap_explain::Options;

use crate::cli::{Color, Diff};
use crate::errors::Error;
use crate::{input, output};

pub(super) fn run(arguments: &Diff, color: Color) -> Result<ExitCode, Error> {
    let quiet = output::is_quiet(&arguments.form);
    let (before, mut progress) = input::read(&arguments.before, quiet)?;
    let after = if arguments.after == arguments.before {
        None
    } else {
        progress.clear();
        let (after, more) = input::read(&arguments.after, quiet)?;
        progress = more;
        Some(after)
    };
    let after = after.as_ref().unwrap_or(&before);
    progress.explaining(before.event_count() + after.event_count());
    let options = |device: Option<u32>| Options { device: device.or(arguments.device), ..Options::default() };
    let (first, second) = (options(arguments.device_a), options(arguments.device_b));
    let diff = gpuheap_explain::diff((&before, &first), (after, &second)).map_err(Error::Explain)?;
    progress.clear();
    output::show(&diff, &arguments.form, arguments.details, color)?;
    Ok(ExitCode::SUCCESS)
}
