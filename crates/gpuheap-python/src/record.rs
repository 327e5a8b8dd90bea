//! A snapshot of a running program, with what the program says of itself, to a recording.

use gpuheap_record::{DeviceId, Name, NamedAs, Note, Recording};

/// A name as Python gives it: device, address, microseconds of Unix time, kind, text.
pub(crate) type Label = (u32, u64, u64, String, String);

/// Adds names and notes to a recording.
pub(crate) fn add(recording: &mut Recording, names: Vec<Label>, notes: Vec<String>) {
    for (device, address, time_us, kind, text) in names {
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
    recording.notes.extend(notes.into_iter().map(Note));
}
