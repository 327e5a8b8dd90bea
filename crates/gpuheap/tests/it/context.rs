//! A folder of its own for each test, and the command run in it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Runs the command in a folder that goes away with this.
pub(crate) struct TestContext {
    folder: tempfile::TempDir,
}

impl TestContext {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// Writes a file, with the folders above it.
    pub(crate) fn with_file(self, name: &str, content: &[u8]) -> Self {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command with an environment that no user's settings reach.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuheap"));
        command
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .env("TERM", "xterm-256color")
            .env("LANG", "C.UTF-8");
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LC_ALL", "LC_CTYPE"] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        self.show(&self.command().args(arguments).output().unwrap())
    }

    /// All that one run gave, as snapshots hold it.
    pub(crate) fn show(&self, output: &Output) -> String {
        let text = |bytes: &[u8]| self.filtered(&String::from_utf8_lossy(bytes));
        format!(
            "exit_code: {}\n----- stdout -----\n{}\n----- stderr -----\n{}",
            output.status.code().map_or_else(|| "none".to_owned(), |code| code.to_string()),
            text(&output.stdout),
            text(&output.stderr)
        )
    }

    /// Without what differs between machines and versions.
    fn filtered(&self, text: &str) -> String {
        let folder = |path: &Path| path.to_string_lossy().into_owned();
        let real = self.folder.path().canonicalize().unwrap();
        text.replace(&folder(&real), "[FOLDER]")
            .replace(&folder(self.folder.path()), "[FOLDER]")
            .replace("gpuheap.exe", "gpuheap")
            .replace(env!("CARGO_PKG_VERSION"), "[VERSION]")
    }
}
