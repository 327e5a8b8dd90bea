//! Files that are written as a whole or not at all.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// What is replaced: a link stays a link, and what it points to is.
fn target(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether [`replace`] could write there: as far as that can be told by a file beside it.
pub(crate) fn try_out(path: &Path) -> io::Result<()> {
    let path = target(path);
    // A device or a pipe is written to as it is.
    if path.metadata().is_ok_and(|before| !before.is_file()) {
        return Ok(());
    }
    // Its error names a file that the user never gave.
    tempfile::tempfile_in(folder(&path)).map(drop).map_err(|error| error.kind().into())
}

/// Writes beside `path`, then renames: until `write` has succeeded, what was there stays. A link stays a link; devices
/// and pipes, which cannot be replaced, are written to.
pub fn replace<E: From<io::Error>>(path: &Path, write: impl FnOnce(&mut File) -> Result<(), E>) -> Result<(), E> {
    let path = target(path);
    let before = path.metadata().ok();
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        // A device or a pipe cannot be replaced; a folder says so itself.
        return write(&mut File::create(path)?);
    }
    let folder = folder(&path);
    // Said here, the reason is free of names that the user never gave.
    std::fs::metadata(folder)?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".gpuheap-");
    if let Some(before) = before {
        builder.permissions(before.permissions());
    } else {
        // What new files get, less what the user's mask takes away.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder)?;
    write(file.as_file_mut())?;
    file.persist(&path).map_err(|failed| failed.error)?;
    Ok(())
}
