//! `cargo xtask lint`: everything that is checked without running the code.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::tools::CARGO_DENY;
use crate::web;
use crate::workspace::{self, Workspace};

/// A database that has not come by then is not to be had.
const DATABASE_TIME: Duration = Duration::from_secs(90);

/// Runs every check, also after one has failed.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let mut checks = Checks::default();
    checks.add("formatting", workspace::run(&mut workspace.cargo(["fmt", "--all", "--check"])));
    if workspace.path("fuzz/Cargo.toml").exists() {
        let arguments = ["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"];
        checks.add("formatting of the fuzz targets", workspace::run(&mut workspace.cargo(arguments)));
    }
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    checks.add("clippy", workspace::run(&mut workspace.cargo(clippy)));
    let mut documentation = workspace.cargo(["doc", "--workspace", "--no-deps", "--locked"]);
    checks.add("documentation", workspace::run(documentation.env("RUSTDOCFLAGS", "-D warnings")));
    match web::skipped() {
        Some(why) => checks.skipped.push(why.to_owned()),
        None => checks.add("the page's bundle", web::run(workspace, true)),
    }
    match CARGO_DENY.ensure(workspace) {
        Ok(deny) => {
            let arguments = ["--locked", "check", "licenses", "bans", "sources"];
            checks.add("dependencies", workspace::run(workspace.command(&deny).args(arguments)));
            if let Err(reason) = fetch_advisories(workspace.command(&deny).args(["fetch", "db"])) {
                checks.skipped.push(format!("advisories (the database is not to be had: {reason})"));
            } else {
                let arguments = ["--locked", "check", "advisories"];
                checks.add("advisories", workspace::run(workspace.command(&deny).args(arguments)));
            }
        }
        Err(failure) => checks.add("dependencies", Err(failure)),
    }
    checks.finish()
}

/// Tries to bring the advisory database here. The error is one line.
fn fetch_advisories(command: &mut Command) -> Result<(), String> {
    let output = command.env("GIT_TERMINAL_PROMPT", "0").stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = output.stderr(Stdio::null()).spawn().map_err(|error| error.to_string())?;
    match wait(&mut child, DATABASE_TIME) {
        Some(true) => Ok(()),
        Some(false) => Err("fetching it failed".to_owned()),
        None => Err(format!("nothing came within {} s", DATABASE_TIME.as_secs())),
    }
}

/// Whether the program succeeded; nothing if it had to be ended because it took too long.
fn wait(child: &mut Child, limit: Duration) -> Option<bool> {
    let start = Instant::now();
    while start.elapsed() < limit {
        match child.try_wait() {
            Ok(None) => thread::sleep(Duration::from_millis(50)),
            Ok(Some(status)) => return Some(status.success()),
            Err(_) => return Some(false),
        }
    }
    // It may have ended just now, in which case there is nothing to end.
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// What came of the checks.
#[derive(Default)]
struct Checks {
    passed: usize,
    failed: Vec<&'static str>,
    skipped: Vec<String>,
}

impl Checks {
    fn add(&mut self, name: &'static str, result: Result<(), Failure>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(failure) => {
                eprintln!("{failure}");
                self.failed.push(name);
            }
        }
    }

    fn finish(self) -> Result<(), Failure> {
        eprintln!();
        for check in &self.skipped {
            eprintln!("Skipped: {check}");
        }
        if self.failed.is_empty() {
            eprintln!("Lint: {} checks passed", self.passed);
            return Ok(());
        }
        let failure = Failure::new(format!("Lint failed: {}", self.failed.join(", ")));
        Err(if self.failed.iter().any(|name| name.starts_with("formatting")) {
            failure.hint("`cargo fmt` formats everything")
        } else {
            failure
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_fails_the_whole_but_a_skipped_one_does_not() {
        let mut checks = Checks::default();
        checks.add("clippy", Ok(()));
        checks.skipped.push("advisories".to_owned());
        assert!(checks.finish().is_ok());
        let mut checks = Checks::default();
        checks.add("clippy", Err(Failure::new("clippy failed")));
        checks.add("documentation", Ok(()));
        assert_eq!(checks.finish().unwrap_err().to_string(), "error: Lint failed: clippy");
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended() {
        let spawn = |seconds| Command::new("sleep").arg(seconds).spawn().unwrap();
        assert_eq!(wait(&mut spawn("0"), Duration::from_secs(20)), Some(true));
        assert_eq!(wait(&mut spawn("30"), Duration::from_millis(100)), None);
    }
}
