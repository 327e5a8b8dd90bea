//! The Python that has the user's model, and children of it.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::error::{ChildError, Said};
use crate::own::Own;
use crate::progress::Progress;

/// Lines of a child with this start say what it is doing.
const PROGRESS: &str = "progress: ";
/// Lines with this start say what went wrong.
const ERROR: &str = "error: ";
/// Lines with this start say how to go on.
const HINT: &str = "hint: ";
/// The most lines of a child that are kept.
const LINES: usize = 200;
/// How often it is looked whether a silent child is still there.
const LOOK: Duration = Duration::from_millis(200);
/// How long a child that has ended is listened to, where a process that it left behind holds its streams.
const GRACE: Duration = Duration::from_secs(2);

/// What comes from a child.
enum Heard {
    /// All that it printed.
    Printed(Vec<u8>),
    /// A line of its standard error.
    Said(String),
}

/// Where to look for Python.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Python<'a> {
    /// The one that was given.
    pub(crate) given: Option<&'a Path>,
    /// How this command was called.
    pub(crate) own: &'a Own,
    /// How long a child may take; as long as it takes if unset.
    pub(crate) timeout: Option<Duration>,
}

impl Python<'_> {
    /// The interpreter: the one that was given, the one that runs this command, the one beside it, that of the virtual
    /// environment, or `python3` of the path.
    pub(crate) fn find(&self) -> Result<PathBuf, ChildError> {
        if let Some(given) = self.given {
            return Ok(given.to_owned());
        }
        let command = self.own.command.iter().map(OsString::as_os_str).collect::<Vec<&OsStr>>();
        if let [interpreter, flag, package] = command.as_slice()
            && *flag == "-m"
            && *package == "gpuheap"
        {
            return Ok(PathBuf::from(interpreter));
        }
        let names = if cfg!(windows) { ["python.exe", "python3.exe"] } else { ["python3", "python"] };
        let folder = if cfg!(windows) { "Scripts" } else { "bin" };
        let environment = std::env::var_os("VIRTUAL_ENV").filter(|value| !value.is_empty());
        let environment = environment.map(|folder_of| PathBuf::from(folder_of).join(folder));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let beside = self.own.folder.iter().cloned();
        let folders: Vec<PathBuf> = beside.chain(environment).chain(std::env::split_paths(&path)).collect();
        let found =
            folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))).find(|path| path.is_file());
        found.ok_or(ChildError::NoPython)
    }

    /// Runs `python -m gpuheap._fit` with `arguments`, shows how far it is, and gives what it printed. `what` is what
    /// messages say it was for.
    pub(crate) fn run(
        &self,
        arguments: &[&OsStr],
        what: &str,
        accepted: &[i32],
        progress: &mut Progress,
    ) -> Result<(i32, String), ChildError> {
        let path = self.find()?;
        let failed = |source| ChildError::Start { path: path.clone(), source };
        let mut command = Command::new(&path);
        command.args(["-m", "gpuheap._fit"]).args(arguments).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        // Both streams are read at once: neither fills up while the other is waited for.
        let (sender, heard) = mpsc::channel();
        if let Some(mut printed) = child.stdout.take() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut text = Vec::new();
                // What cannot be read is missed below.
                let _ = printed.read_to_end(&mut text);
                let _ = sender.send(Heard::Printed(text));
            });
        }
        if let Some(errors) = child.stderr.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(errors).split(b'\n') {
                    let Ok(line) = line else { break };
                    if sender.send(Heard::Said(String::from_utf8_lossy(&line).trim_end().to_owned())).is_err() {
                        break;
                    }
                }
            });
        } else {
            drop(sender);
        }
        let (mut text, mut said): (Vec<u8>, Vec<String>) = (Vec::new(), Vec::new());
        let (started, mut ended) = (Instant::now(), None::<Instant>);
        // Both streams end with the program, unless it leaves processes behind that hold them.
        while ended.is_none_or(|ended| ended.elapsed() < GRACE) {
            if ended.is_none() && child.try_wait().map_err(failed)?.is_some() {
                ended = Some(Instant::now());
            }
            if let Some(limit) = self.timeout.filter(|&limit| ended.is_none() && started.elapsed() > limit) {
                // It may have ended by itself just now.
                let _ = child.kill();
                let _ = child.wait();
                return Err(ChildError::Late {
                    what: what.to_owned(),
                    seconds: limit.as_secs(),
                    doing: progress.last(),
                });
            }
            match heard.recv_timeout(LOOK) {
                Ok(Heard::Printed(printed)) => text = printed,
                Ok(Heard::Said(line)) => {
                    match line.strip_prefix(PROGRESS) {
                        Some(doing) => progress.doing(doing),
                        None => said.push(line),
                    }
                    if said.len() > 2 * LINES {
                        said.drain(..LINES);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => progress.waiting(),
            }
        }
        let status = child.wait().map_err(failed)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        match status.code() {
            // Python itself ends with 1 as well, and then has printed nothing.
            Some(code) if accepted.contains(&code) && (code == 0 || !text.trim().is_empty()) => Ok((code, text)),
            _ => Err(failure(&path, what, status, said)),
        }
    }
}

fn failure(path: &Path, what: &str, status: ExitStatus, said: Vec<String>) -> ChildError {
    let lacks = |line: &String| {
        let missing = line.rsplit("No module named ").next().filter(|rest| rest.len() < line.len());
        missing.is_some_and(|name| matches!(name.trim_matches(['\'', ')']), "gpuheap" | "gpuheap._fit"))
    };
    if said.iter().any(lacks) {
        return ChildError::NoPackage { path: path.to_owned() };
    }
    let hint = said.iter().find_map(|line| line.strip_prefix(HINT)).map(str::to_owned);
    let mut lines: Vec<String> = said.into_iter().filter(|line| !line.is_empty() && !line.starts_with(HINT)).collect();
    // A traceback has what matters at its end.
    let traceback = lines.iter().any(|line| line.starts_with("Traceback"));
    // What the program itself said may come before.
    let own = lines.iter().rposition(|line| line.starts_with(ERROR));
    let message = match own {
        Some(own) => {
            let message = lines.remove(own);
            lines.drain(..own);
            Some(message)
        }
        None if traceback => lines.pop(),
        None => (!lines.is_empty()).then(|| lines.remove(0)),
    };
    let message = message.unwrap_or_else(|| match status.code() {
        Some(code) => format!("Python ended with exit code {code} and said nothing"),
        None => died(status),
    });
    let message = message.strip_prefix(ERROR).unwrap_or(&message).to_owned();
    let more = (!lines.is_empty()).then(|| Said(lines.join("\n")));
    ChildError::Failed { what: what.to_owned(), message, more, hint }
}

/// How a child died that did not end by itself.
fn died(status: ExitStatus) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;
        const KILL: i32 = 9;
        if let Some(signal) = status.signal().filter(|&signal| signal != KILL) {
            return format!("Python crashed with signal {signal}");
        }
    }
    let _ = status;
    "Python was killed; the machine may be out of memory".to_owned()
}
