//! What `gpuheap fit` does beside planning: it finds Python, has the model traced, has a plan verified.

pub(crate) mod calibrate;
pub(crate) mod changes;
pub(crate) mod error;
pub(crate) mod python;
pub(crate) mod traces;
pub(crate) mod verify;

use std::path::PathBuf;

/// Where the calibration of a device is kept.
pub(crate) fn calibration_path(device: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = if cfg!(windows) {
        set("APPDATA")
    } else {
        set("XDG_CONFIG_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| set("HOME").map(|home| home.join(".config")))
    };
    let name: String = device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    folder.map(|folder| folder.join("gpuheap").join(format!("fit-{name}.json")))
}
