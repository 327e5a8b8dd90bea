//! `gpuheap whatif`: what other settings would have done.

use std::process::ExitCode;
use std::sync::Mutex;

use gpuheap_explain::{Options, WhatIfOptions, WhatIfReport};
use gpuheap_record::Recording;

use crate::cli::{Color, WhatIf};
use crate::errors::Error;
use crate::progress::Progress;
use crate::{input, output};

/// A verification found a difference.
const DIFFERENT: u8 = 1;

pub(super) fn run(arguments: &WhatIf, color: Color) -> Result<ExitCode, Error> {
    let (recording, progress) = input::read(&arguments.file, output::is_quiet(&arguments.form))?;
    let report = if arguments.verify {
        verify(&recording, arguments, progress)?
    } else {
        search(&recording, arguments, progress)?
    };
    output::show(&report, &arguments.form, false, color)?;
    let different = arguments.verify && !report.replay.exact;
    Ok(if different { ExitCode::from(DIFFERENT) } else { ExitCode::SUCCESS })
}

fn search(recording: &Recording, arguments: &WhatIf, progress: Progress) -> Result<WhatIfReport, Error> {
    let options = WhatIfOptions { device: arguments.device, confs: arguments.confs.clone(), limit: arguments.limit };
    let progress = Mutex::new(progress);
    let update = |done, of| {
        // Another thread that failed while it showed a line is no reason to fail here.
        if let Ok(mut progress) = progress.lock() {
            progress.replaying(done, of);
        }
    };
    gpuheap_explain::whatif(recording, &options, &update).map_err(Error::Explain)
}

/// The report without rows: only how well the recorded settings explain the recording.
fn verify(recording: &Recording, arguments: &WhatIf, mut progress: Progress) -> Result<WhatIfReport, Error> {
    progress.explaining(recording.event_count());
    let options = Options { device: arguments.device, ..Options::default() };
    let report = gpuheap_explain::explain(recording, &options).map_err(Error::Explain)?;
    Ok(WhatIfReport {
        schema: report.schema,
        source: report.source,
        replay: report.replay,
        whatif: Vec::new(),
        best: None,
        saves_bytes: None,
    })
}
