//! The folder of a run: its ledger, the sockets of its processes, and the one with the shim by the driver's name.
//!
//! ```text
//! 4711/about.json          who began the run, with what
//! 4711/ledger              what its processes hold, in memory that they share
//! 4711/4712.sock           where a process is asked to make room; it makes it
//! 4711/driver/libcuda.so.1, libcuda.so, libcuda-real.so, the same of libnvidia-ml.so.1
//! ```

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpuheap_ledger::file::{self, Limits};
use gpuheap_ledger::{Identity, Reader, Snapshot};
use rustix::fs::StatVfsMountFlags;
use serde::{Deserialize, Serialize};

use super::{Error, bases, driver, processes};

/// A folder without a ledger may be one that is just made. Older ones are what is left of something.
const FRESH: Duration = Duration::from_secs(60);
/// A ledger of another version does not say who is alive. After so long nobody is taken to be.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3600);
/// Runs that one process can have at once.
const MOST: u32 = 99;

/// Who began a run, and with what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct About {
    /// The process, an [`Identity`].
    pub(super) runner: u64,
    /// When, in milliseconds since 1970.
    pub(crate) started_ms: u64,
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
}

/// The folder of this process's run, taken away when this is dropped and no process of the run is left.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

/// A run that goes on.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) path: PathBuf,
    pub(crate) about: About,
    pub(crate) snapshot: Snapshot,
}

impl Run {
    /// By what it is called: the number of the process that began it.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Folder {
    /// Makes the folder of a new run in the first place that can have it, and sweeps that place.
    pub(crate) fn new(command: &[String], limits: Limits, shim: &Path) -> Result<Self, Error> {
        Self::in_first(bases::wanted(), command, limits, shim)
    }

    fn in_first(places: Vec<PathBuf>, command: &[String], limits: Limits, shim: &Path) -> Result<Self, Error> {
        let mut tried = Vec::new();
        for place in places {
            let made = bases::prepare(&place).and_then(|()| {
                sweep(&place);
                Self::within(&place, command, limits, shim)
            });
            match made {
                Ok(folder) => return Ok(folder),
                Err(why) => tried.push((place, why)),
            }
        }
        Err(Error::NoPlace { tried })
    }

    fn within(place: &Path, command: &[String], limits: Limits, shim: &Path) -> Result<Self, String> {
        let path = make(place).map_err(|error| error.to_string())?;
        // From here on, what was made is taken away again if something fails.
        let folder = Self { path };
        let failed = |what: &'static str| move |error: io::Error| format!("failed to write {what}: {error}");
        let runner = Identity::own();
        let about = About { runner: runner.number(), started_ms: now(), command: command.to_vec() };
        let text = serde_json::to_vec(&about).map_err(|error| error.to_string())?;
        fs::write(folder.path.join("about.json"), text).map_err(failed("about the run"))?;
        folder.fill_drivers(shim).map_err(failed("the library"))?;
        file::create(&folder.path.join("ledger"), runner, limits).map_err(failed("the ledger"))?;
        Ok(folder)
    }

    /// The shim by the names under which programs ask for the driver.
    fn fill_drivers(&self, shim: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(self.drivers())?;
        self.put(shim, driver::NAME, "libcuda.so")
    }

    /// Puts a library there by two names. What it needs it takes from the folder that it is opened in: so a link would
    /// do, but a copy stays what it is when another version is installed meanwhile. From places that programs must not be
    /// run from, libraries cannot be loaded; containers have such memory.
    fn put(&self, library: &Path, name: &str, short: &str) -> io::Result<()> {
        let drivers = self.drivers();
        let flags = rustix::fs::statvfs(&drivers)?.f_flag;
        if flags.contains(StatVfsMountFlags::NOEXEC) {
            symlink(fs::canonicalize(library)?, drivers.join(name))?;
        } else {
            fs::copy(library, drivers.join(name))?;
        }
        symlink(name, drivers.join(short))
    }

    /// Puts a library before the driver's management library, which is at `real`. What does not work is taken away again:
    /// programs then get that as it is.
    pub(crate) fn put_management(&self, library: &Path, real: &Path) {
        let put = self.put(library, driver::MANAGEMENT, "libnvidia-ml.so");
        if put.and_then(|()| symlink(real, self.drivers().join("libnvidia-ml-real.so"))).is_err() {
            self.remove_management();
        }
    }

    /// Takes it away.
    pub(crate) fn remove_management(&self) {
        for name in [driver::MANAGEMENT, "libnvidia-ml.so", "libnvidia-ml-real.so"] {
            let _ = fs::remove_file(self.drivers().join(name));
        }
    }

    /// Puts the real driver behind the shim.
    pub(crate) fn put_behind(&self, driver: &Path) -> Result<(), Error> {
        let link = self.drivers().join("libcuda-real.so");
        let _ = fs::remove_file(&link);
        symlink(driver, &link).map_err(|source| Error::Link { path: link, source })
    }

    /// The run's folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder in it with the shim.
    pub(crate) fn drivers(&self) -> PathBuf {
        drivers(&self.path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Children that are still there need it; who starts the next run takes it away.
        let living = read(&self.path).is_some_and(|run| run.snapshot.living().next().is_some());
        if !living && !processes::any_of(&self.path) {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The folder with the shim of a run.
pub(crate) fn drivers(run: &Path) -> PathBuf {
    run.join("driver")
}

/// All runs of this user's that go on, in the order in which they began. What is left of others is taken away.
pub(crate) fn all() -> Vec<Run> {
    let mut runs = Vec::new();
    for place in bases::known() {
        sweep(&place);
        runs.extend(entries(&place).iter().filter_map(|path| read(path)));
    }
    runs.sort_by_key(|run| (run.about.started_ms, run.path.clone()));
    runs
}

/// Runs of this user's whose runner is alive and whose ledger cannot be read, with the reason.
pub(crate) fn unreadable() -> Vec<(String, gpuheap_ledger::snapshot::Error)> {
    let why = |path: PathBuf| {
        let about = about(&path).filter(|about| Identity::from_number(about.runner).is_alive())?;
        let read = Reader::open(&path.join("ledger")).and_then(|reader| reader.snapshot());
        let number = Identity::from_number(about.runner).process();
        read.err().map(|error| (number.to_string(), error))
    };
    bases::known().iter().flat_map(|place| entries(place)).filter_map(why).collect()
}

fn make(place: &Path) -> io::Result<PathBuf> {
    let own = std::process::id();
    let mut number = 1;
    loop {
        let name = if number == 1 { own.to_string() } else { format!("{own}-{number}") };
        let path = place.join(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            // A process of this number in another container, or several runs of one process.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < MOST => number += 1,
            made => return made.map(|()| path),
        }
    }
}

fn about(path: &Path) -> Option<About> {
    let about = path.join("about.json");
    // Of anything else, reading might never end.
    if !fs::symlink_metadata(&about).ok()?.is_file() {
        return None;
    }
    serde_json::from_slice(&fs::read(about).ok()?).ok()
}

fn read(path: &Path) -> Option<Run> {
    let about = about(path)?;
    let snapshot = Reader::open(&path.join("ledger")).ok()?.snapshot().ok()?;
    Some(Run { path: path.to_owned(), about, snapshot })
}

/// The folders of runs in a place.
fn entries(place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(place) else { return Vec::new() };
    let is_run = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') && !path.is_symlink() && path.is_dir()
    };
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_run).collect();
    found.sort();
    found
}

/// Takes away what dead runs left.
fn sweep(place: &Path) {
    for path in entries(place) {
        if is_dead(&path) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn is_dead(path: &Path) -> bool {
    let Some(run) = read(path) else {
        let age = fs::metadata(path).and_then(|found| found.modified()).ok().and_then(|made| made.elapsed().ok());
        let most = if path.join("ledger").exists() { FORGOTTEN } else { FRESH };
        return age.is_some_and(|age| age > most);
    };
    !Identity::from_number(run.about.runner).is_alive()
        && run.snapshot.living().next().is_none()
        && !processes::any_of(path)
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(place: &Path) -> Folder {
        let shim = std::env::current_exe().unwrap();
        Folder::within(place, &["true".to_owned()], Limits { budget: 5, spill: 6 }, &shim).unwrap()
    }

    #[test]
    fn a_run_has_a_folder_as_long_as_it_goes_on() {
        let place = tempfile::tempdir().unwrap();
        let (first, second) = (made(place.path()), made(place.path()));
        let own = std::process::id().to_string();
        assert_eq!(first.path(), place.path().join(&own));
        assert_eq!(second.path(), place.path().join(format!("{own}-2")));
        first.put_behind(Path::new("/old")).unwrap();
        first.put_behind(Path::new("/new")).unwrap();
        assert_eq!(fs::read_link(first.drivers().join("libcuda-real.so")).unwrap(), Path::new("/new"));
        assert_eq!(fs::read_link(first.drivers().join("libcuda.so")).unwrap(), Path::new("libcuda.so.1"));
        sweep(place.path());
        let run = read(first.path()).unwrap();
        assert_eq!((run.snapshot.budgets[3], run.snapshot.spill, run.about.command), (5, 6, vec!["true".to_owned()]));
        drop(first);
        assert_eq!(entries(place.path()), [second.path()]);
    }

    #[test]
    fn the_first_place_that_can_be_written_is_taken_and_none_is_an_error_that_names_all() {
        let folder = tempfile::tempdir().unwrap();
        let (file, place) = (folder.path().join("file"), folder.path().join("place"));
        fs::write(&file, "").unwrap();
        let shim = std::env::current_exe().unwrap();
        let new = |places| Folder::in_first(places, &[], Limits::default(), &shim);
        let made = new(vec![file.clone(), PathBuf::from("/nowhere/gpuheap"), place.clone()]).unwrap();
        assert_eq!(made.path().parent(), Some(place.as_path()));
        let error = new(vec![file.clone(), PathBuf::from("/nowhere/gpuheap")]).unwrap_err().to_string();
        let expected = format!(
            "Failed to make a folder for what the processes of the run share\n  `{}`: it is no folder\n  \
             `/nowhere/gpuheap`: No such file or directory (os error 2)",
            file.display()
        );
        assert_eq!(error, expected);
        let error =
            Folder::in_first(vec![place.clone()], &[], Limits::default(), Path::new("/nowhere/shim")).unwrap_err();
        assert!(error.to_string().contains("failed to write the library"), "{error}");
        drop(made);
        assert_eq!(entries(&place), Vec::<PathBuf>::new(), "what was half made is gone");
    }

    #[test]
    fn what_a_dead_run_left_is_swept_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let folder = made(place.path());
        let path = folder.path().to_owned();
        let about = |runner: u64| {
            let about = About { runner, started_ms: 0, command: vec![] };
            fs::write(path.join("about.json"), serde_json::to_vec(&about).unwrap()).unwrap();
        };
        let others = place.path().join("notes");
        fs::create_dir(&others).unwrap();
        fs::create_dir(place.path().join("77")).unwrap();
        sweep(place.path());
        assert_eq!(entries(place.path()).len(), 2, "the new one may be one that is just made");
        // Of this namespace, a number that no process has.
        about(Identity::own().number() >> 54 << 54 | 4_000_000 << 32 | 1);
        sweep(place.path());
        assert_eq!(entries(place.path()), [place.path().join("77")]);
        assert!(others.exists());
    }
}
