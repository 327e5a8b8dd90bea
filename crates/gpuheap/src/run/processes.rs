//! What the system says of a process.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gpuheap_ledger::{Identity, Name};

use super::environment;

/// Characters of a command that are shown.
const SHOWN: usize = 60;

/// The program of a process and its arguments.
pub(crate) fn command(identity: Identity) -> Option<Vec<String>> {
    if !identity.is_of_this_namespace() {
        return None;
    }
    let bytes = fs::read(format!("/proc/{}/cmdline", identity.process())).ok()?;
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    (!bytes.is_empty()).then(|| bytes.split(|byte| *byte == 0).map(text).collect())
}

/// The same as one text, not too long, the program without its folder.
pub(crate) fn short(command: &[String]) -> String {
    let mut words = command.iter();
    let program = words.next().map(String::as_str).unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let text = words.fold(program.to_owned(), |text, word| text + " " + word);
    let text = gpuheap_report::sanitize(&text);
    if text.chars().count() <= SHOWN { text } else { text.chars().take(SHOWN - 1).chain(['…']).collect() }
}

/// A process in a sentence: its number, and what the system calls it.
pub(crate) fn named(identity: Identity, name: Name) -> String {
    let number = identity.process();
    if name.is_empty() {
        number.to_string()
    } else {
        format!("{number} ({})", gpuheap_report::sanitize(&name.to_string()))
    }
}

/// Whose process it is; nothing if there is none.
pub(crate) fn user(process: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{process}")).ok().map(|found| found.uid())
}

/// Whether it was stopped, as by Ctrl-Z.
pub(crate) fn is_stopped(process: u32) -> bool {
    field(process, 0).is_some_and(|state| matches!(state.as_str(), "T" | "t"))
}

/// The process that started it, or that it was left to.
pub(crate) fn parent(process: u32) -> Option<u32> {
    field(process, 1)?.parse().ok()
}

/// What the system says in one line: the words behind the program's name, which is in brackets and may have anything
/// inside.
fn field(process: u32, number: usize) -> Option<String> {
    let text = fs::read(format!("/proc/{process}/stat")).ok()?;
    let end = text.iter().rposition(|byte| *byte == b')')?;
    String::from_utf8_lossy(text.get(end + 1..)?).split_ascii_whitespace().nth(number).map(str::to_owned)
}

/// A variable of the environment that a process started with.
pub(crate) fn variable(process: u32, name: &str) -> Option<OsString> {
    let environment = fs::read(format!("/proc/{process}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(OsString::from_vec(value.to_vec()))
}

/// Whether a process other than this one was started in the run, one that never used CUDA included.
pub(crate) fn any_of(run: &Path) -> bool {
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return false };
    let processes = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    processes.filter(|process| *process != own).any(|process| {
        variable(process, environment::RUN).as_deref().map(OsStr::as_bytes) == Some(run.as_os_str().as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_known_by_its_number() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!any_of(folder.path()));
        let mut child = Command::new("sleep").arg("100").env(environment::RUN, folder.path()).spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        assert_eq!(user(child.id()), user(std::process::id()));
        // Until it has become the other program, it is this one.
        while !any_of(folder.path()) {
            std::thread::yield_now();
        }
        assert_eq!(command(identity).unwrap(), ["sleep", "100"]);
        assert_eq!(named(identity, Name::of(b"sleep")), format!("{} (sleep)", child.id()));
        assert_eq!(named(identity, Name::default()), child.id().to_string());
        assert!(!is_stopped(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((command(identity), user(child.id())), (None, None));
        assert!(!any_of(folder.path()));
    }

    #[test]
    fn a_command_is_shown_short_and_harmless() {
        let short = |words: &[&str]| short(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(short(&["/usr/bin/python3", "train.py"]), "python3 train.py");
        assert!(!short(&["a\u{1b}[2J"]).contains('\u{1b}'));
        assert_eq!(short(&["x", &"y".repeat(100)]).chars().count(), SHOWN);
        assert_eq!(short(&[]), "");
    }
}
