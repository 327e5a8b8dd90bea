//! What can go wrong when a recording is explained.

use crate::report::MomentName;

/// Why a recording cannot be explained as asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The recording has neither events nor segments.
    #[error("There is nothing to explain: the recording has no memory of any device")]
    Nothing,
    /// The recording knows nothing of the device.
    #[error("The recording has no device {asked}: it has {}", list(.available))]
    NoSuchDevice {
        /// The device that was asked for.
        asked: u32,
        /// The devices that it has.
        available: Vec<u32>,
    },
    /// Settings were to be tried on memory that no allocator manages.
    #[error("There are no settings to try: the recording is of what libraries asked the driver for")]
    OfDriver,
    /// The settings cannot be used.
    #[error("Failed to read the settings `{conf}`")]
    BadConf {
        /// The string.
        conf: String,
        /// Why.
        #[source]
        source: gpuheap_alloc::torch::ConfError,
    },
    /// The moment that was asked for never came.
    #[error("The recording has no such moment: no allocation failed")]
    NoSuchMoment {
        /// The moment that was asked for.
        asked: MomentName,
    },
    /// The recording ends before the tick that was asked for.
    #[error("The recording has no tick {asked}: its last is {last}")]
    NoSuchTick {
        /// The tick that was asked for.
        asked: u32,
        /// The last tick.
        last: u32,
    },
}

fn list(devices: &[u32]) -> String {
    match devices {
        [one] => format!("device {one}"),
        many => format!("devices {}", many.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}
