//! Memory that one process of a run opens of another (`cuIpcGetMemHandle`), though it is in chunks.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use gpuheap_ledger::State;
use gpuheap_ledger::control::{self, Reply, Request};

use crate::rig::{Driver, Rig, said};
use crate::sleeping::{Program, yields};

const MIB: u64 = 1 << 20;
const LARGE: u64 = 70 * MIB + 5;
/// What it takes.
const TAKEN: u64 = 72 * MIB;

fn start(rig: &Rig, settings: &[(&str, String)]) -> Program {
    let mut settings = settings.to_vec();
    settings.push(("GPUHEAP_FAKECUDA", "memory 16GiB".to_owned()));
    Program::start(rig, "shares", &settings)
}

/// The handle of its allocation of that number, at an offset.
#[track_caller]
fn export(program: &mut Program, number: usize, offset: u64) -> String {
    let answer = program.answer(&format!("export {number} {offset}"));
    answer.strip_prefix("export: 0 1 ").unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[track_caller]
fn expect(program: &mut Program, line: &str, answer: &str) {
    assert_eq!(program.answer(line), answer, "{line}");
}

/// One that has an allocation of [`LARGE`] bytes, full of 7, and its handle.
fn exporter(rig: &Rig, settings: &[(&str, String)]) -> (Program, String) {
    let mut program = start(rig, settings);
    expect(&mut program, &format!("alloc {LARGE}"), &format!("alloc: 0, {LARGE} at 0"));
    expect(&mut program, "fill 0 7", "fill: 0");
    let handle = export(&mut program, 0, 0);
    (program, handle)
}

#[test]
fn two_processes_read_what_the_other_writes_until_it_is_closed() {
    let rig = Rig::new();
    let (mut one, handle) = exporter(&rig, &[]);
    assert_eq!(export(&mut one, 0, 40 * MIB), handle, "of any of its addresses");
    let mut other = start(&rig, &[]);
    let opened = format!("open: 0, {LARGE} at 0");
    expect(&mut other, &format!("open {handle}"), &opened);
    expect(&mut other, "charged", &format!("charged: {TAKEN}"));
    expect(&mut other, "check 0 7", "check: 0, 0 wrong");
    expect(&mut other, "fill 0 8", "fill: 0");
    expect(&mut one, "check 0 8", "check: 0, 0 wrong");
    expect(&mut one, "mark 0 1000", "mark: 0, 0 wrong");
    expect(&mut other, "marked 0 1000", "marked: 0, 0 wrong");
    // Opened again it has the same address, and is closed as often.
    expect(&mut other, &format!("open {handle}"), &opened);
    expect(&mut other, "same 0 1", "same: 1");
    expect(&mut other, "free 0", "free: 1");
    expect(&mut other, "close 0", "close: 0");
    expect(&mut other, "marked 0 1000", "marked: 0, 0 wrong");
    expect(&mut other, "close 0", "close: 0");
    expect(&mut other, "charged", "charged: 0");
    expect(&mut other, "close 0", "close: 1");
    assert_ne!(other.answer("check 0 8"), "check: 0, 0 wrong");
    // And the other way round, while the first is still there.
    expect(&mut other, "alloc 4194304", "alloc: 0, 4194304 at 0");
    expect(&mut other, "fill 2 9", "fill: 0");
    let handle = export(&mut other, 2, 0);
    expect(&mut one, &format!("open {handle}"), "open: 0, 4194304 at 0");
    expect(&mut one, "check 1 9", "check: 0, 0 wrong");
    // A process does not close its own, and its context takes along what is open.
    expect(&mut one, "close 0", "close: 1");
    expect(&mut one, "reset", "reset: 0");
    expect(&mut one, "charged", "charged: 0");
    one.end();
    other.end();
}

#[test]
fn an_allocation_of_hundreds_of_pieces_arrives_whole_and_in_order() {
    let rig = Rig::new();
    let mut one = start(&rig, &[]);
    let bytes = 10 * 1024 * MIB;
    expect(&mut one, &format!("alloc {bytes}"), &format!("alloc: 0, {bytes} at 0"));
    let handle = export(&mut one, 0, bytes - 1);
    let mut other = start(&rig, &[]);
    // Twice, as the first time other files are opened as well: what happens is written down.
    let mut before = [0; 2];
    for number in 0..2 {
        before = [files(&one), files(&other)];
        let value = 100 * number;
        expect(&mut one, &format!("mark 0 {value}"), "mark: 0, 0 wrong");
        expect(&mut other, &format!("open {handle}"), &format!("open: 0, {bytes} at 0"));
        expect(&mut other, &format!("marked {number} {value}"), "marked: 0, 0 wrong");
        expect(&mut other, &format!("mark {number} {}", value + 7), "mark: 0, 0 wrong");
        expect(&mut one, &format!("marked 0 {}", value + 7), "marked: 0, 0 wrong");
        expect(&mut other, &format!("close {number}"), "close: 0");
    }
    // No descriptor is left, as soon as the exporter has let go of the connection.
    let mut now = [0; 2];
    for _ in 0..200 {
        now = [files(&one), files(&other)];
        if now == before {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(now, before);
    one.end();
    other.end();
}

/// How many files a process has open.
fn files(program: &Program) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", program.child.id())).unwrap().count()
}

#[test]
fn whoever_dies_while_its_memory_is_opened_leaves_the_other_with_all_or_nothing() {
    let rig = Rig::new();
    let mut other = start(&rig, &[]);
    let bytes = 10 * 1024 * MIB;
    let mut open = 0;
    for delay in [0, 2, 5, 20] {
        let mut one = start(&rig, &[]);
        expect(&mut one, &format!("alloc {bytes}"), &format!("alloc: 0, {bytes} at 0"));
        let handle = export(&mut one, 0, 0);
        other.tell(&format!("open {handle}"));
        thread::sleep(Duration::from_millis(delay));
        one.child.kill().unwrap();
        one.child.wait().unwrap();
        let answer = other.line();
        let opened = answer == format!("open: 0, {bytes} at 0");
        assert!(opened || answer == "open: 1, 0 at 0", "{answer}");
        open += u64::from(opened);
        expect(&mut other, "charged", &format!("charged: {}", open * bytes));
    }
    other.end();
}

#[test]
fn what_is_freed_or_of_a_dead_process_or_of_another_run_cannot_be_opened() {
    let rig = Rig::new();
    let (mut one, handle) = exporter(&rig, &[]);
    let mut other = start(&rig, &[]);
    let open = format!("open {handle}");
    // A process of another run knows no such process.
    let elsewhere = Rig::new();
    let mut stranger = start(&elsewhere, &[]);
    expect(&mut stranger, &open, "open: 1, 0 at 0");
    stranger.end();
    // Nobody gets it for a wrong stamp or size.
    let wrong = Request::Export { address: 1 << 40, bytes: TAKEN, stamp: 5 };
    assert!(matches!(one.ask(wrong), Reply::Refused(why) if why.contains("no such allocation")));
    expect(&mut one, &open, "open: 201, 0 at 0");
    expect(&mut other, &open, &format!("open: 0, {LARGE} at 0"));
    // Who has it open keeps it when it is freed, and nobody else gets it: not even if the address is used again.
    expect(&mut one, "free 0", "free: 0");
    expect(&mut other, "check 0 7", "check: 0, 0 wrong");
    expect(&mut other, "close 0", "close: 0");
    expect(&mut other, &open, "open: 1, 0 at 0");
    for _ in 0..4 {
        expect(&mut one, &format!("alloc {LARGE}"), &format!("alloc: 0, {LARGE} at 0"));
        expect(&mut other, &open, "open: 1, 0 at 0");
    }
    let handle = export(&mut one, 1, 0);
    one.child.kill().unwrap();
    one.child.wait().unwrap();
    expect(&mut other, &format!("open {handle}"), "open: 1, 0 at 0");
    expect(&mut other, "charged", "charged: 0");
    other.end();
}

#[test]
fn what_is_shared_stays_when_the_process_sleeps_and_the_rest_moves() {
    let rig = Rig::new();
    let (mut one, handle) = exporter(&rig, &[]);
    expect(&mut one, "alloc 20971520", "alloc: 0, 20971520 at 0");
    expect(&mut one, "fill 1 3", "fill: 0");
    let mut other = start(&rig, &[]);
    for round in 0..3 {
        let slept = one.done(yields(0, true));
        assert_eq!((slept.state, slept.bytes, slept.moved), (State::Held, TAKEN, 20 * MIB));
        // Also whoever opens it only now has it, and nobody is woken for that.
        expect(&mut other, &format!("open {handle}"), &format!("open: 0, {LARGE} at 0"));
        expect(&mut other, &format!("check {round} {}", 7 + round), "check: 0, 0 wrong");
        expect(&mut other, &format!("fill {round} {}", 8 + round), "fill: 0");
        assert_eq!(one.done(Request::Status).state, State::Held);
        one.done(Request::Wake);
        expect(&mut one, &format!("check 0 {}", 8 + round), "check: 0, 0 wrong");
        expect(&mut one, "check 1 3", "check: 0, 0 wrong");
    }
    // Who has memory of another open sleeps as well, and keeps it.
    other.done(yields(0, false));
    expect(&mut other, "check 0 10", "check: 0, 0 wrong");
    one.end();
    other.end();
}

#[test]
fn what_is_on_the_host_comes_back_for_it_and_where_there_is_no_room_it_is_refused() {
    let rig = Rig::new();
    let settings = [("GPUHEAP_BUDGET", (80 * MIB).to_string()), ("GPUHEAP_SPILL", (160 * MIB).to_string())];
    let mut one = start(&rig, &settings);
    expect(&mut one, "alloc 67108864", "alloc: 0, 67108864 at 0");
    expect(&mut one, "fill 0 1", "fill: 0");
    expect(&mut one, &format!("alloc {LARGE}"), &format!("alloc: 0, {LARGE} at 0"));
    expect(&mut one, "mark 1 9", "mark: 0, 0 wrong");
    assert!(one.done(Request::Status).host > 0);
    let handle = export(&mut one, 1, 0);
    let mut other = start(&rig, &settings);
    expect(&mut other, &format!("open {handle}"), &format!("open: 0, {LARGE} at 0"));
    expect(&mut other, "marked 0 9", "marked: 0, 0 wrong");
    expect(&mut other, "mark 0 21", "mark: 0, 0 wrong");
    expect(&mut one, "marked 1 21", "marked: 0, 0 wrong");
    expect(&mut one, "check 0 1", "check: 0, 0 wrong");
    assert!(one.done(Request::Status).bytes <= 80 * MIB);
    // More than that has no room beside it.
    let second = export(&mut one, 0, 0);
    expect(&mut other, &format!("open {second}"), "open: 1, 0 at 0");
    expect(&mut one, "check 0 1", "check: 0, 0 wrong");
    one.end();
    other.end();
}

#[test]
fn two_that_open_what_the_other_has_on_the_host_do_not_wait_for_each_other() {
    let rig = Rig::new();
    let settings = [("GPUHEAP_BUDGET", (100 * MIB).to_string()), ("GPUHEAP_SPILL", (400 * MIB).to_string())];
    let mut both = [start(&rig, &settings), start(&rig, &settings)];
    for program in &mut both {
        expect(program, "alloc 33554432", "alloc: 0, 33554432 at 0");
        expect(program, "alloc 33554432", "alloc: 0, 33554432 at 0");
    }
    assert!(both[1].done(Request::Status).host > 0);
    let handles = [1, 0].map(|number: usize| export(&mut both[number], number, 0));
    for (program, handle) in both.iter_mut().zip(handles) {
        program.tell(&format!("open {handle}"));
    }
    for program in &mut both {
        assert_eq!(program.said("open: 0, 33554432 at 0"), Vec::<String>::new());
    }
    let [one, other] = both;
    one.end();
    other.end();
}

#[test]
fn small_ones_are_the_driver_s_as_before() {
    let rig = Rig::new();
    let mut one = start(&rig, &[]);
    expect(&mut one, "alloc 1500000", "alloc: 0, 1500000 at 0");
    expect(&mut one, "fill 0 7", "fill: 0");
    let handle = export(&mut one, 0, 0);
    let mut other = start(&rig, &[]);
    expect(&mut other, &format!("open {handle}"), "open: 0, 1500000 at 0");
    expect(&mut other, "check 0 7", "check: 0, 0 wrong");
    expect(&mut other, "charged", "charged: 1500000");
    expect(&mut other, "close 0", "close: 0");
    expect(&mut other, "charged", "charged: 0");
    one.end();
    other.end();
}

#[test]
fn what_fails_in_the_middle_leaves_nothing_and_may_be_tried_again() {
    let rig = Rig::new();
    let (one, handle) = exporter(&rig, &[]);
    let mut other = start(&rig, &[]);
    for (function, code) in [
        ("cuMemAddressReserve 1 2", 2),
        ("cuMemImportFromShareableHandle 2 999", 999),
        ("cuMemMap 3 2", 2),
        ("cuMemSetAccess 1 999", 999),
    ] {
        expect(&mut other, &format!("control fail {function}"), "control: 0");
        expect(&mut other, &format!("open {handle}"), &format!("open: {code}, 0 at 0"));
        expect(&mut other, "charged", "charged: 0");
    }
    expect(&mut other, &format!("open {handle}"), &format!("open: 0, {LARGE} at 0"));
    expect(&mut other, "check 0 7", "check: 0, 0 wrong");
    // Who asks and goes away in the middle is no harm for others.
    let mut half = UnixStream::connect(&one.socket).unwrap();
    control::send(&mut half, &Request::Export { address: 0, bytes: 0, stamp: 0 }).unwrap();
    drop(half);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(one.done(Request::Status).state, State::Running);
    one.end();
    other.end();
}

#[test]
fn the_one_who_has_it_is_told_as_by_the_driver() {
    let rig = Rig::new();
    let client = rig.client();
    let run = rig.path("run");
    std::fs::create_dir(&run).unwrap();
    let lines = |driver, run: Option<&Path>| {
        let mut command = rig.command(driver, &client);
        command.arg("calls").envs(run.map(|run| ("GPUHEAP_RUN", run)));
        let (text, _) = said(&mut command);
        let of_it = |line: &&str| line.starts_with("export: ") || line.starts_with("open its own: ");
        text.lines().filter(of_it).map(str::to_owned).collect::<Vec<_>>()
    };
    let bare = lines(Driver::Bare, None);
    assert_eq!(bare, ["export: 0", "export: 0", "open its own: 201"]);
    assert_eq!(lines(Driver::Shim, Some(&run)), bare);
}
