//! The variables that a program of a run gets.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use gpuheap_ledger::Reader;

use super::driver;
use crate::cli::{Run, Spill};

/// The folder of the run.
pub(crate) const RUN: &str = "GPUHEAP_RUN";
/// The file in which its processes count.
const LEDGER: &str = "GPUHEAP_LEDGER";
/// Bytes on each device.
const BUDGET: &str = "GPUHEAP_BUDGET";
/// Bytes of the host, or `auto`; absent is none.
const SPILL: &str = "GPUHEAP_SPILL";
/// `0`: memory stays where it is.
pub(crate) const MOVE: &str = "GPUHEAP_MOVE";
/// Records of events that each process writes at most; `0` is none.
const EVENTS: &str = "GPUHEAP_EVENTS";
/// Where the loader looks.
pub(crate) const PATH: &str = "LD_LIBRARY_PATH";
/// The driver's file as Numba takes it, instead of by its name.
const NUMBA: &str = "NUMBA_CUDA_DRIVER";

/// Changes to the environment; no value takes the variable out.
pub(crate) type Changes = Vec<(&'static str, Option<OsString>)>;

/// The user's own search path.
pub(crate) fn search_path() -> Option<OsString> {
    env::var_os(PATH).filter(|path| !path.is_empty())
}

/// The variables of a new run: `folder` is the run's, `drivers` the one with the shim, `beyond` the real driver's if no
/// loader would find what lies there.
pub(crate) fn of_run(arguments: &Run, folder: &Path, drivers: &Path, beyond: Option<&Path>) -> Changes {
    let mut changes = vec![(RUN, Some(folder.into())), (LEDGER, Some(folder.join("ledger").into()))];
    changes.push((BUDGET, arguments.budget.map(|budget| budget.get().to_string().into())));
    let spill = match arguments.spill {
        None | Some(Spill::Off) => None,
        Some(Spill::Auto) => Some("auto".into()),
        Some(Spill::Most(bytes)) => Some(bytes.get().to_string().into()),
    };
    changes.push((SPILL, spill));
    changes.push((PATH, Some(joined(drivers, search_path().as_deref(), beyond))));
    changes.extend(numba(drivers));
    changes.push((MOVE, arguments.no_move.then(|| "0".into())));
    if arguments.record.is_none() {
        // Nobody would read them.
        changes.push((EVENTS, Some("0".into())));
    } else if env::var_os(EVENTS).is_some_and(|most| most == "0") {
        changes.push((EVENTS, None));
    }
    changes
}

/// The variables of a run inside a run: the outer one's, whatever became of them on the way.
pub(crate) fn of_inner_run(arguments: &Run, folder: &Path, drivers: &Path) -> Changes {
    let mut changes = vec![(RUN, Some(folder.into())), (LEDGER, Some(folder.join("ledger").into()))];
    let path = search_path();
    if driver::folders(path.as_deref()).first().map(PathBuf::as_path) != Some(drivers) {
        changes.push((PATH, Some(joined(drivers, path.as_deref(), None))));
    }
    changes.extend(numba(drivers));
    if arguments.no_move {
        changes.push((MOVE, Some("0".into())));
    }
    changes
}

/// The run that this process was started in, if that is still there.
pub(crate) fn outer_run() -> Option<PathBuf> {
    let folder = env::var_os(RUN).filter(|folder| !folder.is_empty()).map(PathBuf::from)?;
    Reader::open(&folder.join("ledger")).is_ok().then_some(folder)
}

/// Our folder first, the user's value as it is behind it.
fn joined(drivers: &Path, path: Option<&OsStr>, beyond: Option<&Path>) -> OsString {
    let mut joined = drivers.as_os_str().to_owned();
    for part in path.into_iter().chain(beyond.map(Path::as_os_str)) {
        joined.push(":");
        joined.push(part);
    }
    joined
}

/// Whoever named a driver for Numba gets the shim there: by a path it would be passed by.
fn numba(drivers: &Path) -> Option<(&'static str, Option<OsString>)> {
    let set = env::var_os(NUMBA).filter(|path| !path.is_empty())?;
    // `0` and the like switch something off; a path is one.
    Path::new(&set).is_absolute().then(|| (NUMBA, Some(drivers.join(driver::NAME).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_s_search_path_stays_as_it_is_behind_ours() {
        let joined = |path: Option<&str>, beyond: Option<&str>| {
            joined(Path::new("/run/d"), path.map(OsStr::new), beyond.map(Path::new)).into_string().unwrap()
        };
        assert_eq!(joined(None, None), "/run/d");
        assert_eq!(joined(Some("/a::/b:"), None), "/run/d:/a::/b:");
        assert_eq!(joined(Some("/a"), Some("/usr/local/nvidia/lib64")), "/run/d:/a:/usr/local/nvidia/lib64");
    }
}
