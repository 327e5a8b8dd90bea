//! The program: found, looked at, started, waited for.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::environment::Changes;
use super::signals::Signals;
use super::{Error, driver, elf};

/// Scripts that are run by scripts, at most.
const DEEPEST: usize = 4;
/// Bytes of a script's first line that the kernel reads.
const FIRST_LINE: u64 = 256;

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    signals: Signals,
}

/// Changes the environment of a command.
pub(super) fn change(command: &mut Command, changes: &Changes) {
    for (name, value) in changes {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

impl Program {
    /// Starts it, with everything of this process's that is not changed. From now on signals are passed on.
    pub(crate) fn start(words: &[OsString], changes: &Changes) -> Result<Self, Error> {
        let (program, arguments) = words.split_first().ok_or_else(|| Error::NoProgram { program: OsString::new() })?;
        let signals = Signals::catch().map_err(Error::Signals)?;
        let mut command = Command::new(program);
        command.args(arguments);
        change(&mut command, changes);
        let child = command.spawn().map_err(|source| match find(program) {
            Some(program) => Error::NotRun { program, source },
            None if source.kind() == io::ErrorKind::NotFound => Error::NoProgram { program: program.clone() },
            None => Error::NotRun { program: PathBuf::from(program), source },
        })?;
        signals.pass_on_to(pid(&child));
        Ok(Self { child, signals })
    }

    /// Waits for it. The exit code is its own, or 128 and the number of the signal that ended it.
    pub(crate) fn wait(mut self) -> Result<ExitCode, Error> {
        if let Some(pid) = pid(&self.child) {
            // It keeps its number until no signal can be sent to it any more.
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), ended)).map_err(|error| Error::Wait(error.into()))?;
        }
        self.signals.stop();
        let status = self.child.wait().map_err(Error::Wait)?;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)))
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// The file of a program, by its path or by its name in `PATH`.
fn find(program: &OsStr) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| path.is_file();
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(is_file);
    }
    let path = env::var_os("PATH")?;
    let found: Vec<PathBuf> = env::split_paths(&path).map(|folder| folder.join(program)).filter(is_file).collect();
    let may_run = |path: &&PathBuf| path.metadata().is_ok_and(|found| found.mode() & 0o111 != 0);
    found.iter().find(may_run).or(found.first()).cloned()
}

/// A driver that a program gets before ours, since its file says where to look first, and that file.
pub(crate) fn earlier_driver(program: &OsStr) -> Option<(PathBuf, PathBuf)> {
    let mut file = find(program)?;
    for _ in 0..DEEPEST {
        if let Some(elf) = elf::read(&file) {
            let drivers = elf.first.iter().map(|folder| folder.join(driver::NAME));
            let mut found = drivers.filter(|driver| elf::read(driver).is_some_and(|elf| !elf.is_shim));
            return found.next().map(|driver| (file, driver));
        }
        file = interpreter(&file)?;
    }
    None
}

/// The program that runs a script.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(script).ok()?.take(FIRST_LINE).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line).into_owned();
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if first.ends_with("/env") {
        return find(OsStr::new(words.find(|word| !word.starts_with('-') && !word.contains('='))?));
    }
    find(OsStr::new(first))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_script_is_run_by_what_its_first_line_names() {
        let folder = tempfile::tempdir().unwrap();
        let script = |text: &str| {
            let path = folder.path().join("script");
            fs::write(&path, text).unwrap();
            interpreter(&path)
        };
        assert_eq!(script("#!/bin/sh -e\n"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(script("#! /bin/sh"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(script("#!/usr/bin/env -S A=b sh -e\n"), find(OsStr::new("sh")));
        assert_eq!(script("#!/nowhere/sh\n"), None);
        assert_eq!(script("echo\n"), None);
        assert_eq!(script("#!"), None);
        assert_eq!(find(OsStr::new("no-such-program-at-all")), None);
        assert_eq!(find(OsStr::new("./src")), None);
    }
}
