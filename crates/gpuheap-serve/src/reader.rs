//! Reads and analyses one recording.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use axum::body::Bytes;
use gpuheap_explain::{Analysis, Options, Served, SkewFigures};
use gpuheap_record::Bytes as Size;

use crate::loaded::{Device, Loaded};
use crate::memory;
use crate::state::{Failure, Stage};
use crate::summary::Summary;

/// More devices of one recording than this are not listed.
const MOST_DEVICES: usize = 64;

/// What a recording gave.
pub(crate) struct Outcome {
    pub(crate) loaded: Loaded,
    /// One entry a device.
    pub(crate) devices: Vec<(Summary, SkewFigures)>,
}

/// Reads the file and analyses each of its devices. `ids` gives so many recordings their numbers; `stage` is told how
/// far the work is.
pub(crate) fn read(
    path: &Path,
    name: &str,
    limit: Option<Size>,
    stage: &dyn Fn(Stage),
    ids: &dyn Fn(usize) -> Vec<u32>,
) -> Result<Outcome, Failure> {
    let recording = open(path, name, stage)?;
    stage(Stage::Analysing);
    let recording = Arc::new(recording);
    let ordinals: Vec<Option<u32>> = match recording.devices.as_slice() {
        // Explaining it says what is missing.
        [] => vec![None],
        devices => devices.iter().take(MOST_DEVICES).map(|device| Some(device.device.get())).collect(),
    };
    let mut analysed = Vec::new();
    for device in ordinals {
        let options = Options { device, limit, at: None };
        let analysis = Analysis::new(Arc::clone(&recording), &options).map_err(|error| Failure::of(&error, None))?;
        analysed.push(Arc::new(analysis));
    }
    let ids = ids(analysed.len());
    let (mut devices, mut listed) = (Vec::new(), Vec::new());
    for (analysis, id) in analysed.into_iter().zip(ids) {
        let report = analysis.report();
        listed.push((Summary::of(report), SkewFigures::of(report)));
        let served = Served::new(analysis);
        let page = served.page(&gpuheap_report::html::generator(), &id.to_string());
        let page = gpuheap_report::html::compressed(&page).map_err(|error| Failure::of(&error, None))?;
        devices.push(Device { served, page: Bytes::from(page) });
    }
    let cost = memory::cost(&recording);
    Ok(Outcome { loaded: Loaded::new(devices, cost), devices: listed })
}

fn open(path: &Path, name: &str, stage: &dyn Fn(Stage)) -> Result<gpuheap_record::Recording, Failure> {
    let failed = |source: io::Error| {
        let error = gpuheap_import::Error::Open { path: name.into(), source };
        Failure::of(&error, error.hint())
    };
    // A pipe would keep the reader for ever.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is not a file")));
    }
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mut progress = |state: gpuheap_import::Progress| {
        let total = state.total.unwrap_or(0).max(1);
        stage(Stage::Reading { percent: u8::try_from(state.read.saturating_mul(100) / total).unwrap_or(100).min(100) });
    };
    let options = gpuheap_import::Options { progress: Some(&mut progress) };
    // Messages and pages name the recording as the list does.
    gpuheap_import::read_from(file, Some(metadata.len()), name.as_ref(), options)
        .map_err(|error| Failure::of(&error, error.hint()))
}

impl Failure {
    /// An error with its causes in one line.
    pub(crate) fn of(error: &dyn std::error::Error, hint: Option<String>) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Self { error: text, hint }
    }
}
