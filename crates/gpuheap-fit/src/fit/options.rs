//! What to fit into what.

use std::path::PathBuf;

use serde::Deserialize;

use crate::device::{Calibration, Device};
use crate::error::Error;
use crate::json::JsonError;
use crate::levers::Lever;
use crate::plan::Limits;

/// What to fit.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// The device.
    pub device: Device,
    /// What was found out about it.
    pub calibration: Option<Calibration>,
    /// Bytes that the program may take of the device, its context included; none for all of the device.
    pub budget: Option<u64>,
    /// What limits the search.
    pub limits: Limits,
    /// Whether to work out the front of time against memory, too.
    pub front: bool,
    /// Whether to keep memory through time, too.
    pub timelines: bool,
}

/// Devices of a host, at most.
pub(super) const MOST_GPUS: u64 = 4096;
/// Samples of a step, at most.
pub(super) const MOST_SAMPLES: u64 = 1 << 32;
/// Bytes of a device, at most.
pub(super) const MOST_BYTES: u64 = 1 << 60;

fn within(name: &str, value: u64, range: std::ops::RangeInclusive<u64>) -> Result<(), Error> {
    if range.contains(&value) {
        return Ok(());
    }
    let why = format!("`{name}` is {value}, and has to be from {} to {}", range.start(), range.end());
    Err(Error::Options(JsonError::said(why)))
}

/// Options as Python gives them.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct JsonOptions {
    budget_bytes: Option<u64>,
    device: String,
    device_file: Option<PathBuf>,
    calibration: Option<PathBuf>,
    gpus: u32,
    batch: Option<u64>,
    conf: Option<String>,
    set: Vec<Lever>,
    without: Vec<String>,
    allow: Vec<String>,
    workspace: Option<String>,
    front: bool,
    timelines: bool,
}

impl Default for JsonOptions {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            device: "H200".to_owned(),
            device_file: None,
            calibration: None,
            gpus: 1,
            batch: None,
            conf: None,
            set: Vec::new(),
            without: Vec::new(),
            allow: Vec::new(),
            workspace: None,
            front: false,
            timelines: false,
        }
    }
}

impl FitOptions {
    /// Reads options from a JSON object; what it does not name has its default.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let options: JsonOptions = serde_json::from_str(text).map_err(|error| Error::Options(error.into()))?;
        within("gpus", options.gpus.into(), 1..=MOST_GPUS)?;
        within("batch", options.batch.unwrap_or(1), 1..=MOST_SAMPLES)?;
        within("budget_bytes", options.budget_bytes.unwrap_or(1), 0..=MOST_BYTES)?;
        let device = Device::find(&options.device, options.device_file.as_deref())?;
        let calibration = options.calibration.as_deref().map(Calibration::read).transpose()?;
        Ok(Self {
            device: calibration.iter().fold(device, |device, known| known.applied_to(device)),
            calibration,
            budget: options.budget_bytes,
            limits: Limits {
                conf: options.conf,
                gpus: options.gpus,
                batch: options.batch,
                set: options.set,
                without: options.without,
                allow: options.allow,
                workspace: options.workspace,
            },
            front: options.front,
            timelines: options.timelines,
        })
    }
}
