//! A snapshot of a running program, with what the program says of itself, to a recording.

use gpuheap_explain::fill_gaps;
use gpuheap_record::{DeviceId, DeviceMemory, Name, NamedAs, Note, Recording};
use pyo3::FromPyObject;

/// A name as Python gives it: device, address, microseconds of Unix time, kind, text.
pub(crate) type Label = (u32, u64, u64, String, String);

/// What the driver said, as Python gives it: device, microseconds of Unix time, and bytes: total, free, reserved, own,
/// others'.
pub(crate) type Memory = (u32, u64, u64, u64, u64, Option<u64>, Option<u64>);

/// What a program says of itself beside a snapshot.
#[derive(FromPyObject, Debug, Default)]
#[pyo3(from_item_all)]
pub(crate) struct Beside {
    names: Vec<Label>,
    /// Times in which no stacks were recorded, in microseconds of Unix time.
    gaps: Vec<(u64, u64)>,
    memory: Vec<Memory>,
    facts: Vec<(String, String)>,
    notes: Vec<String>,
}

/// Adds it to the recording.
pub(crate) fn add(recording: &mut Recording, beside: Beside) {
    for (device, address, time_us, kind, text) in beside.names {
        let named_as = match kind.as_str() {
            "parameter" => NamedAs::Parameter,
            "gradient" => NamedAs::Gradient,
            "optimizer_state" => NamedAs::OptimizerState,
            "activation" => NamedAs::Activation,
            "input" => NamedAs::Input,
            "cache" => NamedAs::Cache,
            _ => NamedAs::Other,
        };
        let name = recording.strings.intern(&text);
        recording.names.push(Name { device: DeviceId::new(device), address, time_us, named_as, name });
    }
    for (device, time_us, total, free, reserved, own, others) in beside.memory {
        let device = DeviceId::new(device);
        recording.device_memory.push(DeviceMemory { device, time_us, total, free, reserved, own, others });
    }
    recording.facts.extend(beside.facts);
    recording.notes.extend(beside.notes.into_iter().map(Note));
    let filled = fill_gaps(recording, &beside.gaps);
    recording.notes.extend(filled.note().map(Note));
}
