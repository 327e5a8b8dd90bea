use std::collections::BTreeMap;

use gpuheap_ledger::Origin;
use gpuheap_ledger::events::Record;
use gpuheap_record::{BlockState, EventKind};
use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn process(number: u64, began_us: u64, records: Vec<Record>) -> Events {
    let process = Identity::from_number(number << 32 | 5);
    Events { process, program: "train.py".to_owned(), began_us, records, torn: 0, missed: 0 }
}

fn record(what: What, time_us: u64, charge: u64, bytes: u64) -> Record {
    Record { what, kind: Kind::Linear, origin: Origin::PyTorch, device: 0, time_us, charge, address: 0, bytes }
}

/// Bytes of all blocks at the end, by the innermost frame.
fn by_library(recording: &Recording, device: u32) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let found = recording.devices.iter().find(|entry| entry.device == DeviceId::new(device));
    for block in found.into_iter().flat_map(|entry| &entry.segments).flat_map(|segment| &segment.blocks) {
        assert_eq!(block.state, BlockState::Allocated);
        let innermost = recording.frames_of(block.stack).next().unwrap();
        *sums.entry(recording.function(innermost).to_owned()).or_default() += block.requested_size;
    }
    sums
}

fn kinds(recording: &Recording) -> Vec<EventKind> {
    recording.devices[0].events.kinds().to_vec()
}

#[test]
fn a_block_is_a_segment_of_its_own_and_says_who_asked() {
    let records = vec![
        Record { address: 0x7000_0000, ..record(What::Take, 10, 1, MIB + 5) },
        Record { origin: Origin::CuBlas, ..record(What::Take, 20, 2, 3 * MIB) },
        record(What::GiveBack, 30, 1, MIB + 5),
    ];
    let recording = recording(vec![process(7, 1000, records)], &Seen::default());
    let expected = [
        EventKind::SegmentAlloc,
        EventKind::Alloc,
        EventKind::SegmentAlloc,
        EventKind::Alloc,
        EventKind::FreeRequested,
        EventKind::FreeCompleted,
        EventKind::SegmentFree,
    ];
    assert_eq!(kinds(&recording), expected);
    let events = &recording.devices[0].events;
    let rows: Vec<_> = events.ids().map(|id| events.get(id)).collect();
    assert_eq!((rows[0].address, rows[0].size, rows[1].size), (0x7000_0000, MIB + 512, MIB + 5));
    assert_eq!((rows[0].time_us, rows[6].time_us), (1010, 1030));
    let frames: Vec<_> = recording.frames_of(rows[3].stack).map(|frame| recording.function(frame)).collect();
    assert_eq!(frames, ["cuBLAS", "cuMemAlloc", "train.py (7)"]);
    assert_eq!(by_library(&recording, 0), BTreeMap::from([("cuBLAS".to_owned(), 3 * MIB)]));
}

#[test]
fn pools_grow_by_blocks_and_shrink_by_the_last_ones() {
    let pool = |what, time, bytes| Record { kind: Kind::Pools, ..record(what, time, 1, bytes) };
    let sizes = [0, 32, 96, 80, 10, 200];
    let records = sizes
        .iter()
        .zip(0..)
        .map(|(size, time)| pool(if time == 0 { What::Take } else { What::Change }, time, size * MIB));
    let recording = recording(vec![process(7, 1000, records.collect())], &Seen::default());
    let sizes: Vec<_> = recording.devices[0].segments.iter().map(|segment| segment.total_size / MIB).collect();
    // 32; 32, 64; 32, 48; 10; 10, 190.
    assert_eq!(sizes, [10, 190]);
    assert_eq!(recording.notes, []);
}

#[test]
fn processes_meet_on_a_device_and_what_ended_holds_nothing() {
    let first = vec![record(What::Take, 0, 1, MIB), record(What::Take, 100, 2, MIB)];
    let second = vec![Record { device: 1, ..record(What::Take, 5, 1, 8 * MIB) }, record(What::Take, 9, 2, 16 * MIB)];
    let processes = || vec![process(8, 1050, second.clone()), process(7, 1000, first.clone())];
    let all = recording(processes(), &Seen::default());
    assert_eq!(by_library(&all, 0).values().sum::<u64>(), 18 * MIB);
    assert_eq!(by_library(&all, 1).values().sum::<u64>(), 8 * MIB);
    let ended = vec![(Identity::from_number(7 << 32 | 5), 1300)];
    let one = recording(processes(), &Seen { ended, ..Seen::default() });
    assert_eq!(by_library(&one, 0).values().sum::<u64>(), 16 * MIB);
    assert_eq!(one.devices[0].events.times_us().last(), Some(&1300));
    // The same process again: what was before the exec is gone.
    let again = recording(vec![process(7, 1000, first.clone()), process(7, 1200, first)], &Seen::default());
    assert_eq!(by_library(&again, 0).values().sum::<u64>(), 2 * MIB);
}

#[test]
fn a_refusal_is_an_oom_unless_it_was_overcome() {
    let records = vec![
        record(What::Denied, 10, 0, 8 * MIB),
        record(What::Take, 20, 1, 8 * MIB),
        record(What::Denied, 30, 0, 9 * MIB),
    ];
    let recording = recording(vec![process(7, 1000, records)], &Seen::default());
    assert_eq!(kinds(&recording), [EventKind::SegmentAlloc, EventKind::Alloc, EventKind::OutOfMemory]);
    let events = &recording.devices[0].events;
    assert_eq!(events.size(events.ids().next_back().unwrap()), 9 * MIB);
}

#[test]
fn the_host_has_its_own_blocks_and_the_rest_is_noted() {
    let host = |kind, charge, bytes| Record { kind, device: HOST, ..record(What::Take, charge, charge, bytes) };
    let records = vec![
        host(Kind::HostPinned, 1, MIB),
        Record { device: 3, ..host(Kind::Spilled, 2, 2 * MIB) },
        host(Kind::HostRegistered, 3, 4 * MIB),
        Record { kind: Kind::Managed, ..record(What::Take, 4, 4, 8 * MIB) },
    ];
    let recording = recording(vec![process(7, 1000, records)], &Seen::default());
    assert!(recording.devices.is_empty());
    let host: u64 = recording.host.iter().flat_map(|host| &host.segments).map(|segment| segment.total_size).sum();
    assert_eq!(host, 3 * MIB);
    let notes: Vec<_> = recording.notes.iter().map(|note| note.0.as_str()).collect();
    let expected = [
        "managed memory, not in the account: at most 8.00 MiB",
        "registered memory of the program, not in the account: at most 4.00 MiB",
    ];
    assert_eq!(notes, expected);
}

#[test]
fn moves_are_ranges_of_time() {
    let moved = |what, time, bytes| Record { address: 0, ..record(what, time, 0, bytes) };
    let records = vec![
        moved(What::MovedOut, 1_000_000, MIB),
        moved(What::MovedOut, 1_050_000, MIB),
        moved(What::MovedOut, 5_000_000, MIB),
        Record { address: 400_000, ..moved(What::Yielded, 6_000_000, 16 * MIB) },
    ];
    let recording = recording(vec![process(7, 0, records)], &Seen::default());
    let said: Vec<_> = recording
        .annotations
        .iter()
        .map(|annotation| (recording.strings.text(annotation.name), annotation.stage, annotation.time_us))
        .collect();
    let (start, end) = (AnnotationStage::Start, AnnotationStage::End);
    let expected = [
        ("moved to the host: 2.00 MiB of train.py (7)", start, 1_000_000),
        ("moved to the host: 2.00 MiB of train.py (7)", end, 1_050_000),
        ("moved to the host: 1.00 MiB of train.py (7)", start, 5_000_000),
        ("moved to the host: 1.00 MiB of train.py (7)", end, 5_000_000),
        ("yielded: 16.0 MiB of train.py (7)", start, 5_600_000),
        ("yielded: 16.0 MiB of train.py (7)", end, 6_000_000),
    ];
    assert_eq!(said, expected);
}

#[test]
fn what_the_driver_said_is_kept_with_what_the_ledger_had_then() {
    let records = vec![record(What::Take, 10, 1, MIB), record(What::GiveBack, 20, 1, MIB)];
    let memory =
        |time_us| DeviceMemory { time_us, total: 80 * MIB, free: 70 * MIB, own: Some(4 * MIB), ..Default::default() };
    let seen = Seen { memory: vec![memory(1005), memory(1015), memory(2000)], ..Seen::default() };
    let recording = recording(vec![process(7, 1000, records)], &seen);
    let reserved: Vec<_> = recording.device_memory.iter().map(|memory| memory.reserved).collect();
    assert_eq!(reserved, [0, MIB, 0]);
}

#[test]
fn what_processes_were_told_of_the_device_closes_the_account_where_nobody_knows_better() {
    let size = Record { kind: Kind::Physical, address: 70 * MIB, ..record(What::Size, 12, 0, 80 * MIB) };
    let records = vec![record(What::Take, 10, 1, 4 * MIB), size];
    let told = recording(vec![process(7, 1000, records.clone())], &Seen::default());
    let [memory] = told.device_memory[..] else { panic!("{:?}", told.device_memory) };
    assert_eq!((memory.time_us, memory.total, memory.free, memory.reserved), (1012, 80 * MIB, 70 * MIB, 4 * MIB));
    assert_eq!((memory.own, memory.outside()), (None, 6 * MIB));
    let better = DeviceMemory { time_us: 1011, total: 81 * MIB, ..DeviceMemory::default() };
    let seen = Seen { memory: vec![better], ..Seen::default() };
    let watched = recording(vec![process(7, 1000, records)], &seen);
    assert_eq!(watched.device_memory.len(), 1);
    assert_eq!(watched.device_memory[0].total, 81 * MIB);
}

#[test]
fn what_is_missing_is_said() {
    let mut cut = process(7, 1000, vec![record(What::GiveBack, 10, 1, MIB)]);
    (cut.torn, cut.missed) = (2, 30);
    let recording = recording(vec![cut], &Seen::default());
    let notes: Vec<_> = recording.notes.iter().map(|note| note.0.as_str()).collect();
    assert!(notes[0].starts_with("1 events are about memory"), "{notes:?}");
    assert!(notes[1].contains("the last 30 of them were only counted"), "{notes:?}");
    assert!(notes[2].starts_with("2 of the events of train.py (7) are not whole"), "{notes:?}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("7.events"), "").unwrap();
    let read = read(folder.path(), &Seen::default()).unwrap();
    assert!(read.devices.is_empty() && read.notes[0].0.contains("holds no events"), "{:?}", read.notes);
    assert!(super::read(&folder.path().join("none"), &Seen::default()).is_err());
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let one = (0..5_usize, 0..11_usize, 0..16_usize, 0..=HOST, 0..50_u64, 0..6_u64, 0..40_u64, 0..20_u64);
    let one = one.prop_map(|(what, kind, origin, device, time_us, charge, address, size)| Record {
        what: What::ALL[what],
        kind: Kind::ALL[kind],
        origin: Origin::ALL[origin],
        device,
        time_us,
        charge,
        address: address * 512,
        bytes: size * 300,
    });
    prop::collection::vec(one, 0..60)
}

proptest! {
    /// Whatever the records say: what is alive at the end is what they leave alive, and no two blocks overlap at any time.
    #[test]
    fn sums_are_those_of_the_records(lists in prop::collection::vec(records(), 0..4)) {
        let processes: Vec<Events> = (1..).zip(&lists).map(|(number, list)| process(number, number * 7, list.clone())).collect();
        let mut alive: BTreeMap<(usize, u64), Record> = BTreeMap::new();
        for (number, list) in lists.iter().enumerate() {
            for record in list {
                let key = (number, record.charge);
                match record.what {
                    // The first record about memory says what it is.
                    What::Take | What::Change => {
                        alive.entry(key).or_insert(*record).bytes = record.bytes;
                    }
                    What::GiveBack => drop(alive.remove(&key)),
                    _ => {}
                }
            }
        }
        let recording = recording(processes, &Seen::default());
        for device in 0..HOST {
            let held = alive.values().filter(|record| record.device == device && record.kind.counts());
            let expected: u64 = held.map(|record| record.bytes).sum();
            let sums = by_library(&recording, u32::try_from(device).unwrap());
            prop_assert_eq!(sums.values().sum::<u64>(), expected);
        }
        for entry in recording.devices.iter().chain(&recording.host) {
            let mut lies: BTreeMap<u64, u64> = BTreeMap::new();
            for id in entry.events.ids() {
                let event = entry.events.get(id);
                match event.kind {
                    EventKind::SegmentAlloc => {
                        let before = lies.range(..event.address + event.size).next_back();
                        prop_assert!(before.is_none_or(|(at, size)| at + size <= event.address));
                        lies.insert(event.address, event.size);
                    }
                    EventKind::SegmentFree => prop_assert_eq!(lies.remove(&event.address), Some(event.size)),
                    _ => {}
                }
            }
            prop_assert_eq!(lies.len(), entry.segments.len());
            prop_assert!(entry.events.times_us().is_sorted());
        }
        let mut file = Vec::new();
        gpuheap_record::file::write(&recording, &mut file).unwrap();
        let again = gpuheap_record::file::read(file.as_slice()).unwrap();
        prop_assert_eq!(again.recording.event_count(), recording.event_count());
    }
}
