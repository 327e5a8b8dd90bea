//! Exchanges between devices: which operators they are, how long they take, what they need beside the allocator.

use crate::device::Device;
use crate::trace::{Call, Trace};

/// What starting an exchange takes and agreeing on it, in microseconds: about that of NCCL within a host.
const START_US: f64 = 20.0;

/// Whether an operator exchanges something between ranks.
#[must_use]
pub fn is(op: &str) -> bool {
    op.starts_with("c10d.") || op.starts_with("_c10d_functional.")
}

/// How long one takes, in microseconds: its bytes are those that a rank sends and receives, both at once.
#[must_use]
pub fn us(call: &Call, device: &Device) -> f64 {
    let bytes = call.read.max(call.written);
    if bytes == 0 { 0.0 } else { START_US + bytes as f64 / device.peer_bandwidth() * 1e6 }
}

/// What libraries of exchanges take of a device, in bytes: a communicator, and channels between two ranks where a
/// program sends from one to another.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of memory, not negative")]
pub fn outside_bytes(trace: &Trace, device: &Device, gpus: u32) -> u64 {
    if gpus <= 1 {
        return 0;
    }
    let pairs = ["c10d.send", "c10d.recv", "c10d.scatter", "c10d.gather", "c10d.alltoall"];
    let sends = trace.ops.iter().any(|op| pairs.iter().any(|pair| op.starts_with(pair)));
    let channels = if sends { device.point_to_point_bytes.map_or(0.0, |figure| figure.value) } else { 0.0 };
    (device.communicator_bytes.value + channels).max(0.0) as u64
}
