//! `cargo xtask python`: the Python package, built, installed, checked and tested.
//!
//! One wheel serves every Python. It is installed into an empty environment first, as a user does it, and tested on the
//! oldest Python that is supported and on the newest at hand, there with the frameworks if they are installed. CI has
//! them always. Everything is kept below `target/python`.

mod environment;
mod frameworks;
mod interpreters;

use std::env;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use self::environment::Environment;
use self::frameworks::Frameworks;
use self::interpreters::{OLDEST, Python};
use crate::failure::Failure;
use crate::workspace::{self, Workspace};

/// What to do beyond the usual.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    /// Install `PyTorch`, JAX and TensorFlow for the tests that need them (7 GB).
    pub(crate) frameworks: bool,
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
    let profile: &[&str] = if options.release { &["--profile", "wheel"] } else { &["--profile", "dev"] };
    let wheel = build(workspace, &tools, newest, "python/dist", profile)?;
    let empty = try_empty(workspace, newest, &wheel)?;
    let mut failed = check(workspace, &tools, &mut skipped);
    if stubs(workspace, &tools, &empty).is_err() {
        failed.push("stubs of the extension module".to_owned());
    }
    let mut tested = Vec::new();
    match Frameworks::find(workspace, &pythons, options.frameworks || is_ci()) {
        Ok(Frameworks::Ready(python, environment)) => tested.push((python, environment)),
        Ok(Frameworks::NotAsked) => {
            skipped.push("tests with PyTorch, JAX and TensorFlow (`--frameworks` installs them, 7 GB)".to_owned());
        }
        Err(failure) => {
            eprintln!("{failure}");
            failed.push("frameworks".to_owned());
        }
    }
    for python in [newest, oldest] {
        // One Python is tested once, with as much as there is.
        if tested.iter().all(|(other, _)| *other != python) {
            let environment = Environment::new(workspace, &format!("test-3.{}", python.minor));
            environment.ensure(workspace, python, &["test"])?;
            tested.push((python, environment));
        }
    }
    if oldest == newest {
        skipped.push(format!("a second Python (only 3.{} was found)", newest.minor));
    }
    for (python, environment) in tested.iter().rev() {
        workspace::run(environment.pip(workspace, ["install", "--no-deps", "--force-reinstall"]).arg(&wheel))?;
        if !test(workspace, environment, arguments)? {
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

fn is_ci() -> bool {
    env::var_os("CI").is_some()
}

/// Runs the tests in an environment that has the wheel. Whether all passed comes back.
fn test(workspace: &Workspace, environment: &Environment, arguments: &[String]) -> Result<bool, Failure> {
    let pytest = || environment.python(workspace, ["-m", "pytest", "-q"]);
    if !arguments.is_empty() {
        return Ok(workspace::run(pytest().args(arguments)).is_ok());
    }
    // Each in a process of its own: what one leaves on the heap is no business of a search by another, and frameworks
    // in one process may not agree. As many at once as there are cores.
    let waiting = Mutex::new(test_files(workspace)?);
    let failed = Mutex::new(Vec::new());
    let work = || {
        while let Some(file) = next(&waiting) {
            if workspace::run_quietly(pytest().arg(&file)).is_err() {
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(file);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    for file in &failed {
        eprintln!("Failed: {}", file.display());
    }
    Ok(failed.is_empty())
}

/// The next file to be tested.
fn next(waiting: &Mutex<Vec<PathBuf>>) -> Option<PathBuf> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

/// Builds, installs, checks and tests where there is a Python. CI always has to.
pub(crate) fn run_if_possible(workspace: &Workspace) -> Result<(), Failure> {
    if !is_ci() && Python::all(workspace).is_empty() {
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

/// The files of tests that need no GPU, the largest last: it is taken first, as a long one at the end runs alone.
fn test_files(workspace: &Workspace) -> Result<Vec<PathBuf>, Failure> {
    let folder = workspace.path("tests/python");
    let failed = |error| Failure::new(format!("Failed to read the folder `{}`", folder.display())).cause(error);
    let paths = fs::read_dir(&folder).map_err(failed)?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_test = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("test_") && name.ends_with(".py")
    };
    let mut files: Vec<PathBuf> = paths.filter(is_test).collect();
    files.sort_by_key(|file| (fs::metadata(file).map_or(0, |found| found.len()), file.clone()));
    Ok(files)
}

/// A wheel to carry to another machine: as the tests have it, without what debuggers need.
pub(crate) fn wheel(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let pythons = Python::all(workspace);
    let newest = pythons.last().ok_or_else(|| Failure::new(format!("Failed to find Python 3.{OLDEST} or later")))?;
    let tools = Environment::new(workspace, "tools");
    tools.ensure(workspace, newest, &["build", "check"])?;
    build(workspace, &tools, newest, "gpu/dist", &["--profile", "dev", "--strip"])
}

/// The wheel.
fn build(
    workspace: &Workspace,
    tools: &Environment,
    python: &Python,
    out: &str,
    arguments: &[&str],
) -> Result<PathBuf, Failure> {
    put_libraries(workspace, arguments)?;
    let out = workspace.target(out);
    // An older one would be taken for the new.
    let _ = fs::remove_dir_all(&out);
    let mut command = workspace.command(tools.program("maturin"));
    command.args(["build", "--locked"]).args(arguments).arg("--interpreter").arg(&python.program);
    workspace::run(command.arg("--out").arg(&out))?;
    let failed = |error| Failure::new(format!("Failed to read the folder `{}`", out.display())).cause(error);
    let mut paths = fs::read_dir(&out).map_err(failed)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = paths.find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.ok_or_else(|| Failure::new(format!("No wheel in `{}`", out.display())))
}

/// The libraries that `gpuheap run` puts before the driver's, and the crates that they are built from.
const LIBRARIES: [(&str, &str); 2] =
    [("gpuheap-shim", "libgpuheap_shim.so"), ("gpuheap-shim-nvml", "libgpuheap_shim_nvml.so")];

/// Builds them, with the wheel's own profile, and puts them into the package. They are no extensions of Python, so maturin
/// takes them as files.
fn put_libraries(workspace: &Workspace, arguments: &[&str]) -> Result<(), Failure> {
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    let profile = arguments.iter().skip_while(|argument| **argument != "--profile").nth(1).copied().unwrap_or("wheel");
    let mut command = workspace.cargo(["build", "--locked", "--lib", "--profile", profile]);
    command.args(LIBRARIES.iter().flat_map(|(package, _)| ["--package", package]));
    workspace::run(&mut command)?;
    let folder = workspace.target(if profile == "dev" { "debug" } else { profile });
    for (_, name) in LIBRARIES {
        let (library, place) = (folder.join(name), workspace.path("python/gpuheap").join(name));
        // Beside it and renamed: a program may run with the old one.
        let beside = place.with_extension("new");
        let copied = fs::copy(&library, &beside).and_then(|_| fs::rename(&beside, &place));
        copied.map_err(|error| Failure::new(format!("Failed to copy `{}`", library.display())).cause(error))?;
    }
    Ok(())
}

/// Installs the wheel where nothing else is, and runs its commands.
fn try_empty(workspace: &Workspace, python: &Python, wheel: &Path) -> Result<Environment, Failure> {
    let empty = Environment::new(workspace, "empty");
    empty.create(workspace, python)?;
    workspace::run(empty.pip(workspace, ["install", "--no-index"]).arg(wheel))?;
    workspace::run(workspace.command(empty.program("gpuheap")).arg("--version"))?;
    if cfg!(target_os = "linux") {
        try_run(workspace, &empty)?;
    }
    let demo = workspace.target("python/demo");
    workspace::run(empty.python(workspace, ["-m", "gpuheap", "demo"]).arg(demo))?;
    Ok(empty)
}

/// A run by the installed command gets as far as it can without a driver: it finds the library that came with it.
fn try_run(workspace: &Workspace, installed: &Environment) -> Result<(), Failure> {
    let gpuheap = || workspace.command(installed.program("gpuheap"));
    workspace::run(gpuheap().args(["run", "--help"]))?;
    let output = gpuheap().args(["run", "--", "true"]).env_remove("GPUHEAP_RUN").env_remove("GPUHEAP_SHIM").output();
    let output = output.map_err(|error| Failure::new("Failed to start `gpuheap run`").cause(error))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || said.contains("Failed to find the CUDA driver") {
        return Ok(());
    }
    Err(Failure::new("The installed `gpuheap run` does not work").cause(said))
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
