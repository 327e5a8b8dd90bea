//! What was found out on a device itself: figures that a calibration measured, and factors between predicted and real
//! that verifications found.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Device, Figure, Origin};
use crate::error::Error;

/// Figures of a device as `gpuheap fit --calibrate` measured them, in the units of [`Device`]; those that it did not
/// measure are the table's.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Operations a second of large matrix products, by type of number.
    pub flops_per_second: BTreeMap<String, f64>,
    /// Bytes a second of a long copy within the device, read and written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes_per_second: Option<f64>,
    /// Bytes a second over the link to the host, the slower way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_bytes_per_second: Option<f64>,
    /// See [`Device::launch_us`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch_us: Option<f64>,
    /// See [`Device::kernel_us`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_us: Option<f64>,
    /// See [`Device::multiprocessors`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiprocessors: Option<f64>,
}

/// Figures and factors that make predictions of a device right, kept in a file beside other settings of the user.
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
    /// What was measured, if that was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

impl Default for Calibration {
    fn default() -> Self {
        Self { device: String::new(), time_factor: 1.0, context_bytes: 0, peak_error: 0.0, runs: 0, measured: None }
    }
}

impl Calibration {
    /// Reads a calibration.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read(path).map_err(|source| Error::Open { path: path.to_owned(), source })?;
        serde_json::from_slice(&text).map_err(|cause| Error::DeviceFile { path: path.to_owned(), cause: cause.into() })
    }

    /// Whether it was made on such a device and says something that can be true.
    #[must_use]
    pub fn is_for(&self, device: &Device) -> bool {
        self.device.eq_ignore_ascii_case(&device.name)
            && (0.05..=20.0).contains(&self.time_factor)
            && (0.0..=1.0).contains(&self.peak_error)
            // A context leaves some of the device.
            && (self.context_bytes as f64) < device.memory_bytes.value
    }

    /// The device with what was measured in the place of what its table says. What cannot be true is left out.
    #[must_use]
    pub fn applied_to(&self, device: Device) -> Device {
        let Some(measured) = self.measured.as_ref().filter(|_| self.is_for(&device)) else { return device };
        let mut device = device;
        let figure = |value: f64| Figure { value, origin: Origin::Measured };
        let set = |place: &mut Figure, value: Option<f64>| {
            // A tenth and ten times as much of what is known is another device, or a mistake.
            if let Some(value) = value.filter(|value| (place.value / 10.0..=place.value * 10.0).contains(value)) {
                *place = figure(value);
            }
        };
        // The table's figures come with the part of them that is come to; measured ones are that already.
        let whole = |part: &mut Figure| *part = figure(1.0);
        let scale = device.matrix_efficiency.value;
        let mut any = false;
        for (name, &flops) in &measured.flops_per_second {
            let known = device.flops_per_second.get(name).map_or(flops, |known| known.value * scale);
            if (known / 10.0..=known * 10.0).contains(&flops) && flops > 0.0 {
                any = true;
                device.flops_per_second.insert(name.clone(), figure(flops));
            }
        }
        if any {
            for (name, known) in &mut device.flops_per_second {
                if !measured.flops_per_second.contains_key(name) {
                    known.value *= scale;
                }
            }
            whole(&mut device.matrix_efficiency);
        }
        let before = device.memory_bytes_per_second;
        set(&mut device.memory_bytes_per_second, measured.memory_bytes_per_second);
        if device.memory_bytes_per_second != before {
            // Kernels that read and write less at once are a little faster than a long copy.
            whole(&mut device.memory_efficiency);
        }
        set(&mut device.link_bytes_per_second, measured.link_bytes_per_second);
        set(&mut device.launch_us, measured.launch_us);
        set(&mut device.kernel_us, measured.kernel_us);
        set(&mut device.multiprocessors, measured.multiprocessors);
        device
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_takes_the_place_of_the_table() {
        let text = r#"{"device": "A100", "measured": {"flops_per_second": {"float32": 19e12}, "launch_us": 4.0,
            "memory_bytes_per_second": 1.7e12, "link_bytes_per_second": 1.0}}"#;
        let known: Calibration = serde_json::from_str(text).unwrap();
        let table = Device::find("A100", None).unwrap();
        let device = known.applied_to(table.clone());
        assert_eq!((device.launch_us.value, device.launch_us.origin), (4.0, Origin::Measured));
        assert!((device.speed("float32") - 19e12).abs() < 1.0 && (device.bandwidth() - 1.7e12).abs() < 1.0);
        // What was not measured comes to the same as before.
        assert!((device.speed("bfloat16") / table.speed("bfloat16") - 1.0).abs() < 1e-9);
        // A byte a second is no link.
        assert_eq!(device.link_bytes_per_second, table.link_bytes_per_second);
        // A context as large as the device is a mistake, and then the rest may be one.
        let full = Calibration { context_bytes: u64::MAX, ..known.clone() };
        assert!(!full.is_for(&table) && full.applied_to(table.clone()) == table);
        for (name, value) in [("launch_us", "-4"), ("kernel_us", "1e308"), ("multiprocessors", "0")] {
            let text = format!(r#"{{"device": "A100", "measured": {{"{name}": {value}}}}}"#);
            let known: Calibration = serde_json::from_str(&text).unwrap();
            assert_eq!(known.applied_to(table.clone()), table, "{name}");
        }
        let other = Device::find("H100", None).unwrap();
        assert_eq!(known.applied_to(other.clone()), other);
    }
}
