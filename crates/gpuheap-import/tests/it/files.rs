//! Files: compression, standard reading, progress, errors of the system.

use std::io::{self, Read, Write};
use std::path::Path;

use flate2::Compression as Level;
use flate2::write::GzEncoder;
use gpuheap_import::{Error, Options, Progress};
use gpuheap_record::{Compression, Format};
use insta::assert_snapshot;

use crate::support::{failure, notes, read, sample, text};
use crate::writer::{CPYTHON, pickle};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn compressed_or_not_the_recording_is_the_same() {
    let plain = pickle(&sample(), CPYTHON);
    let expected = text(&read(&plain).unwrap());
    let (first, second) = plain.split_at(plain.len() / 2);
    let skippable = |content: &[u8]| {
        let mut frame = vec![0x53, 0x2a, 0x4d, 0x18];
        frame.extend(u32::try_from(content.len()).unwrap().to_le_bytes());
        frame.extend(content);
        frame
    };
    let members = [gzip(first), gzip(second)].concat();
    let frames = [skippable(b"hello"), zstd(first), skippable(b""), zstd(second), skippable(b"end")].concat();
    for (bytes, compression) in [
        (plain.clone(), Compression::None),
        (gzip(&plain), Compression::Gzip),
        (members, Compression::Gzip),
        (zstd(&plain), Compression::Zstd),
        (frames, Compression::Zstd),
    ] {
        let recording = read(&bytes).unwrap_or_else(|error| panic!("{compression:?}: {error:?}"));
        assert_eq!(text(&recording), expected);
        assert_eq!(recording.source.compression, compression);
        assert_eq!(recording.source.format, Format::TorchPickle);
        assert_eq!(recording.source.bytes, bytes.len() as u64);
    }
    let json = read(&gzip(sample().json().as_bytes())).unwrap();
    assert_eq!(text(&json), expected);
    assert_eq!((json.source.format, json.source.compression), (Format::TorchJson, Compression::Gzip));
    let marked = [b"\xef\xbb\xbf \r\n", sample().json().as_bytes()].concat();
    assert_eq!(text(&read(&marked).unwrap()), expected);
}

#[test]
fn damaged_compression_is_told() {
    let plain = pickle(&sample(), CPYTHON);
    let mut wrong = gzip(&plain);
    let checksum = wrong.len() - 8;
    wrong[checksum] ^= 1;
    assert_snapshot!(failure(&wrong), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the gzip data is damaged or cut short after 1561 decompressed bytes
      cause: corrupt gzip stream does not have a matching checksum
    hint: copy the file again, or compress it again
    "#);
    let mut cut = gzip(&plain);
    cut.truncate(cut.len() / 2);
    assert_snapshot!(failure(&cut), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the gzip data is damaged or cut short after 607 decompressed bytes
      cause: incomplete deflate stream
    hint: the file is cut short; the process may have been killed while writing it
    "#);
    let mut wrong = zstd(&plain);
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    assert_snapshot!(failure(&wrong), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the zstd data is damaged or cut short after 1561 decompressed bytes
      cause: the checksum of the zstd frame does not match
    hint: copy the file again, or compress it again
    "#);
    let mut cut = zstd(&plain);
    cut.truncate(cut.len() / 2);
    assert_snapshot!(failure(&cut), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the zstd data is damaged or cut short after 0 decompressed bytes
      cause: the last zstd frame is incomplete
    hint: the file is cut short; the process may have been killed while writing it
    "#);
    assert_snapshot!(failure(&gzip(&gzip(&plain))), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: this is not a memory snapshot: it looks like a compressed file inside a compressed file
    hint: decompress it once before
    "#);
    assert_snapshot!(failure(&gzip(b"")), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the file is empty
    hint: the process may have been killed before it wrote anything, or the disk may be full
    "#);
}

#[test]
fn every_cut_of_a_compressed_file_is_an_error() {
    let plain = pickle(&sample(), CPYTHON);
    for whole in [gzip(&plain), zstd(&plain)] {
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} of {} bytes", whole.len());
        }
    }
}

#[test]
fn files_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.pickle");
    let missing = gpuheap_import::read(&path, Options::default()).unwrap_err();
    assert!(matches!(&missing, Error::Open { source, .. } if source.kind() == io::ErrorKind::NotFound));
    assert_eq!(missing.to_string(), format!("Failed to open `{}`", path.display()));
    let is_folder = gpuheap_import::read(folder.path(), Options::default()).unwrap_err();
    assert_eq!(is_folder.hint().unwrap(), "name the snapshot file inside the folder");
    let bytes = pickle(&sample(), CPYTHON);
    std::fs::write(&path, &bytes).unwrap();
    let recording = gpuheap_import::read(&path, Options::default()).unwrap();
    assert_eq!(recording.source.path, path);
    assert_eq!(text(&recording), text(&read(&bytes).unwrap()));
}

#[test]
fn progress_counts_the_bytes_of_the_file() {
    let mut bytes = pickle(&sample(), CPYTHON);
    bytes.pop();
    let text = vec![b'x'; 5 << 20];
    bytes.push(b'X');
    bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
    bytes.extend(text);
    bytes.extend(b"0.");
    let mut told = Vec::new();
    let total = Some(bytes.len() as u64);
    let mut tell = |progress: Progress| told.push(progress);
    let options = Options { progress: Some(&mut tell) };
    gpuheap_import::read_from(&*bytes, total, Path::new("-"), options).unwrap();
    assert!(told.len() >= 5, "{told:?}");
    assert!(told.is_sorted_by_key(|progress| progress.read));
    assert_eq!(told.last(), Some(&Progress { read: bytes.len() as u64, total }));
}

/// Gives one byte at a time, and fails in the end.
struct Dripping<'a>(&'a [u8], Option<io::Error>);

impl Read for Dripping<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self.0.split_first() {
            Some((&byte, rest)) => {
                self.0 = rest;
                target[0] = byte;
                Ok(1)
            }
            None => self.1.take().map_or(Ok(0), Err),
        }
    }
}

#[test]
fn a_slow_pipe_is_read_like_a_file() {
    for bytes in [pickle(&sample(), CPYTHON), sample().json().into_bytes(), gzip(&pickle(&sample(), CPYTHON))] {
        let expected = read(&bytes).unwrap();
        let slow = gpuheap_import::read_from(Dripping(&bytes, None), None, Path::new("-"), Options::default()).unwrap();
        assert_eq!(text(&slow), text(&expected));
        assert_eq!(notes(&slow), notes(&expected));
    }
}

#[test]
fn an_error_of_the_system_is_passed_on() {
    let bytes = pickle(&sample(), CPYTHON);
    let broken = |bytes: &[u8]| {
        let reader = Dripping(bytes, Some(io::Error::from_raw_os_error(5)));
        let error = gpuheap_import::read_from(reader, None, Path::new("-"), Options::default()).unwrap_err();
        format!("{error}: {}", error.cause().unwrap())
    };
    assert_eq!(broken(&bytes[..100]), "Failed to read snapshot `-`: reading failed at byte 0");
    assert_eq!(broken(&bytes[..900]), "Failed to read snapshot `-`: reading failed at byte 900");
    let packed = gzip(&bytes);
    assert!(broken(&packed[..packed.len() - 9]).contains("reading failed at byte "));
    assert_eq!(broken(&sample().json().as_bytes()[..700]), "Failed to read snapshot `-`: reading failed at byte 700");
}
