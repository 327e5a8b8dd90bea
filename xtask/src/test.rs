//! `cargo xtask test`: every test.

use crate::exports;
use crate::failure::Failure;
use crate::loom;
use crate::python;
use crate::web;
use crate::workspace::{self, Workspace};

/// Runs the checks with other tools (exports, the page in a browser, the Python package, the model checker) and the doc
/// tests, then all others, so that the last lines tell of the bulk. `arguments` go to the test runner and narrow the
/// run, so there are only the others then.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<(), Failure> {
    let with_tools = if arguments.is_empty() {
        let python = python::run_if_possible(workspace);
        let models = loom::run(workspace);
        exports::run_if_possible(workspace).and(web::browser_if_possible(workspace)).and(python).and(models)
    } else {
        Ok(())
    };
    let has_nextest = workspace::succeeds(workspace.cargo(["nextest", "--version"]).env_remove("NEXTEST_PROFILE"));
    if !has_nextest {
        eprintln!("cargo-nextest is not installed: using `cargo test`, which runs the doc tests as well");
        return workspace::run(workspace.cargo(["test", "--workspace", "--locked"]).args(arguments)).and(with_tools);
    }
    let documentation = if arguments.is_empty() {
        workspace::run(&mut workspace.cargo(["test", "--workspace", "--locked", "--doc"]))
    } else {
        Ok(())
    };
    let rest = workspace::run(workspace.cargo(["nextest", "run", "--workspace", "--locked"]).args(arguments));
    rest.and(documentation).and(with_tools)
}
