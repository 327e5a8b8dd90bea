//! Reads any bytes as a snapshot: an error or a sound recording, never a panic, never memory out of proportion.
#![no_main]

use std::path::Path;

use gpuheap_import::{Options, read_from};
use gpuheap_record::{Recording, StackId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match read_from(bytes, Some(bytes.len() as u64), Path::new("-"), Options::default()) {
        Ok(recording) => check(&recording),
        // Every error can be shown.
        Err(error) => drop((error.to_string(), error.hint(), error.cause().map(ToString::to_string))),
    }
});

/// What every recording promises to those who read it.
fn check(recording: &Recording) {
    let known_stack = |stack: StackId| {
        assert!(stack.index() < recording.stacks.len());
        for frame in recording.frames_of(stack).take(1000) {
            assert!(recording.frames.get(frame).is_some());
        }
    };
    assert!(recording.devices.is_sorted_by_key(|device| device.device));
    for device in recording.devices.iter().chain(&recording.host) {
        for id in device.events.ids() {
            let event = device.events.get(id);
            known_stack(event.stack);
            assert!(recording.streams.get(event.stream).is_some());
            assert!(recording.contexts.get(event.context).is_some());
            assert!(event.pool.is_none_or(|pool| recording.pools.get(pool).is_some()));
            assert!(event.size <= 1 << 46);
        }
        assert!(device.segments.is_sorted_by_key(|segment| segment.address));
        for segment in &device.segments {
            known_stack(segment.stack);
            assert!(segment.address.checked_add(segment.total_size).is_some());
            assert!(segment.blocks.is_sorted_by_key(|block| block.address));
            for block in &segment.blocks {
                known_stack(block.stack);
                assert!(block.size <= 1 << 46 && block.requested_size <= 1 << 46);
            }
        }
    }
    assert!(recording.annotations.is_sorted_by_key(|annotation| annotation.time_us));
    for annotation in &recording.annotations {
        assert!(recording.strings.get(annotation.name).is_some());
    }
}
