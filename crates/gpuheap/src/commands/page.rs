//! The HTML page of a recording, which several commands make.

use std::sync::{Arc, Mutex};

use gpuheap_explain::{Analysis, Options};
use gpuheap_record::Recording;

use crate::errors::Error;
use crate::progress::Progress;

/// Analyses the recording, tries other settings and makes the page.
pub(super) fn write(recording: Recording, options: &Options, progress: Progress) -> Result<String, Error> {
    let analysis = Analysis::new(Arc::new(recording), options).map_err(Error::Explain)?;
    let progress = Mutex::new(progress);
    let update = |done, of| {
        // Another thread that failed while it showed a line is no reason to fail here.
        if let Ok(mut progress) = progress.lock() {
            progress.replaying(done, of);
        }
    };
    let curves = analysis.whatif_curves(&update).map_err(Error::Explain)?;
    gpuheap_report::to_html(&analysis, curves).map_err(Error::Report)
}
