//! Folders with a driver, with and without the shim in front of it, and programs that are run with them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Which driver a program gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Driver {
    /// The one for tests itself.
    Bare,
    /// The shim, with the one for tests behind it.
    Shim,
}

/// All that a test needs.
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
        let rig = Self { folder: tempfile::tempdir().unwrap() };
        let fake = library("libgpuheap_fakecuda.so");
        for driver in [Driver::Bare, Driver::Shim] {
            let folder = rig.driver_folder(driver);
            fs::create_dir(&folder).unwrap();
            symlink("libcuda.so.1", folder.join("libcuda.so")).unwrap();
        }
        symlink(&fake, rig.driver_folder(Driver::Bare).join("libcuda.so.1")).unwrap();
        let shim = rig.driver_folder(Driver::Shim);
        // A copy: the folder of the file is where it looks for the driver.
        fs::copy(library("libgpuheap_shim.so"), shim.join("libcuda.so.1")).unwrap();
        symlink(&fake, shim.join("libcuda-real.so")).unwrap();
        rig
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn driver_folder(&self, driver: Driver) -> PathBuf {
        self.path(match driver {
            Driver::Bare => "bare",
            Driver::Shim => "shim",
        })
    }

    /// The C program, compiled.
    pub(crate) fn client(&self) -> PathBuf {
        let (source, program) = (self.path("client.c"), self.path("client"));
        for (name, text) in [
            ("client.c", include_str!("client/client.c")),
            ("driver.h", include_str!("client/driver.h")),
            ("cuts.h", include_str!("client/cuts.h")),
            ("contexts.h", include_str!("client/contexts.h")),
            ("calls.h", include_str!("client/calls.h")),
            ("processes.h", include_str!("client/processes.h")),
            ("moves.h", include_str!("client/moves.h")),
            ("alike.h", include_str!("client/alike.h")),
            ("wanders.h", include_str!("client/wanders.h")),
            ("shares.h", include_str!("client/shares.h")),
            ("sleeps.h", include_str!("client/sleeps.h")),
            ("stress.h", include_str!("client/stress.h")),
        ] {
            fs::write(self.path(name), text).unwrap();
        }
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", "-o"]).arg(&program).arg(&source).args(["-ldl", "-pthread"]);
        assert!(compiler.status().unwrap().success());
        program
    }

    /// A program that gets that driver, in an environment without settings.
    pub(crate) fn command(&self, driver: Driver, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.driver_folder(driver));
        for setting in ["GPUHEAP_LEDGER", "GPUHEAP_BUDGET", "GPUHEAP_FAKECUDA"] {
            command.env_remove(setting);
        }
        command
    }
}

/// What a program said, once it ended well.
#[track_caller]
pub(crate) fn said(command: &mut Command) -> (String, String) {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    (stdout, stderr)
}
