//! `cargo xtask web`: the page's bundle, from TypeScript; `cargo xtask browser`: the page in a real browser.
//!
//! The bundles are kept in the crates that send them, so that `cargo build` needs no Node.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;
use crate::fixtures;
use crate::workspace::{self, Workspace};

/// Where the bundles are kept, and what they are called: the pages of a recording, of a plan and of a folder.
const BUNDLES: [(&str, &str); 3] = [
    ("crates/gpuheap-report/assets", "report"),
    ("crates/gpuheap-report/assets", "fit"),
    ("crates/gpuheap-serve/assets", "folder"),
];
/// What belongs to each.
const ENDINGS: [&str; 4] = ["js", "js.sha256", "css", "css.sha256"];
/// Browsers by the names that distributions give them.
const BROWSERS: [&str; 4] =
    ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome", "/snap/bin/chromium"];
/// Events of the large page that is measured.
const LARGE: u64 = 1_000_000;

/// Builds the bundles; with `check`, fails if they are not those that are kept.
pub(crate) fn run(workspace: &Workspace, check: bool) -> Result<(), Failure> {
    if !has_node() {
        return Err(Failure::new("Failed to start `node`").hint("install Node 20 or later"));
    }
    modules(workspace)?;
    workspace::run(node(workspace).arg("node_modules/typescript/bin/tsc").arg("--noEmit"))?;
    if !check {
        return workspace::run(node(workspace).arg("build.mjs").arg(workspace.path(BUNDLES[0].0)));
    }
    let mut formatted = node(workspace);
    workspace::run(formatted.arg("node_modules/prettier/bin/prettier.cjs").args([
        "--check",
        "--log-level",
        "warn",
        ".",
    ]))
    .map_err(|failure| failure.hint("`npx prettier --write .` in `web/` formats everything"))?;
    let folder = workspace.target("web");
    workspace::run(node(workspace).arg("build.mjs").arg(&folder))?;
    let mut changed = Vec::new();
    for (assets, name) in BUNDLES {
        for file in ENDINGS.map(|ending| format!("{name}.{ending}")) {
            if differ(&folder.join(&file), &workspace.path(assets).join(&file)) {
                changed.push(format!("`{assets}/{file}`"));
            }
        }
    }
    if changed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("Kept bundles are not what `web/` makes: {}", changed.join(", ")))
        .hint("`cargo xtask web` builds them; commit the result"))
}

/// Why the bundle need not be checked here. CI always has to.
pub(crate) fn skipped() -> Option<&'static str> {
    (!has_node() && env::var_os("CI").is_none()).then_some("the page's bundle (Node is not installed)")
}

/// The tests of the page: those of its parts in Node, then the whole in a browser. `names` narrow the run.
pub(crate) fn browser(workspace: &Workspace, names: &[String]) -> Result<(), Failure> {
    if !has_node() {
        return Err(Failure::new("Failed to start `node`").hint("install Node 20 or later"));
    }
    modules(workspace)?;
    let mut tests = Vec::new();
    for folder in ["tests/unit", "tests/browser"] {
        tests.extend(files(&workspace.path("web").join(folder), names)?);
    }
    if tests.is_empty() {
        return Err(Failure::usage(format!("No test of the page is named `{}`", names.join("` or `"))));
    }
    let mut command = node(workspace);
    if tests.iter().any(|test| test.parent().is_some_and(|folder| folder.ends_with("browser"))) {
        command.env("CHROMIUM", chromium(workspace)?);
        workspace::run(&mut workspace.cargo(["build", "--package", "gpuheap", "--locked"]))?;
        command.env("GPUHEAP", workspace.target("debug").join(format!("gpuheap{}", env::consts::EXE_SUFFIX)));
        command.env("LARGE", fixtures::ensure(&workspace.target("fixtures"), LARGE, 1)?);
        command.env("OUT", workspace.target("pictures"));
    }
    workspace::run(command.arg("--test").args(&tests))
}

/// The same where Node and a browser are to be had. CI has to have them.
pub(crate) fn browser_if_possible(workspace: &Workspace) -> Result<(), Failure> {
    let lacks = if has_node() { chromium(workspace).err() } else { Some(Failure::new("Failed to start `node`")) };
    match lacks {
        Some(failure) if env::var_os("CI").is_none() => {
            eprintln!("\nSkipped: the page is not tested in a browser\n{failure}");
            Ok(())
        }
        _ => browser(workspace, &[]),
    }
}

fn has_node() -> bool {
    workspace::succeeds(Command::new("node").arg("--version"))
}

/// Node in the folder of the sources.
fn node(workspace: &Workspace) -> Command {
    let mut command = workspace.command("node");
    command.current_dir(workspace.path("web"));
    command
}

/// Installs the packages of the lock file unless they are there.
fn modules(workspace: &Workspace) -> Result<(), Failure> {
    let lock = workspace.path("web/package-lock.json");
    let stamp = workspace.path("web/node_modules/.installed-lock.json");
    if !differ(&lock, &stamp) {
        return Ok(());
    }
    let mut command = workspace.command("npm");
    command.args(["ci", "--ignore-scripts"]).current_dir(workspace.path("web"));
    workspace::run(&mut command)?;
    let copied = fs::copy(&lock, &stamp);
    copied.map(drop).map_err(|error| Failure::new(format!("Failed to write `{}`", stamp.display())).cause(error))
}

/// Whether the files have other content, or one of them cannot be read.
fn differ(one: &Path, other: &Path) -> bool {
    match (fs::read(one), fs::read(other)) {
        (Ok(one), Ok(other)) => one != other,
        _ => true,
    }
}

/// The test files of a folder whose names hold one of `names`, in order; all if there are none.
fn files(folder: &Path, names: &[String]) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error| Failure::new(format!("Failed to read the folder `{}`", folder.display())).cause(error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let wanted = names.is_empty() || names.iter().any(|part| name.contains(part.as_str()));
        if name.ends_with(".test.mjs") && wanted {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// A browser to drive: the one that `CHROMIUM` names, an installed one, or one that is installed now.
fn chromium(workspace: &Workspace) -> Result<OsString, Failure> {
    if let Some(path) = env::var_os("CHROMIUM") {
        return Ok(path);
    }
    let installed = || BROWSERS.iter().find(|path| Path::new(path).exists()).map(OsString::from);
    if let Some(path) = installed() {
        return Ok(path);
    }
    let is_root = workspace::output(Command::new("id").arg("-u")).is_some_and(|id| id.trim() == "0");
    if is_root && workspace::succeeds(Command::new("apt-get").arg("--version")) {
        // An outdated list of packages is the usual reason for a failed installation.
        let _ = workspace::run(workspace.command("apt-get").arg("update"));
        let mut command = workspace.command("apt-get");
        command.args(["install", "--yes", "--no-install-recommends", "chromium"]);
        workspace::run(command.env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    installed().ok_or_else(|| {
        Failure::new("Failed to find a browser")
            .hint("install Chromium, or name one by the environment variable `CHROMIUM`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_differs() {
        let folder = tempfile();
        let (one, other) = (folder.join("one"), folder.join("other"));
        assert!(differ(&one, &other));
        fs::write(&one, "a").unwrap();
        assert!(differ(&one, &other));
        fs::write(&other, "b").unwrap();
        assert!(differ(&one, &other));
        fs::write(&other, "a").unwrap();
        assert!(!differ(&one, &other));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn tests_are_chosen_by_their_names() {
        let folder = tempfile();
        for name in ["a.test.mjs", "b.test.mjs", "support.mjs"] {
            fs::write(folder.join(name), "").unwrap();
        }
        assert_eq!(files(&folder, &[]).unwrap(), [folder.join("a.test.mjs"), folder.join("b.test.mjs")]);
        assert_eq!(files(&folder, &["b".to_owned()]).unwrap(), [folder.join("b.test.mjs")]);
        fs::remove_dir_all(folder).unwrap();
    }

    /// A new folder below the system's temporary one.
    fn tempfile() -> PathBuf {
        let thread = format!("{:?}", std::thread::current().id());
        let name = format!("xtask-web-{}-{}", std::process::id(), thread.replace(|c: char| !c.is_ascii_digit(), ""));
        let folder = env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }
}
