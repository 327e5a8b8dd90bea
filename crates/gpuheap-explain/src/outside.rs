//! What the allocator has not: memory of a whole device, as the driver told the recorder.
//!
//! The driver is asked now and then; between two times what lies outside the allocator is taken to be as at the nearer
//! one. Then the account closes to what the device has: reserved + outside + free = total.

use gpuheap_record::{Bytes, DeviceId, DeviceMemory, Recording};

use crate::report::{LedgerPart, PartKind};

/// What the driver said nearest to `time_us`; without a time, last.
pub(crate) fn nearest(recording: &Recording, device: DeviceId, time_us: Option<u64>) -> Option<&DeviceMemory> {
    let mut known = recording.device_memory.iter().filter(|memory| memory.device == device && memory.total > 0);
    match time_us {
        None => known.next_back(),
        Some(time_us) => known.min_by_key(|memory| memory.time_us.abs_diff(time_us)),
    }
}

/// The most that the allocator could have reserved on the device, with as much outside it as there was last.
pub(crate) fn room(recording: &Recording, device: DeviceId) -> Option<Bytes> {
    let memory = nearest(recording, device, None)?;
    Some(Bytes::new(memory.total.saturating_sub(memory.outside())))
}

/// The parts beside `reserved` bytes at `time_us` that close the account to what the device has.
pub(crate) fn parts(memory: &DeviceMemory, reserved: u64, time_us: Option<u64>, is_of_driver: bool) -> Vec<LedgerPart> {
    let (own_name, own_detail) = if is_of_driver {
        ("contexts, modules", "what processes of the run held beyond what they asked for")
    } else {
        ("context, libraries", "this process outside PyTorch's allocator")
    };
    let when = match time_us.map(|time| memory.time_us.abs_diff(time)) {
        Some(apart) if apart >= 1_000_000 => {
            format!(", as the driver told {:.0} s from this moment", apart as f64 / 1e6)
        }
        _ => String::new(),
    };
    let part = |name: &str, bytes: u64, detail: String| LedgerPart {
        part: name.to_owned(),
        kind: PartKind::Outside,
        class: None,
        bytes: Bytes::new(bytes),
        detail,
    };
    // What the driver counts never adds up to less than nothing, whatever a file says.
    let room = memory.total.saturating_sub(reserved);
    let outside = memory.outside().min(room);
    let mut parts = Vec::new();
    match (memory.own, memory.others) {
        (Some(own), others) => {
            let own = own.saturating_sub(memory.reserved).min(outside);
            let others = others.unwrap_or(0).min(outside - own);
            parts.push(part(own_name, own, format!("{own_detail}{when}")));
            parts.push(part("other processes", others, format!("by NVML{when}")));
            // Page tables and the driver's own.
            parts.push(part("driver", outside - own - others, format!("of no process{when}")));
        }
        (None, _) => {
            let whose = if is_of_driver { "beyond what was asked for" } else { "outside PyTorch's allocator" };
            let detail = format!("{whose}{when}; NVML did not tell them apart");
            parts.push(part(&format!("{own_name}, other processes"), outside, detail));
        }
    }
    parts.push(part("free on the device", room - outside, String::new()));
    parts.retain(|part| part.bytes > Bytes::ZERO);
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn memory(time_us: u64, free: u64) -> DeviceMemory {
        DeviceMemory {
            time_us,
            total: 1000,
            free,
            reserved: 300,
            own: Some(450),
            others: Some(100),
            ..Default::default()
        }
    }

    #[test]
    fn the_account_closes_to_the_device() {
        let parts = parts(&memory(5_000_000, 400), 200, Some(9_000_000), false);
        let named: Vec<(&str, u64)> = parts.iter().map(|part| (part.part.as_str(), part.bytes.get())).collect();
        let all = [("context, libraries", 150), ("other processes", 100), ("driver", 50), ("free on the device", 500)];
        assert_eq!(named, all);
        assert!(parts[0].detail.contains("4 s from this moment"), "{}", parts[0].detail);
    }

    #[test]
    fn the_nearest_time_counts_and_the_last_for_the_room() {
        let device = DeviceId::new(0);
        let recording = Recording {
            device_memory: vec![memory(10, 700), memory(20, 400), DeviceMemory::default()],
            ..Recording::default()
        };
        assert_eq!(nearest(&recording, device, Some(12)).map(|memory| memory.free), Some(700));
        assert_eq!(nearest(&recording, device, None).map(|memory| memory.free), Some(400));
        assert_eq!(room(&recording, device), Some(Bytes::new(700)));
        assert_eq!(room(&recording, DeviceId::new(1)), None);
    }

    proptest! {
        #[test]
        fn parts_add_up_whatever_is_said(total: u32, free: u32, reserved: u32, own: Option<u32>, others: Option<u32>, now: u32) {
            let [own, others] = [own, others].map(|bytes| bytes.map(u64::from));
            let [total, free, reserved] = [total, free, reserved].map(u64::from);
            let memory = DeviceMemory { total, free, reserved, own, others, ..Default::default() };
            let now = u64::from(now).min(total);
            let sum: u64 = parts(&memory, now, None, false).iter().map(|part| part.bytes.get()).sum();
            prop_assert_eq!(sum + now, total);
        }
    }
}
