//! `cargo xtask exports`: what `gpuheap export` writes, opened with the tools that it is for.
//!
//! The tools come from the package registries of Python and Node, at fixed versions; see `tools/exports`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;
use crate::workspace::{self, Workspace};

/// Where the checks are.
const CHECKS: &str = "tools/exports";
/// What installs them needs.
const HINT: &str = "Python 3.10 or later with `venv`, Node 20 or later and their package registries are needed";

/// Exports recordings and checks what was written.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let python = install(workspace).map_err(|failure| failure.hint(HINT))?;
    check(workspace, &python)
}

/// The same where the tools are to be had. CI has to have them.
pub(crate) fn run_if_possible(workspace: &Workspace) -> Result<(), Failure> {
    match install(workspace) {
        Ok(python) => check(workspace, &python),
        Err(failure) if is_ci() => Err(failure.hint(HINT)),
        Err(failure) => {
            eprintln!("\nSkipped: exports are not opened with their tools, which cannot be installed\n{failure}");
            Ok(())
        }
    }
}

fn check(workspace: &Workspace, python: &Path) -> Result<(), Failure> {
    workspace::run(&mut workspace.cargo(["build", "--package", "gpuheap", "--locked"]))?;
    let program = workspace.target("debug").join(format!("gpuheap{}", env::consts::EXE_SUFFIX));
    let mut command = workspace.command(python);
    command.arg(format!("{CHECKS}/check.py")).arg(program).args(["recordings", "examples"]);
    workspace::run(command.arg(workspace.target("exports/out")))
}

/// Installs the tools unless they are there, and returns the Python that has them.
fn install(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let checks = workspace.path(CHECKS);
    let lock = checks.join("package-lock.json");
    let stamp = checks.join("node_modules/.installed-lock.json");
    if !same(&lock, &stamp) {
        let mut npm = workspace.command("npm");
        npm.args(["ci", "--ignore-scripts", "--fetch-retries", retries()]).current_dir(&checks);
        workspace::run(&mut npm)?;
        copy(&lock, &stamp)?;
    }
    let venv = workspace.target("exports/venv");
    let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let (requirements, stamp) = (checks.join("requirements.txt"), venv.join("requirements.txt"));
    if !same(&requirements, &stamp) {
        workspace::run(workspace.command(system_python()).args(["-m", "venv", "--clear"]).arg(&venv))?;
        let mut pip = workspace.command(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]);
        workspace::run(pip.args(["--retries", retries(), "--requirement"]).arg(&requirements))?;
        copy(&requirements, &stamp)?;
    }
    Ok(python)
}

/// Who is offline is not to wait for a minute every time.
fn retries() -> &'static str {
    if is_ci() { "5" } else { "0" }
}

fn is_ci() -> bool {
    env::var_os("CI").is_some()
}

fn system_python() -> &'static str {
    let found = |name: &&str| workspace::succeeds(Command::new(name).arg("--version"));
    ["python3", "python"].into_iter().find(found).unwrap_or("python3")
}

/// Whether both files can be read and have the same content.
fn same(one: &Path, other: &Path) -> bool {
    matches!((fs::read(one), fs::read(other)), (Ok(one), Ok(other)) if one == other)
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let copied = fs::copy(from, to);
    copied.map(drop).map_err(|error| Failure::new(format!("Failed to write `{}`", to.display())).cause(error))
}
