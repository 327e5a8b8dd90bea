//! Which recording is meant.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::errors::Error;

/// Bytes at the start of a file that tell whether it may be a recording.
const HEAD: u64 = 4096;
/// Letters of a name that tell it from others.
const LEAST_START: usize = 3;
/// Letters of a name that are compared.
const MOST_COMPARED: usize = 100;

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

/// Whether two files have almost the same name: one may be meant for the other.
pub(crate) fn is_similar(path: &Path, other: &Path) -> bool {
    let (stem, other) = (stem(path), stem(other));
    let shorter = stem.len().min(other.len());
    if shorter < LEAST_START {
        return stem == other;
    }
    let most = if shorter < 6 { 1 } else { 2 };
    stem.starts_with(&other) || other.starts_with(&stem) || edits(&stem, &other) <= most
}

/// The name up to its first dot, and no more of it than counts.
fn stem(path: &Path) -> Vec<char> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let end = name.char_indices().skip(1).find(|&(_, sign)| sign == '.').map_or(name.len(), |(at, _)| at);
    name[..end].chars().take(MOST_COMPARED).collect()
}

/// How many letters must be put in, left out or changed to make one name of the other.
fn edits(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, letter) in from.iter().enumerate() {
        let mut corner = row[0];
        row[0] = index + 1;
        for (column, other) in to.iter().enumerate() {
            let changed = corner + usize::from(letter != other);
            corner = row[column + 1];
            row[column + 1] = changed.min(corner + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
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
    fn similar_names() {
        let similar = |name: &str, other: &str| is_similar(Path::new(name), Path::new(other));
        assert!(similar("runs/snapshot.pickle", "snapshot_rank0.pickle.gz"));
        assert!(similar("snapshto.pickle", "snapshot.pickle"));
        assert!(similar("Run.pickle", "run.pickle.zst"));
        assert!(similar("rank9.pickle", "rank0.pickle"));
        assert!(similar("step_900", "step_1000.pickle"));
        assert!(!similar("missing.pickle", "snapshot.pickle"));
        assert!(!similar("a.pickle", "b.pickle"));
        assert!(!similar("run.pickle", "leak.pickle"));
        assert!(!similar("..", ".pickle"));
    }

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
