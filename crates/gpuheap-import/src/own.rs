//! Recordings of our own format.

use std::io;

use gpuheap_record::file::{self, FileError, Loaded};
use gpuheap_record::{Note, Recording};

use crate::error::Cause;
use crate::input::Input;

/// Reads a `.gpuheap` file. What a crash cut off is left out and noted.
pub(crate) fn read(input: &mut Input<'_>) -> Result<Recording, Box<Cause>> {
    let Loaded { mut recording, whole, lost } = file::read(&mut *input).map_err(|error| match error {
        FileError::Read { offset, source } => Box::new(match unwrapped(source) {
            Ok(cause) => cause,
            Err(source) => Cause::Input { offset, source },
        }),
        other => Box::new(Cause::Recording(other)),
    })?;
    if let Some(lost) = lost {
        recording.notes.push(Note(format!(
            "the recording is not whole: {lost} after byte {whole}, and what was recorded later is lost"
        )));
    }
    Ok(recording)
}

/// The cause that the window over the file put into an error of the system.
fn unwrapped(source: io::Error) -> Result<Cause, io::Error> {
    match source.downcast::<Box<Cause>>() {
        Ok(cause) => Ok(*cause),
        Err(source) => Err(source),
    }
}
