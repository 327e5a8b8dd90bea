//! Processes of a run that use the driver and passed the shim by: what they allocate is neither counted nor limited, and
//! nobody would know.
//!
//! A process that has the driver mapped and not the shim is one. Only what the command started, and what that started,
//! is looked at: whose parent is gone, who has another user or who lives in a container with files of its own is not
//! seen. Nor is one that ended between two looks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpuheap_ledger::Identity;

use super::{driver, environment, processes};

/// When to look first, and how seldom at most: a look reads what the system says of all processes.
const SOON: Duration = Duration::from_millis(500);
const SELDOM: Duration = Duration::from_secs(30);

/// Looks for them now and then.
#[derive(Debug)]
pub(crate) struct Passing {
    /// The folder with the shim.
    drivers: PathBuf,
    root: u32,
    next: Instant,
    pause: Duration,
    told: BTreeSet<u64>,
}

/// A process that passed the shim by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Passer {
    pub(crate) process: u32,
    pub(crate) command: String,
    /// The driver's file that it has.
    pub(crate) driver: PathBuf,
    /// Whether it was started with the folder of the shim in its search path.
    pub(crate) had_path: bool,
}

impl Passing {
    /// Looks at what this process starts, with the shim in that folder.
    pub(crate) fn new(drivers: &Path) -> Self {
        let next = Instant::now() + SOON;
        Self { drivers: drivers.to_owned(), root: std::process::id(), next, pause: SOON, told: BTreeSet::new() }
    }

    /// Those that were not told before, if it is time to look again.
    pub(crate) fn look(&mut self) -> Vec<Passer> {
        if Instant::now() < self.next {
            return Vec::new();
        }
        let found = self.find();
        self.pause = (self.pause * 2).min(SELDOM);
        self.next = Instant::now() + self.pause;
        found
    }

    /// How many there were.
    pub(crate) fn count(&self) -> usize {
        self.told.len()
    }

    fn find(&mut self) -> Vec<Passer> {
        let file = |name: &str| fs::canonicalize(self.drivers.join(name)).ok();
        let (shim, real) = (file(driver::NAME), file("libcuda-real.so"));
        let mut found = Vec::new();
        for process in descendants(self.root, &parents()) {
            let Some(identity) = Identity::of(process) else { continue };
            if self.told.contains(&identity.number()) {
                continue;
            }
            let maps = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
            let Some(driver) = passed(&maps, shim.as_deref(), real.as_deref()) else { continue };
            self.told.insert(identity.number());
            let command = processes::command(identity).unwrap_or_default();
            let path = processes::variable(process, environment::PATH).unwrap_or_default();
            let had_path = driver::folders(Some(&path)).contains(&self.drivers);
            found.push(Passer { process, command: processes::short(&command), driver, had_path });
        }
        found
    }
}

impl std::fmt::Display for Passer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { process, command, driver, had_path } = self;
        write!(
            formatter,
            "{process} ({command}) uses `{}` without gpuheap: what it allocates is neither counted nor limited. ",
            driver.display()
        )?;
        if *had_path {
            formatter.write_str("It does not ask for the driver by its name, or finds that one first")
        } else {
            formatter.write_str(
                "It was started without the LD_LIBRARY_PATH of the run, which `env -i`, `sudo` and some launchers take away",
            )
        }
    }
}

/// The driver's file that a process has mapped, if the shim is not there.
fn passed(maps: &[u8], shim: Option<&Path>, real: Option<&Path>) -> Option<PathBuf> {
    let files = maps.split(|byte| *byte == b'\n').filter_map(|line| {
        let start = line.iter().position(|byte| *byte == b'/')?;
        Some(Path::new(std::ffi::OsStr::from_bytes(&line[start..])))
    });
    let mut found = None;
    for file in files {
        if Some(file) == shim {
            return None;
        }
        let is_named = file.file_name().is_some_and(|name| name.as_bytes().starts_with(b"libcuda.so"));
        if found.is_none() && (is_named || Some(file) == real) {
            found = Some(file);
        }
    }
    found.map(Path::to_owned)
}

/// All processes by their parents.
fn parents() -> BTreeMap<u32, Vec<u32>> {
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    for process in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        if let Some(parent) = processes::parent(process) {
            children.entry(parent).or_default().push(process);
        }
    }
    children
}

fn descendants(root: u32, children: &BTreeMap<u32, Vec<u32>>) -> Vec<u32> {
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(process) = next.pop() {
        for child in children.get(&process).into_iter().flatten() {
            // Numbers are used again while this is read: nobody is looked at twice.
            if !found.contains(child) {
                found.push(*child);
                next.push(*child);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0a0000000-55d0a0001000 r--p 00000000 08:01 17 /usr/bin/python3.12
7f0000000000-7f0000001000 rw-p 00000000 00:00 0
7f0000002000-7f0000003000 r-xp 00000000 08:01 18 /usr/lib/x86 64/libcuda.so.580.159
7f0000004000-7f0000005000 r-xp 00000000 08:01 19 /usr/lib/libcudart.so.13
7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn the_driver_without_the_shim_is_what_passes() {
        let (shim, real) = (Path::new("/run/1/driver/libcuda.so.1"), Path::new("/opt/driver.so"));
        let passed = |maps: &str| passed(maps.as_bytes(), Some(shim), Some(real));
        assert_eq!(passed(MAPS), Some(PathBuf::from("/usr/lib/x86 64/libcuda.so.580.159")));
        let with = format!("{MAPS}7f1000000000-7f1000001000 r-xp 00000000 08:01 20 {}\n", shim.display());
        assert_eq!(passed(&with), None);
        let other = MAPS.replace("/usr/lib/x86 64/libcuda.so.580.159", "/opt/driver.so");
        assert_eq!(passed(&other), Some(real.to_owned()), "whatever it is called");
        assert_eq!(passed(&MAPS.replace("libcuda.so.580.159", "libother.so")), None);
        assert_eq!(passed(""), None);
    }

    #[test]
    fn children_of_children_are_found_once() {
        let children = BTreeMap::from([(1, vec![2, 3]), (2, vec![4]), (4, vec![2]), (9, vec![8])]);
        let mut found = descendants(1, &children);
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4]);
    }

    #[test]
    fn a_child_is_found_by_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert_eq!(processes::parent(child.id()), Some(std::process::id()));
        assert!(descendants(std::process::id(), &parents()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(processes::parent(child.id()), None);
    }

    #[test]
    fn why_it_passed_is_told() {
        let mut passer = Passer {
            process: 7,
            command: "python train.py".to_owned(),
            driver: PathBuf::from("/usr/lib/libcuda.so.1"),
            had_path: false,
        };
        assert_eq!(
            passer.to_string(),
            "7 (python train.py) uses `/usr/lib/libcuda.so.1` without gpuheap: what it allocates is neither counted nor \
             limited. It was started without the LD_LIBRARY_PATH of the run, which `env -i`, `sudo` and some launchers \
             take away"
        );
        passer.had_path = true;
        assert!(passer.to_string().ends_with("It does not ask for the driver by its name, or finds that one first"));
    }
}
