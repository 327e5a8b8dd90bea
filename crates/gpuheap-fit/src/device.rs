//! What differs from device to device: memory, speed, the scratch memory of libraries.
//!
//! The figures are data (`device/table.json`), each with where it is from; a file of the user's can add to them and
//! replace them, and a calibration, written by a verification on the device itself, comes last.

mod calibration;
mod convolution;
mod workspace;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use calibration::{Calibration, Measured};
pub use workspace::{add_workspaces, is_matrix_product};

use crate::error::Error;

const TABLE: &str = include_str!("device/table.json");

/// Where a figure is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// We measured it on that device.
    Measured,
    /// The maker's documents, or the source of PyTorch.
    Documents,
    /// Taken over from another device, until somebody measures it.
    Estimated,
}

/// A figure and where it is from.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// The figure, in the unit of its name.
    pub value: f64,
    /// Where it is from.
    pub origin: Origin,
}

/// A type of device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Memory that programs can have, in bytes.
    pub memory_bytes: Figure,
    /// What a process takes beside its allocator: the context and the code of libraries, in bytes.
    pub context_bytes: Figure,
    /// How much more or less than that it may be: programs differ in the kernels that they load; in bytes.
    #[serde(default = "usual_spread")]
    pub context_spread_bytes: Figure,
    /// What NCCL takes for a communicator, in bytes.
    pub communicator_bytes: Figure,
    /// The compute capability, times ten.
    pub compute_capability: u32,
    /// Floating-point operations a second, by type of number.
    pub flops_per_second: BTreeMap<String, Figure>,
    /// The part of them that the largest matrix products come to.
    pub matrix_efficiency: Figure,
    /// The part of those that attention comes to.
    pub attention_efficiency: Figure,
    /// The part of a product of their shape that convolutions come to.
    pub convolution_efficiency: Figure,
    /// How often a convolution goes over its tensors beside its work, to copy them into another order.
    pub convolution_copies: Figure,
    /// Bytes a second between the device and its memory.
    pub memory_bytes_per_second: Figure,
    /// The part of it that elementwise kernels come to.
    pub memory_efficiency: Figure,
    /// Units that blocks of kernels are dealt to.
    #[serde(default = "usual_multiprocessors")]
    pub multiprocessors: Figure,
    /// The second-level cache, in bytes.
    #[serde(default = "usual_cache")]
    pub cache_bytes: Figure,
    /// What a call of a small operator such as `torch.add` costs the program, in microseconds. It is the host's figure
    /// more than the device's: all that the program does is slower on a slower processor.
    pub launch_us: Figure,
    /// What a kernel takes on the device beside its work: to start, and to wait for its last block, in microseconds.
    pub kernel_us: Figure,
    /// Bytes a second over the link to the host.
    pub link_bytes_per_second: Figure,
    /// What NCCL takes more where a rank sends to another and not to all, in bytes; unset where nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point_to_point_bytes: Option<Figure>,
    /// Bytes a second that exchanges within a host come to, each way; unset for devices without links of their own,
    /// which exchange over the link to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_bytes_per_second: Option<Figure>,
}

/// For files that were written before it was asked for.
fn usual_spread() -> Figure {
    Figure { value: 75_497_472.0, origin: Origin::Estimated }
}

/// See [`usual_spread`].
fn usual_multiprocessors() -> Figure {
    Figure { value: 80.0, origin: Origin::Estimated }
}

/// See [`usual_spread`].
fn usual_cache() -> Figure {
    Figure { value: 32e6, origin: Origin::Estimated }
}

impl Device {
    /// All devices that are known, with those of `file`.
    pub fn table(file: Option<&Path>) -> Result<BTreeMap<String, Self>, Error> {
        let own =
            |cause: serde_json::Error| Error::DeviceFile { path: "device/table.json".into(), cause: cause.into() };
        let mut table: BTreeMap<String, Self> = serde_json::from_str(TABLE).map_err(own)?;
        if let Some(path) = file {
            let text = std::fs::read(path).map_err(|source| Error::Open { path: path.to_owned(), source })?;
            let more: BTreeMap<String, Self> = serde_json::from_slice(&text)
                .map_err(|cause| Error::DeviceFile { path: path.to_owned(), cause: cause.into() })?;
            table.extend(more);
        }
        for (name, device) in &mut table {
            device.name.clone_from(name);
        }
        Ok(table)
    }

    /// The device called `name`, in small or large letters; a full name such as `NVIDIA H200` will do, too.
    pub fn find(name: &str, file: Option<&Path>) -> Result<Self, Error> {
        let table = Self::table(file)?;
        let plain = |text: &str| text.to_ascii_lowercase().replace([' ', '-', '_'], "");
        let wanted = plain(name);
        let exact = table.values().find(|device| plain(&device.name) == wanted);
        let within = || {
            let mut found: Vec<&Self> = table.values().filter(|device| wanted.contains(&plain(&device.name))).collect();
            // `RTX 4090 L4` does not exist, but `L4` is part of `L40`: the longest name counts.
            found.sort_by_key(|device| std::cmp::Reverse(device.name.len()));
            found.first().copied()
        };
        exact.or_else(within).cloned().ok_or_else(|| Error::NoSuchDevice {
            name: name.to_owned(),
            known: table.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }

    /// Operations a second for numbers of type `dtype`, as the largest products come to.
    #[must_use]
    pub fn speed(&self, dtype: &str) -> f64 {
        let peak = |name: &str| self.flops_per_second.get(name).map(|figure| figure.value);
        let peak = peak(dtype).or_else(|| peak("float32")).unwrap_or(1e12);
        (peak * self.matrix_efficiency.value).max(1.0)
    }

    /// Bytes a second that kernels read and write.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        (self.memory_bytes_per_second.value * self.memory_efficiency.value).max(1.0)
    }

    /// Bytes a second between two devices of a host, each way.
    #[must_use]
    pub fn peer_bandwidth(&self) -> f64 {
        self.peer_bytes_per_second.map_or(self.link_bytes_per_second.value, |figure| figure.value).max(1.0)
    }

    /// Bytes of the context. What exchanges between devices take comes to that, see
    /// [`exchange::outside_bytes`](crate::exchange::outside_bytes).
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes of memory, not negative")]
    pub fn outside_bytes(&self) -> u64 {
        self.context_bytes.value.max(0.0) as u64
    }

    /// Bytes that the context may be off by, either way.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes of memory, not negative")]
    pub fn context_spread(&self) -> u64 {
        self.context_spread_bytes.value.max(0.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole_and_names_are_found() {
        let table = Device::table(None).unwrap();
        for name in ["H200", "H100", "A100", "RTX 4090", "L4", "T4", "generic"] {
            assert!(table.contains_key(name), "{name}");
        }
        assert_eq!(Device::find("NVIDIA H200", None).unwrap().name, "H200");
        assert_eq!(Device::find("rtx4090", None).unwrap().name, "RTX 4090");
        assert!(Device::find("Voodoo", None).unwrap_err().to_string().contains("known are"));
    }
}
