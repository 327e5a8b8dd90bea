//! Which process something belongs to, in a number, and whether it is alive.
//!
//! Numbers of processes are used again, so the time when it started is part of it; and a process in a container has
//! another number inside than outside, so the namespace is. A process of another namespace cannot be looked up from
//! here and counts as alive.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// Bits of the start time, in ticks since boot: more than a year.
const START_BITS: u32 = 32;
/// Bits of the process's number, which is below 2^22 on every Linux.
const PROCESS_BITS: u32 = 22;

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity(u64);

impl Identity {
    /// The calling process.
    #[must_use]
    pub fn own() -> Self {
        let process = std::process::id();
        Self::pack(namespace(), process, start_of(process).map_or(0, |(start, _)| start))
    }

    /// The process of that number as it is seen from here, if there is one that has not ended.
    #[must_use]
    pub fn of(process: u32) -> Option<Self> {
        let (start, ended) = start_of(process)?;
        (!ended).then(|| Self::pack(namespace(), process, start))
    }

    fn pack(namespace: u64, process: u32, start: u64) -> Self {
        let start = start & ((1 << START_BITS) - 1);
        let process = u64::from(process) & ((1 << PROCESS_BITS) - 1);
        Self(namespace << (START_BITS + PROCESS_BITS) | process << START_BITS | start)
    }

    /// As it is kept. Never 0: no process has the number 0.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The process that was kept as this number.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The process's number, in its own namespace.
    #[must_use]
    pub fn process(self) -> u32 {
        u32::try_from(self.0 >> START_BITS & ((1 << PROCESS_BITS) - 1)).unwrap_or(0)
    }

    /// Whether its number means the same process here as there.
    #[must_use]
    pub fn is_of_this_namespace(self) -> bool {
        self.0 >> (START_BITS + PROCESS_BITS) == namespace()
    }

    /// Whether that process is alive, as far as one can tell.
    #[must_use]
    pub fn is_alive(self) -> bool {
        if !self.is_of_this_namespace() {
            return true;
        }
        let process = self.process();
        match start_of(process) {
            // A process that is dead but not waited for has no memory any more.
            Some((start, ended)) => !ended && Self::pack(namespace(), process, start) == self,
            // Where the system says nothing of processes, nobody can be told dead.
            None => start_of(std::process::id()).is_none(),
        }
    }
}

/// The namespace of processes, as far as ten bits tell it.
fn namespace() -> u64 {
    let inode = fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino());
    inode % ((1 << (64 - START_BITS - PROCESS_BITS)) - 1)
}

/// When a process started, and whether it has ended.
fn start_of(process: u32) -> Option<(u64, bool)> {
    let text = fs::read(format!("/proc/{process}/stat")).ok()?;
    // The name of the program is in brackets and may have anything inside.
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let rest = String::from_utf8_lossy(text.get(end + 1..)?).into_owned();
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    // One whose first thread has ended goes on with the others.
    Some((start, matches!(state, "Z" | "X" | "x") && threads <= 1))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_alive_until_it_has_ended_and_another_of_its_number_is_another() {
        let own = Identity::own();
        assert_ne!(own.number(), 0);
        assert_eq!(Identity::own(), own);
        assert!(own.is_alive());
        assert_eq!((own.process(), own.is_of_this_namespace()), (std::process::id(), true));
        assert_eq!(Identity::of(std::process::id()), Some(own));
        assert_eq!(Identity::of(4_000_000), None);
        let another = Identity::pack(namespace(), std::process::id(), 1);
        assert!(!another.is_alive(), "it started at another time");
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let identity = Identity::pack(namespace(), child.id(), start_of(child.id()).unwrap().0);
        assert!(identity.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!identity.is_alive());
        let elsewhere = Identity::pack(namespace() + 1, child.id(), 5);
        assert!(elsewhere.is_alive(), "cannot be told from here");
    }
}
