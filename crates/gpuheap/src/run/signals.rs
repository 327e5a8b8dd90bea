//! Signals of this process go to its program.
//!
//! The program is in the same group of processes and has the same terminal. What a key of the terminal sends reaches it
//! without us, so it is not sent again: a program that gets one Ctrl-C twice may take the second for impatience. All else
//! was sent to this process alone, and is passed on.

use std::fs::{self, File};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Handle;

/// What is passed on.
const PASSED: &[i32] = &[SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT];

/// Signals that are caught and passed on.
#[derive(Debug)]
pub(super) struct Signals {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    target: Arc<Mutex<Target>>,
}

#[derive(Debug, Default)]
struct Target {
    program: Option<Pid>,
    /// What came before there was a program.
    early: Vec<i32>,
}

impl Signals {
    /// Catches signals from now on; this process does not end by them any more. Those that it was told to ignore, as by
    /// `nohup`, it goes on to ignore, and so does the program.
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        let wanted = PASSED.iter().filter(|signal| ignored >> (*signal - 1) & 1 == 0);
        let mut signals = signal_hook::iterator::Signals::new(wanted)?;
        let (handle, target) = (signals.handle(), Arc::new(Mutex::new(Target::default())));
        let shared = Arc::clone(&target);
        let thread = thread::Builder::new().name("gpuheap-signals".to_owned()).spawn(move || {
            for signal in &mut signals {
                let mut target = lock(&shared);
                match target.program {
                    Some(program) => carry_out(program, signal),
                    None => target.early.push(signal),
                }
            }
        })?;
        Ok(Self { handle, thread: Some(thread), target })
    }

    /// Says where they go.
    pub(super) fn pass_on_to(&self, program: Option<Pid>) {
        let mut target = lock(&self.target);
        target.program = program;
        for signal in std::mem::take(&mut target.early) {
            if let Some(program) = program {
                carry_out(program, signal);
            }
        }
    }

    /// Sends nothing any more: the program's number may become another's.
    pub(super) fn stop(&mut self) {
        lock(&self.target).program = None;
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock(target: &Mutex<Target>) -> MutexGuard<'_, Target> {
    target.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes a signal on, and stops if that is what it is for: never before the program, which would go on alone.
fn carry_out(program: Pid, signal: i32) {
    pass_on(program, signal);
    if signal == SIGTSTP {
        // What it does by itself, had it not been caught. Whoever continues us continues the program.
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

fn pass_on(program: Pid, signal: i32) {
    let is_key = matches!(signal, SIGINT | SIGQUIT | SIGTSTP);
    if is_key && is_in_front() {
        return;
    }
    if let Some(signal) = Signal::from_named_raw(signal) {
        // It may have ended.
        let _ = kill_process(program, signal);
    }
}

/// Whether keys of a terminal reach this process and its program.
fn is_in_front() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

/// The signals that a process ignores, one bit each, from the kernel's text about it.
fn ignored(status: &str) -> u64 {
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read() {
        assert_eq!(ignored("Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored(""), 0);
    }
}
