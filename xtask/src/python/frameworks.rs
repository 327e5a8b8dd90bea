//! `PyTorch`, JAX and TensorFlow for the tests that need them: where they are installed, and whether.

use std::env;

use super::environment::{Environment, free_bytes};
use super::interpreters::Python;
use crate::failure::Failure;
use crate::workspace::Workspace;

/// The newest Python that all three have wheels for, which is what `requirements/frameworks.txt` was made with.
const NEWEST: u32 = 13;
const LISTS: [&str; 2] = ["test", "frameworks"];
/// What they take: 7 GB below `target`, and 3 GB of wheels for as long as they are installed.
const DISK_BYTES: u64 = 10_000_000_000;

/// Whether tests run with the frameworks.
pub(super) enum Frameworks<'a> {
    /// With this Python, in this environment.
    Ready(&'a Python, Environment),
    /// They were not asked for, and are not there.
    NotAsked,
}

impl<'a> Frameworks<'a> {
    /// Installs them where they are asked for. Those that are there are used without being asked for.
    pub(super) fn find(workspace: &Workspace, pythons: &'a [Python], asked: bool) -> Result<Self, Failure> {
        let newest = pythons.iter().rfind(|python| python.minor <= NEWEST);
        let Some(python) = newest.filter(|python| python.minor == NEWEST) else {
            if !asked {
                return Ok(Self::NotAsked);
            }
            let found: Vec<String> = pythons.iter().map(|python| format!("3.{}", python.minor)).collect();
            return Err(failed(format!("Python 3.{NEWEST} was not found, only {}", found.join(", ")))
                .hint(format!("install it; `requirements/frameworks.txt` is a list for Python 3.{NEWEST}")));
        };
        let name = format!("frameworks-3.{NEWEST}");
        let environment = Environment::new(workspace, &name);
        if !environment.has(workspace, python, &LISTS)? {
            if !asked {
                return Ok(Self::NotAsked);
            }
            check_platform(env::consts::OS, env::consts::ARCH)?;
            let folder = workspace.target("python").join(&name);
            if !folder.exists()
                && let Some(free) = free_bytes(workspace, python, &folder)
            {
                check_disk(free)?;
            }
            let installed = environment.ensure(workspace, python, &LISTS);
            installed.map_err(|failure| failed(failure).hint("`pip` says above what it could not install"))?;
        }
        Ok(Self::Ready(python, environment))
    }
}

fn failed(cause: impl std::fmt::Display) -> Failure {
    Failure::new("Failed to install PyTorch, JAX and TensorFlow for the tests").cause(cause)
}

fn check_platform(system: &str, processor: &str) -> Result<(), Failure> {
    if system == "linux" && processor == "x86_64" {
        return Ok(());
    }
    Err(failed(format!(
        "`requirements/frameworks.txt` is a list for Linux on x86_64, and this is {system} on {processor}"
    ))
    .hint("run without `--frameworks` (and without `CI=true`): the tests that need them are skipped then"))
}

fn check_disk(free: u64) -> Result<(), Failure> {
    if free >= DISK_BYTES {
        return Ok(());
    }
    let giga = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
    Err(failed(format!("they take {} on disk, and {} are free", giga(DISK_BYTES), giga(free)))
        .hint("make room where `target` is, or set `CARGO_TARGET_DIR`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_platforms_are_refused() {
        assert!(check_platform("linux", "x86_64").is_ok());
        let text = check_platform("macos", "aarch64").unwrap_err().to_string();
        assert!(text.contains("this is macos on aarch64"), "{text}");
    }

    #[test]
    fn a_full_disk_is_said_before_anything_is_installed() {
        assert!(check_disk(DISK_BYTES).is_ok());
        let text = check_disk(3_100_000_000).unwrap_err().to_string();
        assert!(text.contains("they take 10.0 GB on disk, and 3.1 GB are free"), "{text}");
    }
}
