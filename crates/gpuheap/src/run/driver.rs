//! Where the real driver and its management library (NVML) may be, in the order in which the loader would look.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{cache, elf};

/// The driver's name.
pub(crate) const NAME: &str = "libcuda.so.1";
/// The name of the library that tells how large devices are, of those that do not ask the driver.
pub(crate) const MANAGEMENT: &str = "libnvidia-ml.so.1";

/// Folders that installers use, some of which no loader knows.
const USUAL: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/cuda/compat",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia",
];

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Search {
    /// Files that may be the driver, the likeliest first.
    pub(crate) candidates: Vec<PathBuf>,
    /// Folders in which there is none.
    pub(crate) searched: Vec<PathBuf>,
    /// Files that were passed over, and why.
    pub(crate) refused: Vec<(PathBuf, String)>,
    /// Those folders of the candidates that the loader does not search by itself.
    beyond: Vec<PathBuf>,
}

impl Search {
    /// Looks in all folders for a library of that name. `path` is the user's own `LD_LIBRARY_PATH`.
    pub(crate) fn start(name: &str, path: Option<&OsStr>) -> Self {
        let own = folders(path);
        let known: Vec<PathBuf> =
            cache::find(name).iter().filter_map(|file| file.parent()).map(Path::to_path_buf).collect();
        Self::within(name, &own, &known, USUAL)
    }

    fn within(name: &str, own: &[PathBuf], known: &[PathBuf], usual: &[&str]) -> Self {
        let mut search = Self::default();
        let mut seen = Vec::new();
        let own = own.iter().map(|folder| (folder.clone(), false));
        let known = known.iter().map(|folder| (folder.clone(), false));
        let usual = usual.iter().map(|folder| (PathBuf::from(folder), true));
        for (folder, is_beyond) in own.chain(known).chain(usual) {
            let file = folder.join(name);
            let Ok(real) = file.canonicalize() else {
                let known = |other: &PathBuf| other.canonicalize().ok() == folder.canonicalize().ok();
                if folder.is_dir() && !search.searched.iter().any(known) {
                    search.searched.push(folder);
                }
                continue;
            };
            if seen.contains(&real) {
                continue;
            }
            match unfit(&file, &real) {
                Some(why) => search.refused.push((file, why.to_owned())),
                None => {
                    search.candidates.push(file);
                    if is_beyond {
                        search.beyond.push(folder);
                    }
                }
            }
            seen.push(real);
        }
        search
    }

    /// The folder of a candidate if the loader would not search it: what lies beside the driver is found there only if
    /// somebody says so.
    pub(crate) fn beyond(&self, candidate: &Path) -> Option<&Path> {
        let folder = candidate.parent()?;
        self.beyond.iter().find(|other| *other == folder).map(PathBuf::as_path)
    }
}

/// Why a file is not the driver.
fn unfit(file: &Path, real: &Path) -> Option<&'static str> {
    let is_stub = |path: &Path| path.parent().is_some_and(|folder| folder.ends_with("stubs"));
    if is_stub(file) || is_stub(real) {
        return Some("it is the CUDA toolkit's stub, which programs are linked with");
    }
    match elf::read(real) {
        None => Some("it is no library of this machine's kind"),
        Some(elf) if elf.is_shim => Some("it is gpuheap's own library"),
        Some(_) => None,
    }
}

/// The folders of a search path; empty ones are the current folder.
pub(crate) fn folders(path: Option<&OsStr>) -> Vec<PathBuf> {
    let path = path.filter(|path| !path.is_empty()).map(OsStr::as_bytes);
    let folders = path.into_iter().flat_map(|path| path.split(|byte| matches!(byte, b':' | b';')));
    let folders =
        folders.map(|folder| if folder.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(folder)) });
    folders.map(|folder| std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_first_that_may_be_one_is_taken_and_each_file_once() {
        let place = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let folder = place.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            folder
        };
        let library = std::env::current_exe().unwrap();
        let (empty, stubs, text) = (folder("empty"), folder("lib64/stubs"), folder("text"));
        let (first, again, linked, usual) = (folder("first"), folder("again"), folder("linked"), folder("usual"));
        fs::write(text.join(NAME), "INPUT(libx.so)").unwrap();
        for folder in [&stubs, &first, &usual] {
            fs::copy(&library, folder.join(NAME)).unwrap();
        }
        symlink(first.join(NAME), again.join(NAME)).unwrap();
        symlink(stubs.join(NAME), linked.join(NAME)).unwrap();
        let own = [empty.clone(), stubs.clone(), text.clone(), first.clone()];
        let usual_text = usual.to_string_lossy().into_owned();
        let search = Search::within(NAME, &own, &[again, linked, empty.clone()], &[&usual_text]);
        assert_eq!(search.candidates, [first.join(NAME), usual.join(NAME)]);
        assert_eq!(search.searched, [empty]);
        let refused: Vec<&Path> = search.refused.iter().map(|(path, _)| path.as_path()).collect();
        assert_eq!(refused, [stubs.join(NAME), text.join(NAME)]);
        assert_eq!(search.beyond(&first.join(NAME)), None);
        assert_eq!(search.beyond(&usual.join(NAME)), Some(usual.as_path()));
    }

    #[test]
    fn a_search_path_has_folders() {
        assert_eq!(folders(None), Vec::<PathBuf>::new());
        assert_eq!(folders(Some(OsStr::new(""))), Vec::<PathBuf>::new());
        let here = std::env::current_dir().unwrap();
        assert_eq!(folders(Some(OsStr::new("/a::/b/c"))), [PathBuf::from("/a"), here, PathBuf::from("/b/c")]);
    }
}
