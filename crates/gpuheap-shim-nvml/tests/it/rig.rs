//! A folder with drivers' libraries, with and without ours in front of them, and programs that are run with it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;

/// Which libraries a program gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Libraries {
    /// Those for tests themselves.
    Bare,
    /// Ours, with those for tests behind them.
    Ours,
}

pub(crate) struct Rig {
    folder: TempDir,
}

/// Libraries lie beside the test program, where cargo puts those of dependencies and the one under test.
pub(crate) fn library(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.parent().unwrap().join(name);
    assert!(library.exists(), "{} is not there", library.display());
    library
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// With these flags for the compiler of the management library for tests.
    pub(crate) fn with(flags: &[&str]) -> Self {
        let rig = Self { folder: tempfile::tempdir().unwrap() };
        let nvml = rig.path("libnvidia-ml.so.580.65.06");
        // It has the name of the driver's, by which the loader knows it once it is loaded.
        let shared = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"];
        rig.compile("nvml.c", include_str!("c/nvml.c"), &nvml, &[&shared, flags].concat());
        for libraries in [Libraries::Bare, Libraries::Ours] {
            let folder = rig.libraries(libraries);
            fs::create_dir(&folder).unwrap();
            symlink("libcuda.so.1", folder.join("libcuda.so")).unwrap();
            symlink("libnvidia-ml.so.1", folder.join("libnvidia-ml.so")).unwrap();
        }
        let (bare, ours) = (rig.libraries(Libraries::Bare), rig.libraries(Libraries::Ours));
        let cuda = library("libgpuheap_fakecuda.so");
        symlink(&cuda, bare.join("libcuda.so.1")).unwrap();
        symlink(&nvml, bare.join("libnvidia-ml.so.1")).unwrap();
        // Copies: the folder of the file is where each looks for what is behind it.
        fs::copy(library("libgpuheap_shim.so"), ours.join("libcuda.so.1")).unwrap();
        symlink(&cuda, ours.join("libcuda-real.so")).unwrap();
        fs::copy(library("libgpuheap_shim_nvml.so"), ours.join("libnvidia-ml.so.1")).unwrap();
        symlink(&nvml, ours.join("libnvidia-ml-real.so")).unwrap();
        rig
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn libraries(&self, libraries: Libraries) -> PathBuf {
        self.path(match libraries {
            Libraries::Bare => "bare",
            Libraries::Ours => "ours",
        })
    }

    fn compile(&self, name: &str, text: &str, made: &Path, flags: &[&str]) {
        let source = self.path(name);
        fs::write(&source, text).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", "-o"]).arg(made).arg(&source).args(flags);
        assert!(compiler.status().unwrap().success(), "{compiler:?}");
    }

    /// The program that asks, compiled; by default it opens the library by its name.
    pub(crate) fn client(&self, flags: &[&str]) -> PathBuf {
        let program = self.path("client");
        self.compile("client.c", include_str!("c/client.c"), &program, &[flags, &["-ldl"]].concat());
        program
    }

    /// A program that gets these libraries, in an environment without settings.
    pub(crate) fn command(&self, libraries: Libraries, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.libraries(libraries));
        for setting in ["GPUHEAP_LEDGER", "GPUHEAP_BUDGET", "GPUHEAP_FAKECUDA", "GPUHEAP_NVML"] {
            command.env_remove(setting);
        }
        command
    }

    /// A program of a run with that budget in bytes.
    pub(crate) fn within(&self, budget: u64, program: &Path) -> Command {
        let mut command = self.command(Libraries::Ours, program);
        command.env("GPUHEAP_LEDGER", self.path("ledger")).env("GPUHEAP_BUDGET", budget.to_string());
        command.env("GPUHEAP_FAKECUDA", "devices 2");
        command
    }
}

/// What a program wrote to standard output, once it ended well and had nothing to complain about.
#[track_caller]
pub(crate) fn said(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    assert_eq!(stderr, "", "{command:?}");
    stdout
}

/// A process that holds memory of a device.
pub(crate) struct Holder {
    child: Child,
    /// What it was told in the beginning.
    pub(crate) said: String,
}

impl Holder {
    /// The program, compiled.
    pub(crate) fn program(rig: &Rig) -> PathBuf {
        let program = rig.path("holder");
        rig.compile("holder.c", include_str!("c/holder.c"), &program, &["-ldl"]);
        program
    }

    /// Started as `command` says, with CUDA's and NVML's number of the device and what it shall hold.
    pub(crate) fn start(command: &mut Command, [cuda, nvml]: [u32; 2], pieces: &[u64]) -> Self {
        command.args([cuda, nvml].map(|number| number.to_string()));
        command.args(pieces.iter().map(u64::to_string));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let said: Vec<String> = lines.take_while(|line| line != "holds").collect();
        Self { child, said: said.join("\n") }
    }

    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
