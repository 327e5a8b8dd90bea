//! `cargo xtask loom`: lock-free code in every order in which threads and processes come to it.

use std::env;

use crate::failure::Failure;
use crate::workspace::{self, Workspace};

/// Crates with a test target `loom`.
const CRATES: [&str; 1] = ["gpuheap-ledger"];

/// Runs the model checker.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    for name in CRATES {
        let mut command = workspace.cargo(["test", "--package", name, "--test", "loom", "--release", "--locked"]);
        // A build folder of its own: with other flags everything is built anew, and anew again by the next build.
        command
            .env("RUSTFLAGS", format!("{flags} --cfg loom").trim())
            .env("CARGO_TARGET_DIR", workspace.target("loom"));
        workspace::run(&mut command)?;
    }
    Ok(())
}
