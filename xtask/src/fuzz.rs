//! `cargo xtask fuzz`: the importer against arbitrary files.

use std::fs;

use crate::failure::Failure;
use crate::tools::CARGO_FUZZ;
use crate::workspace::{self, Workspace};

const TARGET: &str = "import";

/// Fuzzes until `seconds` are over, a fault is found, or the user has seen enough.
pub(crate) fn run(workspace: &Workspace, seconds: Option<u64>) -> Result<(), Failure> {
    let manifest = workspace.path("fuzz/Cargo.toml");
    if !manifest.exists() {
        return Err(Failure::new(format!("Failed to find the fuzz targets `{}`", manifest.display())));
    }
    let tool = CARGO_FUZZ.ensure(workspace)?;
    // New inputs go to the first folder; the seeds are only read.
    let corpus = format!("fuzz/corpus/{TARGET}");
    let seeds = format!("fuzz/seeds/{TARGET}");
    fs::create_dir_all(workspace.path(&corpus))
        .map_err(|error| Failure::new(format!("Failed to create the folder `{corpus}`")).cause(error))?;
    let mut command = workspace.command(tool);
    // Sanitizers need options of the compiler that are not stable.
    command.env("RUSTC_BOOTSTRAP", "1").args(["run", TARGET, &corpus]);
    if workspace.path(&seeds).is_dir() {
        command.arg(&seeds);
    }
    // An input that takes 10 s or 2 GiB is a fault.
    command.args(["--", "-timeout=10", "-rss_limit_mb=2048"]);
    if let Some(seconds) = seconds {
        command.arg(format!("-max_total_time={seconds}"));
    }
    workspace::run(&mut command).map_err(|failure| {
        failure.hint("a fault's input is below `fuzz/artifacts`; make it a test of `gpuheap-import`")
    })
}
