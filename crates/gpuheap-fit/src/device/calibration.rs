//! What a verification on a device found: factors between predicted and real.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Device;
use crate::error::Error;

/// Factors that make predictions of a device right, kept in a file beside other settings of the user.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Calibration {
    /// The device that it was made on; for others it is not used.
    pub device: String,
    /// Real time of a step over the predicted.
    pub time_factor: f64,
    /// Real bytes of the context; 0 where that was not measured.
    pub context_bytes: u64,
    /// The largest error of peaks that was seen, as a part of the real peak; 0 where none was.
    pub peak_error: f64,
    /// How many verifications went into it.
    pub runs: u64,
}

impl Default for Calibration {
    fn default() -> Self {
        Self { device: String::new(), time_factor: 1.0, context_bytes: 0, peak_error: 0.0, runs: 0 }
    }
}

impl Calibration {
    /// Reads a calibration.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read(path).map_err(|source| Error::Open { path: path.to_owned(), source })?;
        serde_json::from_slice(&text).map_err(|cause| Error::DeviceFile { path: path.to_owned(), cause })
    }

    /// Whether it was made on such a device and says something that can be true.
    #[must_use]
    pub fn is_for(&self, device: &Device) -> bool {
        self.device.eq_ignore_ascii_case(&device.name)
            && (0.05..=20.0).contains(&self.time_factor)
            && (0.0..=1.0).contains(&self.peak_error)
    }
}
