//! Files that are written as a whole or not at all.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::failure::Failure;
use crate::work::Running;

/// Replaces the file; leaves things as they were if nobody waits for it any more.
pub(crate) fn replace(
    path: &Path,
    running: &Running,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), Failure> {
    let replaced = gpuheap::replace(path, |file| {
        write(file)?;
        // Nobody will see this error.
        if running.is_wanted() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::Interrupted)) }
    });
    replaced.map_err(|error| Failure::write(path, &error))
}
