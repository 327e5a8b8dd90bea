//! Which Pythons this machine has.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::{self, Workspace};

/// The oldest Python that the package supports: 3.10.
pub(super) const OLDEST: u32 = 10;
/// Newer ones than this are not looked for.
const NEWEST: u32 = 20;

/// A Python of the machine.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Python {
    pub(super) minor: u32,
    pub(super) program: PathBuf,
}

impl Python {
    /// Those that are supported, one of each version, oldest first.
    pub(super) fn all(workspace: &Workspace) -> Vec<Self> {
        let mut programs: Vec<PathBuf> = (OLDEST..=NEWEST).map(|minor| format!("python3.{minor}").into()).collect();
        programs.push("python3".into());
        // Versions that pyenv has but that are not active are not on `PATH`.
        let root = env::var_os("PYENV_ROOT").map(PathBuf::from);
        let root = root.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
        if let Some(versions) = root.and_then(|root| fs::read_dir(root.join("versions")).ok()) {
            let mut found: Vec<PathBuf> =
                versions.filter_map(|entry| Some(entry.ok()?.path().join("bin/python"))).collect();
            found.sort();
            programs.extend(found);
        }
        let mut pythons: Vec<Self> = programs.into_iter().filter_map(|program| Self::at(workspace, &program)).collect();
        // A stable sort: what is on `PATH` comes first.
        pythons.sort_by_key(|python| python.minor);
        pythons.dedup_by_key(|python| python.minor);
        pythons
    }

    fn at(workspace: &Workspace, program: &Path) -> Option<Self> {
        // Without `venv` it is of no use.
        let code = "import sys, venv, ensurepip; print(*sys.version_info[:2], sys.executable)";
        let text = workspace::output(workspace.command(program).args(["-c", code]))?;
        Self::read(&text)
    }

    /// Reads `3 13 /usr/bin/python3.13`.
    fn read(text: &str) -> Option<Self> {
        let mut words = text.trim().splitn(3, ' ');
        let (major, minor, program) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        (major == "3" && minor >= OLDEST).then(|| Self { minor, program: program.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_is_read_from_what_it_says() {
        let python = Python::read("3 13 /opt/my python/bin/python\n").unwrap();
        assert_eq!(python, Python { minor: 13, program: "/opt/my python/bin/python".into() });
        for text in ["", "3", "3 9 /usr/bin/python3", "2 7 /usr/bin/python", "3 x /usr/bin/python"] {
            assert_eq!(Python::read(text), None, "{text:?}");
        }
    }
}
