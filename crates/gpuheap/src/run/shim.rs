//! The library that stands before the driver.

use std::path::{Path, PathBuf};

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
    // Of what cargo left in two places, one may be from long ago.
    let made = |path: &PathBuf| path.metadata().and_then(|found| found.modified()).ok();
    let found = places.iter().filter(|path| is_shim(path)).max_by_key(|path| made(path)).cloned();
    found.ok_or(Error::NoShim { searched: places })
}

/// The library before NVML, which comes with the other one. Without it, programs that ask NVML see the whole card.
pub(crate) fn management(shim: &Path) -> Option<PathBuf> {
    Some(shim.with_file_name("libgpuheap_shim_nvml.so")).filter(|path| is_shim(path))
}

fn is_shim(path: &Path) -> bool {
    elf::read(path).is_some_and(|elf| elf.is_shim)
}
