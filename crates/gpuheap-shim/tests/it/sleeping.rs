//! A process goes to sleep and wakes up, and nothing of its memory changes, addresses included.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use gpuheap_ledger::State;
use gpuheap_ledger::control::{self, Done, Reply, Request};

use crate::rig::{Driver, Rig, said};
use crate::support::KERNELS;

const MIB: u64 = 1 << 20;
/// What the program holds that can move: 2, 4 and 36 MiB of `cuMemAlloc` and three chunks of its own.
const MOVABLE: u64 = (2 + 4 + 36 + 3 * 4) * MIB;
/// What stays: memory of a small size.
const SMALL: u64 = 1000;

pub(crate) struct Program {
    pub(crate) child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    pub(crate) socket: PathBuf,
}

impl Program {
    pub(crate) fn start(rig: &Rig, what: &str, settings: &[(&str, String)]) -> Self {
        let run = rig.path("run");
        std::fs::create_dir_all(&run).unwrap();
        let mut command: Command = rig.command(Driver::Shim, &rig.client());
        command
            .args(what.split(' '))
            .env("GPUHEAP_RUN", &run)
            .envs(settings.iter().map(|(name, value)| (*name, value)));
        command.env("GPUHEAP_LEDGER", rig.path("ledger"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let socket = control::socket(&run, child.id());
        let mut program = Self { child, input, lines, socket };
        program.said("ready");
        program
    }

    /// Tells it something and reads its answer of one line.
    #[track_caller]
    pub(crate) fn answer(&mut self, line: &str) -> String {
        self.tell(line);
        self.line()
    }

    /// Its next line.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        self.lines.next().expect("it goes on").unwrap()
    }

    /// Reads on to a line.
    #[track_caller]
    pub(crate) fn said(&mut self, wanted: &str) -> Vec<String> {
        let mut before = Vec::new();
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("the end before `{wanted}`: {before:?}")).unwrap();
            if line == wanted {
                return before;
            }
            before.push(line);
        }
    }

    pub(crate) fn ask(&self, request: Request) -> Reply {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        control::send(&mut stream, &request).unwrap();
        control::receive(&mut stream).unwrap().parse().unwrap()
    }

    #[track_caller]
    pub(crate) fn done(&self, request: Request) -> Done {
        match self.ask(request) {
            Reply::Done(done) => done,
            Reply::Refused(why) => panic!("{request}: {why}"),
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Lets it look at all of its memory, and write to it.
    #[track_caller]
    fn look(&mut self, pieces: usize) {
        self.tell("");
        assert_eq!(self.said(&format!("looked at {pieces}")), Vec::<String>::new());
    }

    pub(crate) fn end(mut self) {
        drop(self.input);
        let rest: Vec<String> = self.lines.map(Result::unwrap).collect();
        assert!(self.child.wait().unwrap().success(), "{rest:?}");
        assert!(rest.iter().all(|line| line.ends_with(": 0")), "{rest:?}");
    }
}

pub(crate) fn yields(keep: u64, hold: bool) -> Request {
    Request::Yield { keep, hold }
}

#[test]
fn asleep_it_holds_nothing_that_moves_and_goes_on_by_itself_when_it_has_work() {
    let rig = Rig::new();
    let mut program = Program::start(&rig, "sleeps", &[]);
    program.look(7);
    for _ in 0..5 {
        let slept = program.done(yields(0, false));
        assert_eq!((slept.state, slept.bytes, slept.moved, slept.host), (State::Asleep, SMALL, MOVABLE, MOVABLE));
        assert!(matches!(program.ask(yields(0, false)), Reply::Refused(why) if why.contains("asleep already")));
        program.look(7);
        let awake = program.done(Request::Status);
        assert_eq!((awake.state, awake.bytes, awake.host), (State::Running, SMALL + MOVABLE, 0));
    }
    assert!(matches!(program.ask(Request::Wake), Reply::Refused(why) if why.contains("not asleep")));
    program.end();
}

#[test]
fn held_it_sleeps_until_it_is_woken() {
    let rig = Rig::new();
    let mut program = Program::start(&rig, "sleeps", &[]);
    for is_asleep_before in [false, true] {
        if is_asleep_before {
            assert_eq!(program.done(yields(0, false)).state, State::Asleep);
        }
        assert_eq!(program.done(yields(0, true)).state, State::Held);
        held_until_woken(&mut program);
    }
    program.end();
}

fn held_until_woken(program: &mut Program) {
    program.tell("");
    thread::sleep(Duration::from_millis(200));
    assert_eq!(program.done(Request::Status).state, State::Held);
    assert!(matches!(program.ask(yields(0, true)), Reply::Refused(why) if why.contains("asleep already")));
    let woken = program.done(Request::Wake);
    assert_eq!((woken.state, woken.bytes, woken.moved), (State::Running, SMALL + MOVABLE, MOVABLE));
    assert_eq!(program.said("looked at 7"), Vec::<String>::new());
}

/// Its kernel is still adding when the process is asked to sleep.
#[test]
fn a_context_that_never_allocated_is_waited_for_as_well() {
    let rig = Rig::new();
    std::fs::write(rig.path("kernels"), KERNELS).unwrap();
    let mut program = Program::start(&rig, &format!("contexts {}", rig.path("kernels").display()), &[]);
    let slept = program.done(yields(0, false));
    assert_eq!((slept.state, slept.moved), (State::Asleep, 8 * MIB));
    assert!(slept.seconds > 0.3, "it was waited for: {slept:?}");
    program.tell("");
    assert_eq!(program.said("looked at 1"), ["wait: 0"]);
    program.end();
}

/// On the device of another, which was allowed to reach it: it still may, wherever the memory was meanwhile.
#[test]
fn devices_that_could_reach_memory_can_when_it_is_back() {
    for budget in [None, Some(12 * MIB)] {
        let rig = Rig::new();
        std::fs::write(rig.path("kernels"), KERNELS).unwrap();
        let mut settings = vec![("GPUHEAP_FAKECUDA", "devices 2".to_owned())];
        if let Some(bytes) = budget {
            settings.push(("GPUHEAP_BUDGET", bytes.to_string()));
            settings.push(("GPUHEAP_SPILL", (64 * MIB).to_string()));
        }
        let mut program = Program::start(&rig, &format!("peers {}", rig.path("kernels").display()), &settings);
        for _ in 0..3 {
            program.tell("");
            assert_eq!(program.said("looked at 2"), ["launch: 0", "launch: 0", "wait: 0"], "{budget:?}");
            program.done(yields(0, false));
        }
        program.end();
    }
}

/// Of what is registered with another device somebody else knows where it is.
#[test]
fn what_is_registered_stays_on_its_device() {
    let registered = (36 + 4) * MIB;
    for budget in [None, Some(45 * MIB)] {
        let rig = Rig::new();
        let settings: Vec<(&str, String)> = budget
            .map(|bytes| [("GPUHEAP_BUDGET", bytes.to_string()), ("GPUHEAP_SPILL", (64 * MIB).to_string())])
            .into_iter()
            .flatten()
            .collect();
        let mut program = Program::start(&rig, "sleeps", &settings);
        program.tell("h");
        assert_eq!(program.said("looked at 7"), ["descriptor: 801"]);
        // What the driver refused is not registered.
        let slept = program.done(yields(0, false));
        assert_eq!((slept.bytes, slept.host), (SMALL, MOVABLE));
        program.tell("p");
        assert_eq!(program.said("looked at 7"), ["synchronous: 0", "synchronous: 0"]);
        let slept = program.done(yields(0, false));
        // What was on the host came to the device first, and other memory made room.
        assert_eq!((slept.bytes, slept.host), (SMALL + registered, MOVABLE - registered), "{budget:?}");
        program.tell("");
        assert_eq!(program.said("looked at 7"), Vec::<String>::new());
        program.end();
    }
}

#[test]
fn some_of_it_may_stay() {
    let rig = Rig::new();
    let mut program = Program::start(&rig, "sleeps", &[]);
    let slept = program.done(yields(10 * MIB, false));
    assert!(slept.bytes <= SMALL + 10 * MIB && slept.bytes > SMALL, "{slept:?}");
    assert_eq!(slept.bytes + slept.moved, SMALL + MOVABLE);
    program.look(7);
    program.end();
}

#[test]
fn what_does_not_fit_spills_and_sleeps_and_wakes_as_the_rest_does() {
    let rig = Rig::new();
    let settings = [("GPUHEAP_BUDGET", (30 * MIB).to_string()), ("GPUHEAP_SPILL", (64 * MIB).to_string())];
    let mut program = Program::start(&rig, "sleeps", &settings);
    program.look(7);
    let before = program.done(Request::Status);
    assert!(before.bytes <= 30 * MIB && before.host > 0, "{before:?}");
    assert_eq!(before.bytes + before.host, SMALL + MOVABLE);
    for _ in 0..3 {
        let slept = program.done(yields(0, false));
        assert_eq!((slept.bytes, slept.host), (SMALL, MOVABLE));
        program.look(7);
        let after = program.done(Request::Status);
        assert_eq!(after.bytes + after.host, SMALL + MOVABLE);
        assert!(after.bytes <= 30 * MIB, "{after:?}");
    }
    program.end();
}

#[test]
fn of_memory_asked_for_as_one_as_much_is_on_the_device_as_fits() {
    let rig = Rig::new();
    let settings = [("GPUHEAP_BUDGET", (100 * MIB).to_string()), ("GPUHEAP_SPILL", (160 * MIB).to_string())];
    let mut program = Program::start(&rig, "large", &settings);
    let before = program.done(Request::Status);
    assert_eq!((before.bytes, before.host), (96 * MIB, 48 * MIB), "whole pieces of 32 MiB");
    for _ in 0..2 {
        program.tell("");
        assert_eq!(program.said("looked"), ["read: 0", "wrong: 0"]);
        let slept = program.done(yields(0, false));
        assert_eq!((slept.bytes, slept.host), (0, 144 * MIB));
    }
    program.tell("");
    assert_eq!(program.said("looked"), ["read: 0", "wrong: 0"]);
    program.end();
}

#[test]
fn what_programs_are_told_of_memory_in_pieces_is_what_the_driver_says_of_one() {
    let rig = Rig::new();
    let client = rig.client();
    let (bare, _) = said(rig.command(Driver::Bare, &client).args(["large", "in part"]));
    let mut command = rig.command(Driver::Shim, &client);
    command.args(["large", "in part"]);
    command.env("GPUHEAP_BUDGET", (100 * MIB).to_string()).env("GPUHEAP_SPILL", (160 * MIB).to_string());
    std::fs::create_dir(rig.path("pieces")).unwrap();
    let (with, charged) = said(command.env("GPUHEAP_RUN", rig.path("pieces")));
    // What is partly on the host cannot be passed on.
    assert!(with.contains("export: 801\n"), "{with}");
    let expected = bare.replace("export: 0", "export: 801").replace("other than refused: 1", "other than refused: 0");
    assert_eq!(with, expected);
    assert_eq!(charged, "end:\nend:\nend:\n");
}

#[test]
fn memory_of_the_host_that_is_mapped_is_not_exchanged_to_be_passed_on() {
    let rig = Rig::new();
    let client = rig.client();
    let (bare, _) = said(rig.command(Driver::Bare, &client).arg("mapped-twice"));
    let mut command = rig.command(Driver::Shim, &client);
    command
        .arg("mapped-twice")
        .env("GPUHEAP_BUDGET", (4 * MIB).to_string())
        .env("GPUHEAP_SPILL", (8 * MIB).to_string());
    std::fs::create_dir(rig.path("twice")).unwrap();
    let (with, charged) = said(command.env("GPUHEAP_RUN", rig.path("twice")));
    assert_eq!(with, bare.replace("export: 0", "export: 801"));
    assert_eq!(charged, "end:\n");
}

#[test]
fn without_spill_or_beyond_it_a_request_is_refused_as_the_driver_refuses() {
    for spill in [None, Some(2 * MIB)] {
        let rig = Rig::new();
        let mut settings = vec![("GPUHEAP_BUDGET", (56 * MIB).to_string())];
        settings.extend(spill.map(|bytes| ("GPUHEAP_SPILL", bytes.to_string())));
        let mut program = Program::start(&rig, "sleeps", &settings);
        program.tell("more");
        assert_eq!(program.said("looked at 7"), ["alloc 8388608: 2"]);
        program.end();
    }
}

#[test]
fn whoever_wakes_waits_for_room_that_another_has() {
    let rig = Rig::new();
    let settings = [("GPUHEAP_BUDGET", (80 * MIB).to_string())];
    let mut first = Program::start(&rig, "sleeps", &settings);
    first.done(yields(0, false));
    let second = Program::start(&rig, "sleeps", &settings);
    first.tell("");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(first.done(Request::Status).state, State::Waking);
    assert!(first.done(Request::Status).bytes <= 80 * MIB - MOVABLE - SMALL);
    second.end();
    assert_eq!(first.said("looked at 7"), Vec::<String>::new());
    first.end();
}

#[test]
fn one_that_is_killed_asleep_leaves_its_part_to_others() {
    let rig = Rig::new();
    let settings = [("GPUHEAP_BUDGET", (60 * MIB).to_string()), ("GPUHEAP_SPILL", (60 * MIB).to_string())];
    for _ in 0..3 {
        let mut program = Program::start(&rig, "sleeps", &settings);
        program.look(7);
        program.done(yields(0, true));
        program.child.kill().unwrap();
        program.child.wait().unwrap();
    }
    let mut last = Program::start(&rig, "sleeps", &settings);
    last.look(7);
    assert_eq!(last.done(Request::Status).bytes, MOVABLE + SMALL);
    last.end();
}

#[test]
fn what_is_said_wrongly_is_refused_and_who_says_nothing_holds_nobody_up() {
    let rig = Rig::new();
    let mut program = Program::start(&rig, "sleeps", &[]);
    let silent = UnixStream::connect(&program.socket).unwrap();
    drop(silent);
    let mut stream = UnixStream::connect(&program.socket).unwrap();
    stream.write_all(b"explode\n").unwrap();
    let reply: Reply = control::receive(&mut stream).unwrap().parse().unwrap();
    assert!(matches!(reply, Reply::Refused(why) if why.contains("explode")));
    program.look(7);
    program.end();
}
