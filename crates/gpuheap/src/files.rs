//! Which recording is meant.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::errors::Error;

/// Bytes at the start of a file that tell whether it may be a recording.
const HEAD: u64 = 4096;

/// The recording at `path`: itself, or the only one in the folder.
pub(crate) fn recording(path: &Path) -> Result<PathBuf, Error> {
    if path.as_os_str() == "-" || !path.is_dir() {
        return Ok(path.to_owned());
    }
    let found = recordings(path)?;
    match found.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(Error::NoRecording { path: path.to_owned() }),
        _ => Err(Error::ManyRecordings { path: path.to_owned(), found }),
    }
}

/// What looks like a recording in the folder, by name.
pub(crate) fn recordings(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let unreadable = |source| Error::Folder { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        if file.is_file() && may_be_recording(&file) {
            found.push(file);
        }
    }
    found.sort();
    Ok(found)
}

/// Whether the file starts like a recording. Files that cannot be opened are not candidates.
fn may_be_recording(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    read.is_ok() && looks_like_recording(&head, &path.to_string_lossy())
}

fn looks_like_recording(head: &[u8], name: &str) -> bool {
    match head {
        _ if head.starts_with(gpuheap_record::file::MAGIC) => true,
        // A pickle of protocol 2 or later.
        [0x80, 2..=5, ..] => true,
        // gzip and zstd hide what is inside: the name has to tell.
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let name = name.to_ascii_lowercase();
            ["pickle", "pkl", "snapshot", "json", "gpuheap"].iter().any(|part| name.contains(part))
        }
        _ => {
            let text = String::from_utf8_lossy(head);
            text.trim_start().starts_with('{')
                && ["\"segments\"", "\"device_traces\""].iter().any(|key| text.contains(key))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_told_by_their_start() {
        assert!(looks_like_recording(b"\x80\x04\x95", "a.bin"));
        assert!(looks_like_recording(b"\x89gpuheap\r\n\x1a\n\x01\0", "a"));
        assert!(looks_like_recording(b"\x1f\x8b\x08", "run/step.pickle.gz"));
        assert!(looks_like_recording(b" {\"segments\": []}", "x.json"));
        assert!(!looks_like_recording(b"\x1f\x8b\x08", "logs.tar.gz"));
        assert!(!looks_like_recording(b"{\"lr\": 0.1}", "config.json"));
        assert!(!looks_like_recording(b"", "empty.pickle"));
    }
}
