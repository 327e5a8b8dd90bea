//! How much memory recordings may take, and how much one takes.

use gpuheap_record::{Bytes, Recording};

/// The machine's memory where the system does not tell it.
const UNTOLD: u64 = 8 << 30;
/// Bytes of an event in a recording, measured.
const EVENT_BYTES: u64 = 40;
/// Bytes of an event in an analysis, measured.
const ANALYSED_EVENT_BYTES: u64 = 40;
/// Bytes of a stack or a frame with what analyses know of it.
const STACK_BYTES: u64 = 64;

/// Half of the memory that the machine, or the container, has: what recordings may take where nothing else is said.
#[must_use]
pub fn half_of_memory() -> Bytes {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| total_of(&text));
    let container = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok());
    Bytes::new(machine.unwrap_or(UNTOLD).min(container.unwrap_or(u64::MAX)) / 2)
}

/// The machine's memory in `/proc/meminfo`.
fn total_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes.saturating_mul(1024))
}

/// About how many bytes a recording and the analyses of its devices take.
pub(crate) fn cost(recording: &Recording) -> u64 {
    let events = recording.event_count() as u64;
    let stacks = (recording.stacks.len() + recording.frames.len()) as u64;
    let devices = recording.devices.len() as u64;
    events * (EVENT_BYTES + ANALYSED_EVENT_BYTES) + stacks * STACK_BYTES * (devices + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_tells_its_memory() {
        assert_eq!(total_of("MemFree: 1 kB\nMemTotal:       16384 kB\n"), None.or(Some(16 << 20)));
        assert_eq!(total_of("nothing"), None);
        assert!(half_of_memory() > Bytes::ZERO);
    }
}
