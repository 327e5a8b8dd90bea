//! What happened to the driver's memory in a run, as a recording.

use std::io::{BufWriter, Write};
use std::path::Path;

use gpuheap_import::driver_events::{self, Seen};
use gpuheap_ledger::Identity;

use super::{Error, watch};
use crate::replace::{replace, try_out};

/// Whether it can be written: better said before a long run than after it.
pub(crate) fn check(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Err(Error::RecordFolder { path: path.to_owned() });
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Error::NoFolder { path: path.to_owned() });
    }
    try_out(path).map_err(|source| Error::NotRecorded { path: path.to_owned(), source })
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn where_a_recording_can_be_written_is_told_before_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("r.gpuheap"), folder.path().join("link"));
        assert!(check(&file).is_ok());
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is left of the attempt");
        // What counts is where a link leads: nothing can be made in that folder, by nobody.
        std::fs::write(&file, "").unwrap();
        symlink("/proc/self/status", &link).unwrap();
        assert!(matches!(check(&link), Err(Error::NotRecorded { .. })));
        std::fs::remove_file(&link).unwrap();
        symlink(&file, &link).unwrap();
        assert!(check(&link).is_ok() && check(Path::new("/dev/null")).is_ok());
        assert!(matches!(check(folder.path()), Err(Error::RecordFolder { .. })));
        assert!(matches!(check(&folder.path().join("none/r")), Err(Error::NoFolder { .. })));
    }
}
