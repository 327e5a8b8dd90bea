//! Files that are written as a whole or not at all.

use std::fs::File;
use std::io;
use std::path::Path;

/// Writes beside `path`, then renames: until `write` has succeeded, what was there stays. A link stays a link; devices
/// and pipes, which cannot be replaced, are written to.
pub fn replace<E: From<io::Error>>(path: &Path, write: impl FnOnce(&mut File) -> Result<(), E>) -> Result<(), E> {
    // A link stays a link: what it points to is replaced.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let before = path.metadata().ok();
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        // A device or a pipe cannot be replaced; a folder says so itself.
        return write(&mut File::create(path)?);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
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
