//! `cargo xtask fuzz`: arbitrary files against the importer, or against all that explains them.

use std::fs;

use crate::failure::Failure;
use crate::tools::CARGO_FUZZ;
use crate::workspace::{self, Workspace};

/// What can be fuzzed, and the crates whose tests a fault becomes a part of.
const TARGETS: [(&str, &str); 4] = [
    ("import", "`gpuheap-import`"),
    ("explain", "`gpuheap-explain` or `gpuheap-alloc`"),
    ("events", "`gpuheap-import` or `gpuheap-ledger`"),
    ("fit", "`gpuheap-fit`"),
];
/// Snapshots, which `import` and `explain` read; for `events` they are bytes like any.
const SEEDS: &str = "fuzz/seeds/import";
/// Traces of small models.
const TRACES: &str = "fuzz/seeds/fit";

/// Fuzzes `target` until `seconds` are over, a fault is found, or the user has seen enough.
pub(crate) fn run(workspace: &Workspace, target: &str, seconds: Option<u64>) -> Result<(), Failure> {
    let Some((_, crates)) = TARGETS.iter().find(|(name, _)| *name == target) else {
        let names = TARGETS.map(|(name, _)| name).join(", ");
        return Err(Failure::usage(format!("Unknown fuzz target `{target}`: choose one of {names}")));
    };
    let manifest = workspace.path("fuzz/Cargo.toml");
    if !manifest.exists() {
        return Err(Failure::new(format!("Failed to find the fuzz targets `{}`", manifest.display())));
    }
    let tool = CARGO_FUZZ.ensure(workspace)?;
    // New inputs go to the first folder; the seeds are only read.
    let corpus = format!("fuzz/corpus/{target}");
    fs::create_dir_all(workspace.path(&corpus))
        .map_err(|error| Failure::new(format!("Failed to create the folder `{corpus}`")).cause(error))?;
    let mut command = workspace.command(tool);
    // Sanitizers need options of the compiler that are not stable.
    command.env("RUSTC_BOOTSTRAP", "1").args(["run", target, &corpus]);
    let seeds = if target == "fit" { TRACES } else { SEEDS };
    if workspace.path(seeds).is_dir() {
        command.arg(seeds);
    }
    // An input that takes 10 s or 2 GiB is a fault.
    command.args(["--", "-timeout=10", "-rss_limit_mb=2048"]);
    if let Some(seconds) = seconds {
        command.arg(format!("-max_total_time={seconds}"));
    }
    workspace::run(&mut command).map_err(|failure| {
        failure.hint(format!("a fault's input is below `fuzz/artifacts`; make it a test of {crates}"))
    })
}
