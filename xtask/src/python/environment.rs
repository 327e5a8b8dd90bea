//! Virtual environments below `target/python`, kept from run to run.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::interpreters::Python;
use crate::failure::Failure;
use crate::workspace::{self, Workspace};

/// A virtual environment.
pub(super) struct Environment {
    folder: PathBuf,
}

impl Environment {
    pub(super) fn new(workspace: &Workspace, name: &str) -> Self {
        Self { folder: workspace.target("python").join(name) }
    }

    /// A new, empty one.
    pub(super) fn create(&self, workspace: &Workspace, python: &Python) -> Result<(), Failure> {
        workspace::run(workspace.command(&python.program).args(["-m", "venv", "--clear"]).arg(&self.folder))
    }

    /// One with the packages of these lists and of this Python: the one that is there, else a new one.
    ///
    /// A list names all that is wanted: nothing else is installed, and what is missing is an error.
    pub(super) fn ensure(&self, workspace: &Workspace, python: &Python, lists: &[&str]) -> Result<(), Failure> {
        if self.has(workspace, python, lists)? {
            return Ok(());
        }
        self.create(workspace, python)?;
        let mut command = self.pip(workspace, ["install", "--no-deps", "--no-compile"]);
        for list in lists {
            command.arg("--requirement").arg(list_path(workspace, list));
        }
        workspace::run(&mut command)?;
        workspace::run(&mut self.pip(workspace, ["check"]))?;
        let stamp = self.stamp();
        fs::write(&stamp, stamp_text(workspace, python, lists)?)
            .map_err(|error| Failure::new(format!("Failed to write `{}`", stamp.display())).cause(error))
    }

    /// Whether it is there, with these packages and of this Python.
    pub(super) fn has(&self, workspace: &Workspace, python: &Python, lists: &[&str]) -> Result<bool, Failure> {
        let wanted = stamp_text(workspace, python, lists)?;
        Ok(fs::read_to_string(self.stamp()).is_ok_and(|text| text == wanted))
    }

    /// Written when all is installed.
    fn stamp(&self) -> PathBuf {
        self.folder.join("installed.txt")
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        let folder = if cfg!(windows) { "Scripts" } else { "bin" };
        self.folder.join(folder).join(format!("{name}{}", env::consts::EXE_SUFFIX))
    }

    pub(super) fn python<'a>(&self, workspace: &Workspace, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = workspace.command(self.program("python"));
        // Packages are compiled by the first test that imports them, once for all that follow: PyTorch takes seconds.
        command.args(arguments).env_remove("PYTHONDONTWRITEBYTECODE");
        command
    }

    pub(super) fn pip<'a>(&self, workspace: &Workspace, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.python(workspace, ["-m", "pip", "--disable-pip-version-check", "--quiet"]);
        command.args(arguments);
        command
    }
}

fn list_path(workspace: &Workspace, list: &str) -> PathBuf {
    workspace.path("requirements").join(format!("{list}.txt"))
}

fn stamp_text(workspace: &Workspace, python: &Python, lists: &[&str]) -> Result<String, Failure> {
    let mut text = format!("{} 3.{}\n", python.program.display(), python.minor);
    for list in lists {
        let path = list_path(workspace, list);
        let failed = |error| Failure::new(format!("Failed to read `{}`", path.display())).cause(error);
        text += list;
        text += ".txt\n";
        text += &fs::read_to_string(&path).map_err(failed)?;
    }
    Ok(text)
}

/// Bytes that are free where a folder is, or would be; `None` if Python cannot tell.
pub(super) fn free_bytes(workspace: &Workspace, python: &Python, folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let code = "import shutil, sys; print(shutil.disk_usage(sys.argv[1]).free)";
    let text = workspace::output(workspace.command(&python.program).args(["-c", code]).arg(there))?;
    text.trim().parse().ok()
}
