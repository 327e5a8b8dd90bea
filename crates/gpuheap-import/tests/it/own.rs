//! Recordings of our own format.

use gpuheap_record::{Compression, Format, file};

use crate::support::{failure, notes, read, sample, text};
use crate::writer::{CPYTHON, pickle};

fn own() -> (String, Vec<u8>) {
    let recording = read(&pickle(&sample(), CPYTHON)).unwrap();
    let mut bytes = Vec::new();
    file::write(&recording, &mut bytes).unwrap();
    (text(&recording), bytes)
}

#[test]
fn a_snapshot_that_was_converted_is_the_same_recording() {
    let (expected, bytes) = own();
    let recording = read(&bytes).unwrap();
    assert_eq!(text(&recording), expected);
    assert_eq!((recording.source.format, recording.source.compression), (Format::Gpuheap, Compression::None));
    assert_eq!(recording.source.bytes, bytes.len() as u64);
}

#[test]
fn every_cut_is_told() {
    let (_, mut bytes) = own();
    for length in 0..bytes.len() {
        assert!(read(&bytes[..length]).is_err(), "{length}");
    }
    let whole = bytes.len();
    bytes.extend(*b"STRS");
    let recording = read(&bytes).unwrap();
    assert_eq!(recording.source.format, Format::Gpuheap);
    assert!(notes(&recording).iter().any(|note| note.contains(&format!("after byte {whole}"))));
}

#[test]
fn errors_say_what_to_do() {
    let (_, mut bytes) = own();
    insta::assert_snapshot!(failure(&bytes[..60]), @r"
    Failed to read snapshot `snapshot.pickle`
      cause: the recording is cut short or damaged at byte 14, before anything whole: the file ends within a part
    hint: the process may have been killed before it had written anything whole
    ");
    bytes[12] = 9;
    insta::assert_snapshot!(failure(&bytes), @r"
    Failed to read snapshot `snapshot.pickle`
      cause: the recording was written by a newer gpuheap (version 9, at byte 12)
    hint: install the newest gpuheap
    ");
}
