//! Whether a program gets the shim and a driver behind it.
//!
//! A library can only be told from the toolkit's stub by loading it and asking, and what the loader does can only be told
//! by letting it: so the command calls itself with the program's environment, and that process says what it got. One that
//! crashes takes nothing along.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use gpuheap_cuda::Look;
use gpuheap_cuda::raw::Code;
use gpuheap_ledger::layout::VERSION;

use super::environment::Changes;
use crate::own::Own;

/// The one argument with which the command calls itself. No subcommand looks like it.
const WORD: &str = "--probe-driver";

/// What a program gets by the driver's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The shim, with a driver behind it.
    Attached {
        /// Whether the management library can be loaded as well, whichever it is.
        management: bool,
    },
    /// A shim that shares no ledger with this command: another version came with it.
    OtherVersion,
    /// The shim, with the toolkit's stub behind it.
    Stub,
    /// Something that is not the shim: the file, if it can be told.
    Passed(PathBuf),
    /// Nothing that works, and why.
    Failed(String),
}

/// Tries it with these changes to the environment.
pub(crate) fn look(own: &Own, changes: &Changes) -> io::Result<Found> {
    let (program, arguments) = own.command.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(arguments).arg(WORD).stdin(Stdio::null()).env_remove("GPUHEAP_RECORD");
    super::program::change(&mut command, changes);
    let output = command.output()?;
    if let Some(signal) = output.status.signal() {
        return Ok(Found::Failed(format!("loading it ended a process by signal {signal}")));
    }
    let words = |name: &str| {
        let mut lines = output.stdout.split(|byte| *byte == b'\n');
        lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    let text = |words: &[u8]| String::from_utf8_lossy(words).into_owned();
    let own = VERSION.to_string();
    Ok(match (words("error").map(text), words("shim"), words("code").map(text)) {
        (Some(error), _, _) => Found::Failed(error),
        (None, Some(version), _) if version != own.as_bytes() => Found::OtherVersion,
        (None, Some(_), None) => Found::Attached { management: words("management").is_some() },
        (None, Some(_), Some(code)) if code == Code::STUB_LIBRARY.0.to_string() => Found::Stub,
        (None, Some(_), Some(code)) => Found::Failed(format!("it answers with error {code}")),
        (None, None, _) => match words("driver") {
            Some(path) => Found::Passed(PathBuf::from(OsString::from_vec(path.to_vec()))),
            None => Found::Failed(format!("the attempt to load it ended with {}", output.status)),
        },
    })
}

/// The answer of the process that [`look`] starts; nothing in every other.
pub(crate) fn answer(arguments: &[OsString]) -> Option<ExitCode> {
    if arguments.len() != 2 || arguments[1] != WORD {
        return None;
    }
    let mut text = Vec::new();
    match Look::by_name() {
        Ok(Look { shim, version, driver }) => {
            if let Some(shim) = shim {
                text.extend(format!("shim={shim}\n").into_bytes());
            }
            match version {
                Ok(version) => text.extend(format!("version={version}\n").into_bytes()),
                Err(code) => text.extend(format!("code={}\n", code.0).into_bytes()),
            }
            if gpuheap_cuda::management_by_name().is_ok() {
                text.extend(b"management=1\n");
            }
            text.extend(b"driver=");
            text.extend(driver.unwrap_or_default().as_os_str().as_bytes());
        }
        Err(error) => text.extend(format!("error={error}").replace('\n', " ").into_bytes()),
    }
    text.push(b'\n');
    Some(if io::stdout().write_all(&text).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
