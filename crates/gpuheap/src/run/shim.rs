//! The library that stands before the driver.

use std::path::PathBuf;

use super::{Error, elf};
use crate::own::Own;

const NAME: &str = "libgpuheap_shim.so";

/// Where it is: where `GPUHEAP_SHIM` says, else with this command, also as cargo leaves it there.
pub(crate) fn find(own: &Own) -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("GPUHEAP_SHIM").filter(|path| !path.is_empty()).map(PathBuf::from) {
        return if is_shim(&path) { Ok(path) } else { Err(Error::NotShim { path }) };
    }
    let folder = own.folder.as_deref();
    let places: Vec<PathBuf> =
        folder.into_iter().flat_map(|folder| [folder.join(NAME), folder.join("deps").join(NAME)]).collect();
    places.iter().find(|path| is_shim(path)).cloned().ok_or(Error::NoShim { searched: places })
}

fn is_shim(path: &std::path::Path) -> bool {
    elf::read(path).is_some_and(|elf| elf.is_shim)
}
