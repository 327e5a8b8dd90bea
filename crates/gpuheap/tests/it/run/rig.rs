//! A folder with a driver, a client of it in C, and the command with an environment of its own.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const MIB: usize = 1 << 20;

/// All that a test needs.
pub(super) struct Rig {
    folder: TempDir,
}

/// Libraries lie beside the test program, where cargo puts those of dependencies.
pub(super) fn library(name: &str) -> PathBuf {
    let library = std::env::current_exe().unwrap().parent().unwrap().join(name);
    assert!(library.exists(), "{} is not there", library.display());
    library
}

impl Rig {
    pub(super) fn new() -> Self {
        let rig = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(rig.path("driver")).unwrap();
        fs::DirBuilder::new().mode(0o700).create(rig.path("session")).unwrap();
        symlink(library("libgpuheap_fakecuda.so"), rig.path("driver/libcuda.so.1")).unwrap();
        rig
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The place in which runs have their folders.
    pub(super) fn place(&self) -> PathBuf {
        self.path("session/gpuheap")
    }

    /// The folders of runs that are there.
    pub(super) fn runs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.place()).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// The client of the shim's own tests, compiled.
    pub(super) fn client(&self) -> PathBuf {
        for (name, text) in [
            ("client.c", include_str!("../../../../gpuheap-shim/tests/it/client/client.c")),
            ("driver.h", include_str!("../../../../gpuheap-shim/tests/it/client/driver.h")),
            ("calls.h", include_str!("../../../../gpuheap-shim/tests/it/client/calls.h")),
            ("processes.h", include_str!("../../../../gpuheap-shim/tests/it/client/processes.h")),
            ("stress.h", include_str!("../../../../gpuheap-shim/tests/it/client/stress.h")),
        ] {
            fs::write(self.path(name), text).unwrap();
        }
        self.compile("client", &["client.c", "-ldl", "-pthread"])
    }

    /// A program or a library in C.
    pub(super) fn compile(&self, name: &str, arguments: &[&str]) -> PathBuf {
        let mut compiler = Command::new("cc");
        compiler.current_dir(self.folder.path()).args(["-std=gnu11", "-O1", "-o", name]).args(arguments);
        assert!(compiler.status().unwrap().success());
        self.path(name)
    }

    /// The command, where only this rig's driver and no other run is.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuheap"));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        for name in ["GPUHEAP_RUN", "GPUHEAP_LEDGER", "GPUHEAP_BUDGET", "GPUHEAP_SPILL", "GPUHEAP_MOVE"] {
            command.env_remove(name);
        }
        for name in
            ["GPUHEAP_SHIM", "GPUHEAP_FAKECUDA", "NUMBA_CUDA_DRIVER", "LD_PRELOAD", "NO_COLOR", "CLICOLOR_FORCE"]
        {
            command.env_remove(name);
        }
        command.env("LD_LIBRARY_PATH", self.path("driver")).env("XDG_RUNTIME_DIR", self.path("session"));
        command
    }

    /// `gpuheap run` with these options.
    pub(super) fn run(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = self.command();
        command.arg("run").args(options).arg("--").args(program);
        command
    }
}

/// Exit code, standard output, standard error.
#[track_caller]
pub(super) fn said(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A run that goes on until its standard input is closed.
pub(super) struct Running {
    pub(super) child: Child,
    input: Option<ChildStdin>,
    /// The line by which it said that it is ready.
    pub(super) said: String,
}

impl Running {
    /// Starts a command and waits for a line that begins with `ready`.
    #[track_caller]
    pub(super) fn start(command: &mut Command, ready: &str) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let found = lines.find_map(|line| line.ok().filter(|line| line.starts_with(ready)));
        let input = child.stdin.take();
        let Some(said) = found else {
            drop(input);
            let mut stderr = String::new();
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            panic!("{command:?} did not say {ready:?}: {stderr}");
        };
        // Whatever else it says is nobody's business, but it must not fail for it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, input, said }
    }

    /// Lets it end. Its exit code and what it said on standard error come back.
    pub(super) fn end(mut self) -> (Option<i32>, String) {
        drop(self.input.take());
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    /// The number of `gpuheap run`.
    pub(super) fn number(&self) -> String {
        self.child.id().to_string()
    }
}

/// Waits until something is so.
#[track_caller]
pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What the system says that a process does: `R`, `S`, `T`, `Z`; nothing if it is gone.
pub(super) fn state_of(process: &str) -> Option<char> {
    let text = fs::read_to_string(Path::new("/proc").join(process).join("stat")).ok()?;
    text.rsplit(')').next()?.trim().chars().next()
}
