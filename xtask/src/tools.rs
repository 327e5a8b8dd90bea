//! Tools that are not part of every Rust installation, kept below the build folder.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::failure::Failure;
use crate::workspace::{self, Workspace};

/// A cargo subcommand at the version that the project uses.
pub(crate) struct Tool {
    /// The crate, which is also the binary.
    name: &'static str,
    version: &'static str,
}

/// Checks dependencies.
pub(crate) const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

/// Builds and runs fuzz targets.
pub(crate) const CARGO_FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2" };

impl Tool {
    /// The tool's binary: the one below the build folder, else an installed one of the same version, else a new one.
    pub(crate) fn ensure(&self, workspace: &Workspace) -> Result<PathBuf, Failure> {
        let own = workspace.target("tools/bin").join(self.name);
        for candidate in [own.clone(), PathBuf::from(self.name)] {
            let version = workspace::output(Command::new(&candidate).arg("--version"));
            if version.is_some_and(|text| self.is_version(&text)) {
                return Ok(candidate);
            }
        }
        self.install(workspace)?;
        Ok(own)
    }

    fn is_version(&self, printed: &str) -> bool {
        printed.split_whitespace().any(|word| word == self.version)
    }

    fn install(&self, workspace: &Workspace) -> Result<(), Failure> {
        eprintln!("\nInstalling {} {} below the build folder: once, some minutes", self.name, self.version);
        let start = Instant::now();
        let build = workspace.target("tools/build");
        let mut command = workspace.cargo(["install", self.name, "--locked", "--force", "--version", self.version]);
        command.arg("--root").arg(workspace.target("tools")).arg("--target-dir").arg(&build);
        // What is run for seconds need not be optimised for minutes.
        command.env("CARGO_PROFILE_RELEASE_LTO", "off");
        command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
        workspace::run(&mut command)
            .map_err(|failure| failure.hint(format!("install {} {} by hand and try again", self.name, self.version)))?;
        // Only the binary is needed again. What cannot be removed does no harm.
        let _ = fs::remove_dir_all(&build);
        eprintln!("Installed {} in {} s", self.name, start.elapsed().as_secs());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_matched_as_a_whole() {
        assert!(CARGO_DENY.is_version("cargo-deny 0.20.2\n"));
        assert!(!CARGO_DENY.is_version("cargo-deny 0.20.20\n"));
        assert!(!CARGO_DENY.is_version(""));
    }
}
