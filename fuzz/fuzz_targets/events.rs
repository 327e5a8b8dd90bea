//! Reads any bytes as what processes of a run wrote, and explains the recording of it.
#![no_main]

use gpuheap_explain::{Options, explain};
use gpuheap_import::driver_events::{self, Seen};
use gpuheap_ledger::events::{self, Events, RECORD, Record, WORDS, What};
use gpuheap_ledger::{HOST, Identity, Kind, Origin};
use gpuheap_record::file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // As a file, which hardly ever has the right sums, and as records.
    let mut processes: Vec<Events> = events::parse(bytes).into_iter().collect();
    let (records, _) = bytes.as_chunks::<RECORD>();
    let records: Vec<Record> = records.iter().map(record).collect();
    let (first, second) = records.split_at(records.len() / 3);
    for (number, records) in (1..).zip([first, second]) {
        let process = Identity::from_number(number << 32);
        let (program, records) = (String::new(), records.to_vec());
        processes.push(Events { process, program, began_us: number, records, torn: 0, missed: 0 });
    }
    let seen = Seen { ended: vec![(Identity::from_number(1 << 32), 1000)], ..Seen::default() };
    let recording = driver_events::recording(processes, &seen);
    for device in &recording.devices {
        let options = Options { device: Some(device.device.get()), ..Options::default() };
        let report = explain(&recording, &options).expect("the device is there");
        let at_the_end: u64 = device.segments.iter().map(|segment| segment.total_size).sum();
        assert_eq!(report.end.reserved_bytes.get(), at_the_end);
    }
    let mut written = Vec::new();
    file::write(&recording, &mut written).expect("memory takes all");
    file::read(written.as_slice()).expect("what was written is read");
});

/// The record of these bytes, as the reader would give it out.
fn record(bytes: &[u8; RECORD]) -> Record {
    let word = |word: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[8 * word + byte]));
    let [first, time_us, charge, address, bytes]: [u64; WORDS] = std::array::from_fn(word);
    let part = |shift: u32, most: usize| ((first >> shift) & 0xff) as usize % most;
    Record {
        what: What::ALL[part(0, What::ALL.len())],
        kind: Kind::ALL[part(8, Kind::ALL.len())],
        origin: Origin::ALL[part(16, Origin::ALL.len())],
        device: part(24, HOST + 1),
        time_us: time_us % (1 << 52),
        charge: charge % 16,
        address,
        bytes: bytes % (1 << 46),
    }
}
