//! A new ledger as a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::identity::Identity;
use crate::layout::{DEVICES, MAGIC, Shared};

/// What a run may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Bytes on each device; 0 is no budget.
    pub budget: u64,
    /// Bytes of host memory behind addresses of devices; 0 is none.
    pub spill: u64,
}

/// Makes the ledger of a run that `runner` begins, for nobody but this user.
///
/// All of it is written, not only made long: where there is no room, this fails now and no process is killed later for
/// touching memory that is not to be had. A file that is there already is an error.
pub fn create(path: &Path, runner: Identity, limits: Limits) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file.write_all(&vec![0; size_of::<Shared>()]).and_then(|()| fill(&file, runner, limits));
    if written.is_err() {
        // What is half made is no ledger.
        let _ = std::fs::remove_file(path);
    }
    written
}

fn fill(file: &File, runner: Identity, limits: Limits) -> io::Result<()> {
    let put = |place: usize, value: u64| file.write_all_at(&value.to_ne_bytes(), place as u64);
    for device in 0..DEVICES {
        put(offset_of!(Shared, budgets) + 8 * device, limits.budget)?;
    }
    put(offset_of!(Shared, spill), limits.spill)?;
    put(offset_of!(Shared, runner), runner.number())?;
    put(offset_of!(Shared, magic), MAGIC)
}
