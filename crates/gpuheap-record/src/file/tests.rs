use proptest::prelude::*;

use super::{FileError, Loaded, MAGIC, Writer, read, write};
use crate::{
    Annotation, AnnotationStage, Block, BlockState, Context, DeviceId, DeviceMemory, DeviceRecording, Event, EventKind,
    Frame, Name, NamedAs, Note, Recording, Segment, SegmentKind, StackId,
};

/// Everything in a recording that a file keeps, as text: tables have no equality of their own.
fn content(recording: &Recording) -> String {
    let stacks: Vec<_> = (0..recording.stacks.len())
        .map(|index| recording.frames_of(StackId::from_index(index)).collect::<Vec<_>>())
        .collect();
    format!(
        "{:?}\n{:?}\n{stacks:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}",
        recording.strings.iter().collect::<Vec<_>>(),
        recording.frames.iter().collect::<Vec<_>>(),
        recording.streams.iter().collect::<Vec<_>>(),
        recording.pools.iter().collect::<Vec<_>>(),
        recording.contexts.iter().collect::<Vec<_>>(),
        recording.devices.iter().map(device).collect::<Vec<_>>(),
        recording.host.as_ref().map(device),
        (&recording.annotations, &recording.names, &recording.device_memory, &recording.facts),
        recording.settings,
        recording.notes,
    )
}

fn device(device: &DeviceRecording) -> String {
    let events: Vec<_> = device.events.ids().map(|id| device.events.get(id)).collect();
    format!("{:?} {events:?} {:?}", device.device, device.segments)
}

fn bytes(recording: &Recording) -> Vec<u8> {
    let mut file = Vec::new();
    write(recording, &mut file).unwrap();
    file
}

/// One event, from numbers.
type Row = (u8, u64, u64, u8, u64, u8, u8, Option<u8>);

fn recording(rows: &[(u8, Row)], texts: &[String], late: &[u64]) -> Recording {
    let mut recording = Recording::default();
    let strings: Vec<_> = texts.iter().map(|text| recording.strings.intern(text)).collect();
    let mut stacks = vec![StackId::default()];
    for (line, &text) in strings.iter().enumerate() {
        let line = u32::try_from(line).unwrap();
        let frame = recording.frames.insert(Frame { function: text, file: strings[0], line });
        stacks.push(recording.stacks.child(stacks[line as usize / 2], frame));
    }
    let context = recording.contexts.insert(Context { compile: strings[0], user: strings[strings.len() - 1] });
    for &(number, (kind, address, size, stream, time_us, stack, has_context, pool)) in rows {
        let event = Event {
            kind: EventKind::ALL[usize::from(kind) % EventKind::ALL.len()],
            address,
            size: size % (1 << 46),
            stream: recording.streams.insert(u64::from(stream)),
            time_us: time_us % 253_402_300_799_000_000,
            stack: stacks[usize::from(stack) % stacks.len()],
            context: if has_context % 3 == 0 { context } else { crate::ContextId::default() },
            pool: pool.map(|pool| recording.pools.insert((u64::from(pool), 0))),
        };
        recording.device_mut(u32::from(number % 3)).events.push(event);
    }
    for &address in late {
        let blocks = vec![
            Block { address, size: 512, requested_size: 500, state: BlockState::Allocated, stack: stacks[1] },
            Block {
                address: address.wrapping_add(512),
                size: 1 << 46,
                state: BlockState::PendingFree,
                ..Block::default()
            },
        ];
        let kind = if address % 2 == 0 { SegmentKind::Small } else { SegmentKind::Large };
        let segment =
            Segment { address, total_size: 1024, kind, expandable: address % 3 == 0, blocks, ..Segment::default() };
        recording.device_mut(1).segments.push(segment);
    }
    recording.host = late.first().map(|&size| {
        let mut host = DeviceRecording::default();
        host.events.push(Event { size: size % (1 << 46), ..Event::default() });
        host
    });
    let stage = if late.len().is_multiple_of(2) { AnnotationStage::Start } else { AnnotationStage::End };
    let device = late.first().map(|_| DeviceId::new(2));
    recording.annotations.push(Annotation { name: strings[0], stage, device, time_us: 7 });
    recording.names.extend(late.iter().map(|&address| {
        let named_as = NamedAs::ALL[(address % 7) as usize];
        Name { device: DeviceId::new(1), address, time_us: address / 3, named_as, name: strings[0] }
    }));
    recording.device_memory.extend(late.iter().map(|&bytes| {
        let bytes = bytes % (1 << 46);
        let (own, others) = (bytes.is_multiple_of(2).then_some(bytes), bytes.is_multiple_of(3).then_some(1 << 46));
        DeviceMemory {
            device: DeviceId::new(1),
            time_us: bytes / 3,
            total: 1 << 46,
            free: bytes,
            reserved: bytes / 2,
            own,
            others,
        }
    }));
    recording.facts = texts.iter().map(|text| ("name".to_owned(), text.clone())).collect();
    recording.settings.conf = texts[0].clone();
    recording.settings.max_split_size = late.first().copied().filter(|&size| size < u64::MAX);
    recording.settings.garbage_collection_threshold = 0.25;
    recording.settings.all = vec![("a".to_owned(), texts[0].clone())];
    recording.notes.push(Note(texts[0].clone()));
    recording
}

fn rows() -> impl Strategy<Value = Vec<(u8, Row)>> {
    prop::collection::vec(any::<(u8, Row)>(), 0..40)
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(".{0,12}", 1..8)
}

#[test]
fn what_no_device_has_is_written_as_what_can_be_read() {
    let all = DeviceMemory {
        device: DeviceId::new(u32::MAX),
        time_us: u64::MAX,
        total: u64::MAX,
        free: u64::MAX,
        reserved: u64::MAX,
        own: Some(u64::MAX),
        others: Some(u64::MAX),
    };
    let device_memory = vec![DeviceMemory::default(), all, DeviceMemory::default()];
    let mut recording = Recording { device_memory, ..Recording::default() };
    recording.device_mut(0).events.push(Event { time_us: u64::MAX, ..Event::default() });
    let Loaded { recording, .. } = read(bytes(&recording).as_slice()).unwrap();
    assert_eq!(recording.devices[0].events.times_us(), [253_402_300_799_000_000]);
    let row = recording.device_memory[1];
    assert_eq!((row.device, row.total, row.others), (DeviceId::new(u32::MAX), 1 << 46, Some(1 << 46)));
}

proptest! {
    #[test]
    fn a_recording_comes_back_as_it_was(rows in rows(), texts in texts(), late in prop::collection::vec(any::<u64>(), 0..4)) {
        let before = recording(&rows, &texts, &late);
        let Loaded { recording: after, lost, whole } = read(bytes(&before).as_slice()).unwrap();
        prop_assert_eq!(lost, None);
        prop_assert_eq!(whole, bytes(&before).len() as u64);
        prop_assert_eq!(content(&after), content(&before));
    }

    #[test]
    fn a_file_that_grew_is_read_up_to_its_last_whole_group(rows in rows(), texts in texts(), cut in any::<prop::sample::Index>(), split in any::<prop::sample::Index>()) {
        let all = recording(&rows, &texts, &[5, 6]);
        let mut early = all.clone();
        for device in &mut early.devices {
            device.events.keep_first(split.index(device.events.len() + 1));
            device.segments.clear();
        }
        early.annotations.clear();
        early.notes.clear();
        early.host = None;
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file).unwrap();
        writer.append(&early).unwrap();
        writer.finish().unwrap();
        let first = file.len();
        file.clear();
        let mut writer = Writer::new(&mut file).unwrap();
        writer.append(&early).unwrap();
        writer.append(&all).unwrap();
        writer.finish().unwrap();
        prop_assert_eq!(content(&read(file.as_slice()).unwrap().recording), content(&all));
        let cut = first + cut.index(file.len() - first);
        let loaded = read(&file[..cut]).unwrap();
        prop_assert_eq!(loaded.lost.is_some(), cut > first);
        let events = |recording: &Recording| recording.devices.iter().map(|device| device.events.len()).collect::<Vec<_>>();
        prop_assert_eq!(events(&loaded.recording), events(&early));
        prop_assert!(loaded.recording.annotations.is_empty() && loaded.recording.host.is_none());
    }

    #[test]
    fn damage_is_an_error_or_a_loss_and_never_a_panic(rows in rows(), place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut file = bytes(&recording(&rows, &["a".to_owned(), "b".to_owned()], &[3]));
        let place = place.index(file.len());
        let same = file[place] == byte;
        file[place] = byte;
        let damaged = !matches!(read(file.as_slice()), Ok(Loaded { lost: None, .. }));
        prop_assert!(damaged || same);
    }

    /// Every bit counts: a byte that is another is told, wherever it is.
    #[test]
    fn no_byte_can_change_unseen(place in any::<prop::sample::Index>(), bit in 0_u32..8) {
        let mut file = bytes(&recording(&[], &["a".to_owned(), "b".to_owned()], &[3, 4]));
        let place = place.index(file.len());
        file[place] ^= 1 << bit;
        prop_assert!(!matches!(read(file.as_slice()), Ok(Loaded { lost: None, .. })), "byte {place}");
    }

    /// Parts whose sum is right and whose content is anything: what a hostile writer makes.
    #[test]
    fn malformed_parts_are_refused(tag in 0_usize..12, payload in prop::collection::vec(any::<u8>(), 0..60)) {
        let tags = [b"STRS", b"FRMS", b"STKS", b"STRM", b"POOL", b"CTXT", b"EVNT", b"SEGS", b"ANNO", b"NAME", b"SETS", b"NOTE"];
        let mut file = bytes(&recording(&[], &["a".to_owned()], &[]));
        file.extend(part(*tags[tag], &payload, payload.len()));
        file.extend(part(*b"DONE", &[], 0));
        if let Err(error) = read(file.as_slice()) {
            prop_assert!(matches!(error, FileError::Malformed { .. }), "{error}");
        }
    }
}

/// A part as a writer makes it, with a length before compression of its own.
fn part(tag: [u8; 4], payload: &[u8], raw: usize) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(payload).unwrap();
    let stored = encoder.finish().unwrap();
    let mut part = tag.to_vec();
    part.extend(u32::try_from(stored.len()).unwrap().to_le_bytes());
    part.extend(u32::try_from(raw).unwrap().to_le_bytes());
    let mut crc = flate2::Crc::new();
    crc.update(&part);
    crc.update(&stored);
    part.extend(crc.sum().to_le_bytes());
    part.extend(stored);
    part
}

#[test]
fn other_files_and_later_versions_are_refused() {
    assert!(matches!(read(&b"\x80\x04"[..]), Err(FileError::NotARecording)));
    assert!(matches!(read(&[][..]), Err(FileError::NotARecording)));
    let mut file = bytes(&Recording::default());
    file[MAGIC.len()] = 0;
    assert!(matches!(read(file.as_slice()), Err(FileError::NotARecording)));
    file[MAGIC.len()] = 2;
    assert!(matches!(read(file.as_slice()), Err(FileError::Newer { .. })));
    // Nothing whole.
    assert!(matches!(read(&bytes(&Recording::default())[..40]), Err(FileError::Damaged { .. })));
}

#[test]
fn unknown_parts_are_skipped_if_they_may_be() {
    let mut file = bytes(&Recording::default());
    file.extend(part(*b"xtra", b"anything", 8));
    file.extend(part(*b"DONE", &[], 0));
    assert!(read(file.as_slice()).unwrap().lost.is_none());
    file.extend(part(*b"XTRA", b"anything", 8));
    assert!(matches!(read(file.as_slice()), Err(FileError::Newer { .. })));
}

#[test]
fn a_bomb_is_refused() {
    let zeros = vec![0; 60 << 20];
    let mut file = bytes(&Recording::default());
    for _ in 0..3 {
        file.extend(part(*b"xtra", &zeros, zeros.len()));
    }
    assert!(matches!(read(file.as_slice()), Err(FileError::TooLarge { .. })));
    let mut lie = bytes(&Recording::default());
    lie.extend(part(*b"STRS", &zeros, 10));
    assert!(matches!(read(lie.as_slice()), Err(FileError::Malformed { .. })));
}

#[test]
fn a_small_file_cannot_take_much_memory() {
    // Rows of a byte or two, each of which would become much more.
    let rows: usize = 4 << 20;
    // `rows` as LEB128.
    let mut payload = vec![0x80, 0x80, 0x80, 0x02];
    payload.resize(payload.len() + 8 * rows, 0);
    for tag in [b"STRM", b"ANNO", b"NAME", b"FRMS"] {
        let mut file = bytes(&Recording::default());
        file.extend(part(*tag, &payload, payload.len()));
        assert!(matches!(read(file.as_slice()), Err(FileError::TooLarge { .. })), "{tag:?}");
    }
    let mut file = bytes(&Recording::default());
    file.extend(part(*b"NOTE", &payload[..rows + 4], rows + 4));
    file.extend(part(*b"DONE", &[], 0));
    assert!(read(file.as_slice()).unwrap().recording.notes.len() <= 201);
}
