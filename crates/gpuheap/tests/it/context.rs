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
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LC_ALL", "LC_CTYPE", "GITHUB_WORKSPACE"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a line of a workflow, as GitHub does, with the command on the path.
    #[cfg(unix)]
    pub(crate) fn shell(&self, line: &str) -> Output {
        let folder = Path::new(env!("CARGO_BIN_EXE_gpuheap")).parent().unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        Command::new("sh")
            .args(["-e", "-c", line])
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .env("PATH", path)
            .env("GITHUB_STEP_SUMMARY", self.path("summary.md"))
            .env_remove("GITHUB_WORKSPACE")
            .output()
            .unwrap()
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

/// What a run printed, if it ended with `code` and said nothing else.
pub(crate) fn stdout_of(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{command:?}: {stdout}");
    assert_eq!(output.status.code(), Some(code), "{command:?}: {stdout}");
    stdout
}

/// Fails unless `value` is as `schema` says.
pub(crate) fn follows(schema: &str, value: &serde_json::Value) {
    let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}
