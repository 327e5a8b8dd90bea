//! The Python that has the user's model, and children of it.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::{ChildError, Said};
use crate::own::Own;
use crate::progress::Progress;

/// Lines of a child with this start say what it is doing.
const PROGRESS: &str = "progress: ";
/// Lines with this start say how to go on.
const HINT: &str = "hint: ";
/// The most lines of a child that are kept.
const LINES: usize = 200;

/// Where to look for Python.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Python<'a> {
    /// The one that was given.
    pub(crate) given: Option<&'a Path>,
    /// How this command was called.
    pub(crate) own: &'a Own,
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
        let printed = child.stdout.take();
        // Both streams are read at once: neither fills up while the other is waited for.
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(mut printed) = printed {
                // What cannot be read is missed below.
                let _ = printed.read_to_end(&mut text);
            }
            text
        });
        let mut said: Vec<String> = Vec::new();
        if let Some(errors) = child.stderr.take() {
            for line in BufReader::new(errors).split(b'\n') {
                let Ok(line) = line else { break };
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                match line.strip_prefix(PROGRESS) {
                    Some(doing) => progress.doing(doing),
                    None => said.push(line),
                }
                if said.len() > 2 * LINES {
                    said.drain(..LINES);
                }
            }
        }
        let status = child.wait().map_err(failed)?;
        let text = String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned();
        match status.code() {
            Some(code) if accepted.contains(&code) => Ok((code, text)),
            code => Err(failure(&path, what, code, said)),
        }
    }
}

fn failure(path: &Path, what: &str, code: Option<i32>, said: Vec<String>) -> ChildError {
    let lacks = |line: &String| {
        let missing = line.rsplit("No module named ").next().filter(|rest| rest.len() < line.len());
        missing.is_some_and(|name| matches!(name.trim_matches('\''), "gpuheap" | "gpuheap._fit"))
    };
    if said.iter().any(lacks) {
        return ChildError::NoPackage { path: path.to_owned() };
    }
    let hint = said.iter().find_map(|line| line.strip_prefix(HINT)).map(str::to_owned);
    let mut lines: Vec<String> = said.into_iter().filter(|line| !line.is_empty() && !line.starts_with(HINT)).collect();
    // A traceback has what matters at its end.
    let traceback = lines.iter().any(|line| line.starts_with("Traceback"));
    let message = if traceback { lines.pop() } else { (!lines.is_empty()).then(|| lines.remove(0)) };
    let message = message.unwrap_or_else(|| match code {
        Some(code) => format!("Python ended with exit code {code} and said nothing"),
        None => "Python was killed; the machine may be out of memory".to_owned(),
    });
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    let more = (!lines.is_empty()).then(|| Said(lines.join("\n")));
    ChildError::Failed { what: what.to_owned(), message, more, hint }
}
