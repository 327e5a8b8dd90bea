//! `cargo xtask python`: the Python package, built, installed, checked and tested.
//!
//! One wheel serves every Python. It is installed into an empty environment first, as a user does it, and tested on the
//! oldest Python that is supported and on the newest at hand. Everything is kept below `target/python`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::failure::Failure;
use crate::workspace::{self, Workspace};

/// The oldest Python that the package supports: 3.10.
const OLDEST: u32 = 10;
/// Newer ones than this are not looked for.
const NEWEST: u32 = 20;

/// What to do beyond the usual.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    /// Install `PyTorch` for the tests that need it (550 MB).
    pub(crate) torch: bool,
    /// Build the wheel as it is published, optimised.
    pub(crate) release: bool,
}

/// Builds, installs, checks and tests. `arguments` go to pytest.
pub(crate) fn run(workspace: &Workspace, options: Options, arguments: &[String]) -> Result<(), Failure> {
    let start = Instant::now();
    let pythons = Python::all(workspace);
    let (Some(oldest), Some(newest)) = (pythons.first(), pythons.last()) else {
        return Err(Failure::new(format!("Failed to find Python 3.{OLDEST} or later"))
            .hint("install it, or make it a `python3` on `PATH`"));
    };
    let mut skipped = Vec::new();
    let tools = Environment::new(workspace, "tools");
    tools.ensure(workspace, newest, &["build", "check"])?;
    let wheel = build(workspace, &tools, newest, options)?;
    let empty = try_empty(workspace, newest, &wheel)?;
    let mut failed = check(workspace, &tools, &mut skipped);
    if stubs(workspace, &tools, &empty).is_err() {
        failed.push("stubs of the extension module".to_owned());
    }
    let mut tested = vec![oldest, newest];
    tested.dedup();
    if tested.len() == 1 {
        skipped.push(format!("a second Python (only 3.{} was found)", newest.minor));
    }
    for python in tested {
        let environment = Environment::new(workspace, &format!("test-3.{}", python.minor));
        environment.ensure(workspace, python, &["test"])?;
        if python == newest {
            let wanted = options.torch || environment.has("torch");
            if wanted && let Err(failure) = environment.torch(workspace) {
                eprintln!("{failure}");
                // Half of it would fail every test that asks for it.
                let _ = workspace::run(&mut environment.pip(workspace, ["uninstall", "--yes", "torch"]));
            }
            if !environment.has("torch") {
                let hint = if wanted { "it could not be installed" } else { "`--torch` installs it, 550 MB" };
                skipped.push(format!("tests with PyTorch ({hint})"));
            }
        }
        workspace::run(environment.pip(workspace, ["install", "--no-deps", "--force-reinstall"]).arg(&wheel))?;
        let pytest = || environment.python(workspace, ["-m", "pytest", "-q"]);
        let passed = if arguments.is_empty() {
            // Each in a process of its own: what one leaves on the heap is no business of a search by another.
            let files = test_files(workspace)?;
            let failed = files.iter().filter(|file| workspace::run(pytest().arg(file)).is_err()).count();
            failed == 0
        } else {
            workspace::run(pytest().args(arguments)).is_ok()
        };
        if !passed {
            failed.push(format!("tests on 3.{}", python.minor));
        }
    }
    eprintln!();
    for what in &skipped {
        eprintln!("Skipped: {what}");
    }
    if !failed.is_empty() {
        return Err(Failure::new(format!("Python failed: {}", failed.join(", "))));
    }
    eprintln!("Python: checked and tested in {} s", start.elapsed().as_secs());
    Ok(())
}

/// Builds, installs, checks and tests where there is a Python. CI always has to.
pub(crate) fn run_if_possible(workspace: &Workspace) -> Result<(), Failure> {
    if env::var_os("CI").is_none() && Python::all(workspace).is_empty() {
        eprintln!("Skipped: the Python package (Python 3.{OLDEST} or later was not found)");
        return Ok(());
    }
    let result = run(workspace, Options::default(), &[]);
    if let Err(failure) = &result {
        // Said now, as much follows.
        eprintln!("{failure}");
    }
    result
}

/// The files of tests that need no GPU.
fn test_files(workspace: &Workspace) -> Result<Vec<PathBuf>, Failure> {
    let folder = workspace.path("tests/python");
    let failed = |error| Failure::new(format!("Failed to read the folder `{}`", folder.display())).cause(error);
    let paths = fs::read_dir(&folder).map_err(failed)?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_test = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("test_") && name.ends_with(".py")
    };
    let mut files: Vec<PathBuf> = paths.filter(is_test).collect();
    files.sort();
    Ok(files)
}

/// The wheel.
fn build(workspace: &Workspace, tools: &Environment, python: &Python, options: Options) -> Result<PathBuf, Failure> {
    let out = workspace.target("python/dist");
    // An older one would be taken for the new.
    let _ = fs::remove_dir_all(&out);
    let mut command = workspace.command(tools.program("maturin"));
    command.args(["build", "--locked", "--profile", if options.release { "wheel" } else { "dev" }, "--interpreter"]);
    workspace::run(command.arg(&python.program).arg("--out").arg(&out))?;
    let failed = |error| Failure::new(format!("Failed to read the folder `{}`", out.display())).cause(error);
    let mut paths = fs::read_dir(&out).map_err(failed)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = paths.find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.ok_or_else(|| Failure::new(format!("No wheel in `{}`", out.display())))
}

/// Installs the wheel where nothing else is, and runs its commands.
fn try_empty(workspace: &Workspace, python: &Python, wheel: &Path) -> Result<Environment, Failure> {
    let empty = Environment::new(workspace, "empty");
    empty.create(workspace, python)?;
    workspace::run(empty.pip(workspace, ["install", "--no-index"]).arg(wheel))?;
    workspace::run(workspace.command(empty.program("gpuheap")).arg("--version"))?;
    let demo = workspace.target("python/demo");
    workspace::run(empty.python(workspace, ["-m", "gpuheap", "demo"]).arg(demo))?;
    Ok(empty)
}

/// Compares what the extension module has with what its stubs say.
fn stubs(workspace: &Workspace, tools: &Environment, installed: &Environment) -> Result<(), Failure> {
    let code = "import sysconfig; print(sysconfig.get_paths()['platlib'])";
    let folder = workspace::output(&mut installed.python(workspace, ["-c", code])).unwrap_or_default();
    let mut command = workspace.command(tools.program("stubtest"));
    // Elsewhere, the sources would be found first.
    command.current_dir(workspace.target("python")).env("PYTHONPATH", folder.trim()).arg("gpuheap._core");
    workspace::run(&mut command)
}

/// Types, lints and formatting, each also after one has failed. What failed comes back.
fn check(workspace: &Workspace, tools: &Environment, skipped: &mut Vec<String>) -> Vec<String> {
    let mut checks = vec![("mypy", vec![]), ("ruff", vec!["check", "--quiet", "python", "tests/python"])];
    checks.push(("ruff", vec!["format", "--quiet", "--check", "--diff", "python", "tests/python"]));
    if workspace::succeeds(Command::new("node").arg("--version")) {
        checks.push(("pyright", vec![]));
    } else {
        skipped.push("pyright (Node is not installed)".to_owned());
    }
    let mut failed = Vec::new();
    for (name, arguments) in checks {
        if let Err(failure) = workspace::run(workspace.command(tools.program(name)).args(&arguments)) {
            eprintln!("{failure}");
            let is_formatting = arguments.first() == Some(&"format");
            failed.push(if is_formatting { "formatting (`ruff format`)".to_owned() } else { name.to_owned() });
        }
    }
    failed
}

/// A Python of the machine.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Python {
    minor: u32,
    program: PathBuf,
}

impl Python {
    /// Those that are supported, one of each version, oldest first.
    fn all(workspace: &Workspace) -> Vec<Self> {
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

/// A virtual environment.
struct Environment {
    folder: PathBuf,
}

impl Environment {
    fn new(workspace: &Workspace, name: &str) -> Self {
        Self { folder: workspace.target("python").join(name) }
    }

    /// A new, empty one.
    fn create(&self, workspace: &Workspace, python: &Python) -> Result<(), Failure> {
        workspace::run(workspace.command(&python.program).args(["-m", "venv", "--clear"]).arg(&self.folder))
    }

    /// One with the packages of these lists and of this Python: the one that is there, else a new one.
    fn ensure(&self, workspace: &Workspace, python: &Python, lists: &[&str]) -> Result<(), Failure> {
        let stamp = self.folder.join("installed.txt");
        let wanted = Self::stamp(workspace, python, lists)?;
        if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
            return Ok(());
        }
        self.create(workspace, python)?;
        let mut command = self.pip(workspace, ["install"]);
        for list in lists {
            command.arg("--requirement").arg(workspace.path(&format!("requirements/{list}.txt")));
        }
        workspace::run(&mut command)?;
        write(&stamp, &wanted)
    }

    fn stamp(workspace: &Workspace, python: &Python, lists: &[&str]) -> Result<String, Failure> {
        let mut text = format!("{} 3.{}\n", python.program.display(), python.minor);
        for list in lists {
            let path = workspace.path(&format!("requirements/{list}.txt"));
            let failed = |error| Failure::new(format!("Failed to read `{}`", path.display())).cause(error);
            text += &fs::read_to_string(&path).map_err(failed)?;
        }
        Ok(text)
    }

    /// Installs `PyTorch` with what it needs on the CPU.
    fn torch(&self, workspace: &Workspace) -> Result<(), Failure> {
        let list = workspace.path("requirements/torch.txt");
        let failed = |error| Failure::new(format!("Failed to read `{}`", list.display())).cause(error);
        let wanted = fs::read_to_string(&list).map_err(failed)?;
        let stamp = self.folder.join("installed-torch.txt");
        if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
            return Ok(());
        }
        let options = ["install", "--no-deps", "--no-compile", "--requirement"];
        workspace::run(self.pip(workspace, options).arg(&list))?;
        if cfg!(target_os = "linux") {
            workspace::run(&mut self.python(workspace, ["tests/python/tools/cuda_stand_ins.py"]))?;
        }
        write(&stamp, &wanted)
    }

    fn has(&self, module: &str) -> bool {
        let code = format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)");
        workspace::succeeds(Command::new(self.program("python")).args(["-c", &code]))
    }

    fn program(&self, name: &str) -> PathBuf {
        let folder = if cfg!(windows) { "Scripts" } else { "bin" };
        self.folder.join(folder).join(format!("{name}{}", env::consts::EXE_SUFFIX))
    }

    fn python<'a>(&self, workspace: &Workspace, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = workspace.command(self.program("python"));
        command.args(arguments);
        command
    }

    fn pip<'a>(&self, workspace: &Workspace, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.python(workspace, ["-m", "pip", "--disable-pip-version-check", "--quiet"]);
        command.args(arguments);
        command
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| Failure::new(format!("Failed to write `{}`", path.display())).cause(error))
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
