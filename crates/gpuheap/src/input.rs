//! From an argument to a recording.

use std::path::Path;

use gpuheap_record::Recording;

use crate::errors::Error;
use crate::files;
use crate::progress::Progress;

/// Reads the recording that `file` names, and says on the way how far it is.
pub(crate) fn read(file: &Path, quiet: bool) -> Result<(Recording, Progress), Error> {
    let path = files::recording(file)?;
    let mut progress = Progress::new(&path, quiet);
    let mut update = |state: gpuheap_import::Progress| progress.read(state.read, state.total);
    let options = gpuheap_import::Options { progress: Some(&mut update) };
    let recording = gpuheap_import::read(&path, options).map_err(Error::Import)?;
    Ok((recording, progress))
}
