//! What happened to the driver's memory in a run, as a recording.

use std::io::{BufWriter, Write};
use std::path::Path;

use gpuheap_import::driver_events::{self, Seen};
use gpuheap_ledger::Identity;

use super::{Error, watch};
use crate::replace::replace;

/// Whether it can be written: better said before a long run than after it.
pub(crate) fn check(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Err(Error::RecordFolder { path: path.to_owned() });
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Error::NoFolder { path: path.to_owned() });
    }
    // A device or a pipe is written to as it is.
    let is_kept = path.metadata().is_ok_and(|before| !before.is_file());
    let attempt = if is_kept { Ok(()) } else { tempfile::tempfile_in(folder).map(drop) };
    attempt.map_err(|error| Error::NotRecorded { path: path.to_owned(), source: error.kind().into() })
}

/// Writes what the processes of the run left. `ended` is when they ended, in microseconds since 1970. That this failed is
/// said and is no reason for another exit code than the program's.
pub(crate) fn write(run: &Path, ended: Vec<(Identity, u64)>, path: &Path, quiet: bool) {
    let seen = Seen { ended, ..Seen::default() };
    let recording = match driver_events::read(run, &seen) {
        Ok(recording) => recording,
        Err(error) => return watch::say(&format!("failed to read what happened to memory: {error}")),
    };
    let written = replace(path, |file| {
        let mut out = BufWriter::new(file);
        gpuheap_record::file::write(&recording, &mut out)?;
        out.flush()
    });
    match written {
        Ok(()) if quiet => {}
        Ok(()) => watch::say(&format!("recorded in `{}`", path.display())),
        Err(error) => watch::say(&format!("failed to write the recording `{}`: {error}", path.display())),
    }
}
