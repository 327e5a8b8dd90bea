//! Which recordings there are.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::Error;

/// The most recordings of a folder that are served, and the most folders in it that are looked into.
const MOST_FILES: usize = 2000;
const MOST_FOLDERS: usize = 1000;

/// Lists what looks like a recording in one folder.
pub type Finder = Box<dyn Fn(&Path) -> io::Result<Vec<PathBuf>> + Send + Sync>;

/// What is served: one file, or a folder with its recordings.
pub struct Root {
    path: PathBuf,
    /// The folder, without links on the way; `None` for a file.
    folder: Option<PathBuf>,
    finder: Finder,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Root").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A recording in a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// What people call it: its path from the folder on.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) stamp: Stamp,
}

/// What changes when a file changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Stamp {
    pub(crate) bytes: u64,
    pub(crate) modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl Root {
    /// A file or a folder, which may be a link.
    pub fn new(path: &Path, finder: Finder) -> Result<Self, Error> {
        let failed = |source| Error::Look { name: path.display().to_string(), source };
        let is_folder = fs::metadata(path).map_err(failed)?.is_dir();
        let folder = if is_folder { Some(path.canonicalize().map_err(failed)?) } else { None };
        Ok(Self { path: path.to_owned(), folder, finder })
    }

    /// The folder's name, for people; `None` for a file.
    pub(crate) fn folder_name(&self) -> Option<String> {
        let folder = self.folder.as_ref()?;
        Some(folder.file_name().map_or_else(|| folder.to_string_lossy(), OsStr::to_string_lossy).into_owned())
    }

    /// What is there now, by name. Folders in the folder are looked into, those in them are not.
    pub(crate) fn scan(&self) -> io::Result<Vec<Found>> {
        let Some(root) = &self.folder else {
            let stamp = Stamp::of(&fs::metadata(&self.path)?);
            let name = self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned();
            return Ok(vec![Found { name, path: self.path.clone(), stamp }]);
        };
        let mut files = (self.finder)(root)?;
        for folder in folders(root) {
            // A folder that cannot be listed hides its recordings, not those of others.
            files.extend((self.finder)(&folder).unwrap_or_default());
        }
        let mut seen = HashSet::new();
        let mut found: Vec<Found> = Vec::new();
        for path in files.into_iter().filter(|path| !is_hidden(path)) {
            let Some(real) = within(root, &path) else { continue };
            let Ok(metadata) = fs::metadata(&real) else { continue };
            if !metadata.is_file() || !seen.insert(real) {
                continue;
            }
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            found.push(Found { name, path, stamp: Stamp::of(&metadata) });
            if found.len() == MOST_FILES {
                break;
            }
        }
        found.sort_by_cached_key(|found| natural(&found.name));
        Ok(found)
    }

    /// A number that changes when something in the folder may have changed. Opens no file.
    pub(crate) fn fingerprint(&self) -> io::Result<u64> {
        let mut hasher = DefaultHasher::new();
        let Some(root) = &self.folder else {
            Stamp::of(&fs::metadata(&self.path)?).hash(&mut hasher);
            return Ok(hasher.finish());
        };
        for folder in [root.clone()].into_iter().chain(folders(root)) {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            // The order of a listing may change where nothing else does.
            let mut sum = 0_u64;
            for entry in entries.flatten() {
                let mut hasher = DefaultHasher::new();
                entry.file_name().hash(&mut hasher);
                fs::metadata(entry.path()).ok().map(|metadata| Stamp::of(&metadata)).hash(&mut hasher);
                sum = sum.wrapping_add(hasher.finish());
            }
            (folder, sum).hash(&mut hasher);
        }
        Ok(hasher.finish())
    }
}

/// Folders in a folder.
fn folders(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = entries
        .filter(|path| !is_hidden(path) && path.is_dir() && within(root, path).is_some_and(|real| real != root))
        .collect();
    folders.sort();
    folders.truncate(MOST_FOLDERS);
    folders
}

/// The path without links, if it is still in the folder.
fn within(root: &Path, path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().filter(|real| real.starts_with(root))
}

/// Whether programs use the name for what is not meant for people, such as a file that is being written.
fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

/// What to sort a name by, so that `rank10` comes after `rank9`.
fn natural(name: &str) -> Vec<(u64, String)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let text = rest[digits..].bytes().take_while(|byte| !byte.is_ascii_digit()).count();
        let number = if digits == 0 { 0 } else { rest[..digits].parse().unwrap_or(u64::MAX) };
        key.push((number, rest[digits..digits + text].to_owned()));
        rest = &rest[digits + text..];
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(path: &Path) -> Root {
        let finder = |folder: &Path| -> io::Result<Vec<PathBuf>> {
            let entries = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
            Ok(entries.filter(|path| path.extension().is_some_and(|extension| extension == "pickle")).collect())
        };
        Root::new(path, Box::new(finder)).unwrap()
    }

    fn names(root: &Root) -> Vec<String> {
        root.scan().unwrap().into_iter().map(|found| found.name).collect()
    }

    #[test]
    fn a_folder_and_the_folders_in_it() {
        let folder = tempfile::tempdir().unwrap();
        for name in
            ["rank10.pickle", "rank9.pickle", ".part.pickle", "x/rank0.pickle", "x/y/deep.pickle", ".h/a.pickle"]
        {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let root = root(folder.path());
        assert_eq!(names(&root), ["rank9.pickle", "rank10.pickle", "x/rank0.pickle"]);
        let before = root.fingerprint().unwrap();
        assert_eq!(before, root.fingerprint().unwrap());
        fs::write(folder.path().join("x/rank1.pickle"), "longer").unwrap();
        assert_ne!(before, root.fingerprint().unwrap());
        assert_eq!(names(&root).len(), 4);
    }

    #[test]
    fn one_file_is_what_was_given() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.pickle"), "x").unwrap();
        let root = root(&folder.path().join("a.pickle"));
        assert_eq!(names(&root), ["a.pickle"]);
        assert_eq!(root.folder_name(), None);
        fs::remove_file(folder.path().join("a.pickle")).unwrap();
        assert!(root.scan().is_err() && root.fingerprint().is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_within_the_folder_only() {
        use std::os::unix::fs::symlink;

        let (outside, inside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("secret.pickle"), "x").unwrap();
        fs::create_dir(inside.path().join("real")).unwrap();
        fs::write(inside.path().join("real/a.pickle"), "x").unwrap();
        symlink(outside.path().join("secret.pickle"), inside.path().join("link.pickle")).unwrap();
        symlink(outside.path(), inside.path().join("folder")).unwrap();
        symlink(inside.path(), inside.path().join("itself")).unwrap();
        symlink("../real/a.pickle", inside.path().join("real/again.pickle")).unwrap();
        symlink("real/a.pickle", inside.path().join("b.pickle")).unwrap();
        let found = names(&root(inside.path()));
        assert_eq!(found, ["b.pickle"], "one file is served once, and none from outside");
        let link = outside.path().join("to");
        symlink(inside.path(), &link).unwrap();
        assert_eq!(names(&root(&link)), ["b.pickle"]);
    }
}
