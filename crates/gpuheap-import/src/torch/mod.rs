//! `PyTorch`'s memory snapshots, pickled or as JSON.
//!
//! Both forms are the same lists and dicts. [`Objects`](objects::Objects) keeps them while they are read: a dict that
//! turns out to be an event becomes a row of the event columns at once, a list of frames an interned stack, and so on,
//! so that no tree of the file is ever held.

mod fields;
mod finish;
mod json;
mod lists;
mod notes;
mod objects;
mod rows;
mod scalars;
mod settings;
mod texts;
mod word;

use gpuheap_record::Recording;

use crate::error::Cause;
use crate::input::Input;
use crate::pickle;
use notes::{Notes, Oddity};
use objects::Objects;

/// How many bytes after the end are looked at. Reading them verifies the checksum of a compressed file; a few are
/// noted; a flood of them is not worth waiting for.
const TRAILING: u64 = 1 << 20;

/// Reads a pickled snapshot.
pub(crate) fn read_pickle(input: &mut Input<'_>) -> Result<Recording, Box<Cause>> {
    let mut objects = Objects::default();
    let top = pickle::run(input, &mut objects)?;
    let at = input.offset();
    trailing(input, &mut objects.notes)?;
    objects.finish(top, at)
}

/// Reads a snapshot as JSON.
pub(crate) fn read_json(input: &mut Input<'_>) -> Result<Recording, Box<Cause>> {
    json::read(input)
}

fn trailing(input: &mut Input<'_>, notes: &mut Notes) -> Result<(), Box<Cause>> {
    let rest = TRAILING - input.skip(TRAILING)?;
    if rest == TRAILING && input.fill(1)? {
        notes.count(Oddity::LongTrailing);
    } else {
        notes.add(Oddity::Trailing, rest);
    }
    Ok(())
}
