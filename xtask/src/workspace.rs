//! The workspace on disk, and running programs in it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf, absolute};
use std::process::{Command, Stdio};

use crate::failure::Failure;

/// Where the workspace is and which cargo runs in it.
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
    cargo: OsString,
}

impl Workspace {
    pub(crate) fn find() -> Result<Self, Failure> {
        // Set by `cargo run`; the compiled-in folder serves a directly started binary.
        let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest).parent().map(Path::to_path_buf).unwrap_or_default();
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let target = absolute(&target)
            .map_err(|error| Failure::new(format!("Failed to find the folder `{}`", target.display())).cause(error))?;
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Ok(Self { root, target, cargo })
    }

    /// A path below the workspace's root.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// A path below the build folder.
    pub(crate) fn target(&self, relative: &str) -> PathBuf {
        self.target.join(relative)
    }

    /// A cargo command in the workspace.
    pub(crate) fn cargo<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.command(&self.cargo);
        command.args(arguments);
        command
    }

    /// Any program, started in the workspace's root.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }
}

/// Shows the command, runs it to its end, and fails if it did.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    eprintln!("\n$ {}", shown(command));
    let status = command.status().map_err(|error| not_started(command, error))?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("`{}` failed", shown(command))).cause(status)) }
}

/// The same for one of several at once: what it writes is shown when it has ended.
pub(crate) fn run_quietly(command: &mut Command) -> Result<(), Failure> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| not_started(command, error))?;
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // In one go, so that the texts of two commands do not mix.
    eprint!("\n$ {}\n{out}{error}", shown(command));
    if output.status.success() {
        Ok(())
    } else {
        Err(Failure::new(format!("`{}` failed", shown(command))).cause(output.status))
    }
}

/// Whether the command can be started and succeeds. Prints nothing.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// What the command prints to its standard output, if it can be started and succeeds.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The failure of a program that could not even start.
pub(crate) fn not_started(command: &Command, error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("Failed to start `{}`", command.get_program().to_string_lossy())).cause(error)
}

/// The command as it would be typed.
fn shown(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            words.push(format!("{}={}", name.to_string_lossy(), quoted(&value.to_string_lossy())));
        }
    }
    let program = Path::new(command.get_program());
    words.push(program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned());
    words.extend(command.get_args().map(|argument| quoted(&argument.to_string_lossy())));
    words.join(" ")
}

fn quoted(word: &str) -> String {
    if word.is_empty() || word.contains(char::is_whitespace) { format!("'{word}'") } else { word.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let mut command = Command::new("/opt/bin/cargo");
        command.env("RUSTDOCFLAGS", "-D warnings").args(["doc", "--no-deps"]);
        assert_eq!(shown(&command), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }
}
