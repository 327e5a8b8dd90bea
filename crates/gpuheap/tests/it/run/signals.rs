//! Signals and terminals.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::rig::{Rig, Running, state_of, until};

fn send(signal: &str, process: &str) {
    assert!(Command::new("kill").args([&format!("-{signal}"), process]).status().unwrap().success());
}

/// A program that says what it was sent, and ends when its standard input does.
const LISTENS: &str = "for signal in INT TERM HUP QUIT USR1 USR2; do trap \"echo got $signal >> log\" $signal; done; \
                       echo $$ > number; echo ready; while read -r line || test $? -gt 128; do :; done; exit 7";

fn listening(rig: &Rig) -> (Running, String) {
    // Another shell than the usual one may not come back to its loop after a signal.
    let running = Running::start(&mut rig.run(&[], &["bash", "-c", LISTENS]), "ready");
    let number = std::fs::read_to_string(rig.path("number")).unwrap().trim().to_owned();
    (running, number)
}

fn log(rig: &Rig) -> String {
    std::fs::read_to_string(rig.path("log")).unwrap_or_default()
}

#[test]
fn what_is_sent_to_the_command_reaches_the_program_once() {
    let rig = Rig::new();
    let (running, _) = listening(&rig);
    let mut expected = String::new();
    for signal in ["TERM", "HUP", "USR1", "USR2", "QUIT", "INT"] {
        send(signal, &running.number());
        expected.extend(["got ", signal, "\n"]);
        until("the signal comes", || log(&rig) == expected);
    }
    assert_eq!(running.end(), (Some(7), String::new()));
    assert_eq!(log(&rig), expected);
    assert_eq!(rig.runs().len(), 0);
}

#[test]
fn a_program_that_a_signal_ends_gives_its_number() {
    let rig = Rig::new();
    for (signal, code) in [("TERM", 143), ("HUP", 129), ("INT", 130)] {
        let running = Running::start(&mut rig.run(&[], &["sh", "-c", "echo ready; exec sleep 100"]), "ready");
        send(signal, &running.number());
        assert_eq!(running.end(), (Some(code), String::new()), "{signal}");
    }
}

#[test]
fn a_stopped_command_stops_the_program_and_goes_on_with_it() {
    let rig = Rig::new();
    let (running, number) = listening(&rig);
    send("TSTP", &running.number());
    until("both are stopped", || state_of(&number) == Some('T') && state_of(&running.number()) == Some('T'));
    send("CONT", &running.number());
    until("both go on", || state_of(&number) != Some('T') && state_of(&running.number()) != Some('T'));
    assert_eq!(running.end().0, Some(7));
}

#[test]
fn what_was_to_be_ignored_stays_ignored() {
    let rig = Rig::new();
    let mut command = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" run sh -c 'kill -HUP $$; echo lives; read -r line; exit 4'";
    command.args(["-c", script, env!("CARGO_BIN_EXE_gpuheap")]);
    command.current_dir(rig.path("")).env("LD_LIBRARY_PATH", rig.path("driver"));
    command.env("XDG_RUNTIME_DIR", rig.path("session")).env_remove("GPUHEAP_RUN");
    let running = Running::start(&mut command, "lives");
    send("HUP", &running.number());
    assert_eq!(running.end().0, Some(4));
}

/// A key of a terminal reaches the program by the terminal. Twice would be once too often.
#[test]
fn a_key_of_the_terminal_comes_once() {
    let rig = Rig::new();
    let user: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&user).unwrap();
    unlockpt(&user).unwrap();
    let path = ptsname(&user, Vec::new()).unwrap();
    let program = OpenOptions::new().read(true).write(true).open(path.to_str().unwrap()).unwrap();
    let end = || Stdio::from(program.try_clone().unwrap());
    // `setsid` makes the terminal the program's own, as a terminal's program does.
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_gpuheap"), "run", "bash", "-c"]);
    let script = "count=0; trap 'count=$((count + 1)); echo got $count' INT; test -t 0 && test -t 1 && echo terminal; \
                  echo ready; for i in $(seq 200); do sleep 0.01; done; echo counted $count; exit $count";
    command.arg(script).current_dir(rig.path("")).env("LD_LIBRARY_PATH", rig.path("driver"));
    command.env("XDG_RUNTIME_DIR", rig.path("session")).env_remove("GPUHEAP_RUN");
    let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    // As long as an end of it is open here, nothing says that the program has ended.
    drop((program, command));
    let mut terminal = File::from(user);
    let mut shown = String::new();
    let mut buffer = [0; 4096];
    while !shown.contains("ready") {
        let count = terminal.read(&mut buffer).unwrap();
        shown += &String::from_utf8_lossy(&buffer[..count]);
    }
    terminal.write_all(b"\x03").unwrap();
    while let Ok(count @ 1..) = terminal.read(&mut buffer) {
        shown += &String::from_utf8_lossy(&buffer[..count]);
    }
    assert_eq!(child.wait().unwrap().code(), Some(1), "{shown}");
    assert!(shown.contains("terminal") && shown.contains("counted 1"), "{shown}");
}
