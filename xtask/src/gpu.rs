//! `cargo xtask gpu`: what a machine with a GPU needs to run everything that CI cannot, as one folder.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::python;
use crate::workspace::Workspace;

/// Makes `target/gpu/bundle`: the wheel, the programs of `gpu/`, the tests for GPUs, and the leak programs if a folder with
/// them is given.
pub(crate) fn run(workspace: &Workspace, leaks: Option<&Path>) -> Result<(), Failure> {
    let out = workspace.target("gpu/bundle");
    // What an earlier one has too much would be run as well.
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).map_err(|error| failed("make the folder", &out, error))?;
    let wheel = python::wheel(workspace)?;
    copy_file(&wheel, &out.join(wheel.file_name().unwrap_or_default()))?;
    copy_folder(&workspace.path("gpu"), &out.join("gpu"))?;
    copy_folder(&workspace.path("tests/python"), &out.join("tests/python"))?;
    copy_folder(&workspace.path("examples"), &out.join("examples"))?;
    copy_file(&workspace.path("gpu/run.sh"), &out.join("run.sh"))?;
    copy_file(&workspace.path("pyproject.toml"), &out.join("pyproject.toml"))?;
    match leaks {
        Some(leaks) => copy_folder(leaks, &out.join("leaks"))?,
        None => eprintln!("Left out: the leak programs that `record` runs (`--leaks FOLDER`)"),
    }
    eprintln!("Copy `{}` to a machine with a GPU and run `bash run.sh` there", out.display());
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to).map_err(|error| failed("make the folder", to, error))?;
    let entries = fs::read_dir(from).map_err(|error| failed("read the folder", from, error))?;
    for entry in entries {
        let path: PathBuf = entry.map_err(|error| failed("read the folder", from, error))?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() {
            if name != "__pycache__" {
                copy_folder(&path, &to.join(name))?;
            }
        } else {
            copy_file(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to).map_err(|error| failed("copy", from, error))?;
    Ok(())
}

fn failed(what: &str, path: &Path, error: std::io::Error) -> Failure {
    Failure::new(format!("Failed to {what} `{}`", path.display())).cause(error)
}
