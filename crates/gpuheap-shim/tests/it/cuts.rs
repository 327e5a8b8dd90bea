//! A ledger that is cut short, or is none, ends no program.

use std::fs::{self, OpenOptions};
use std::os::unix::process::ExitStatusExt;

use gpuheap_ledger::control::Request;
use gpuheap_ledger::{Reader, State};

use crate::rig::{Driver, Rig, said};
use crate::sleeping::{Program, yields};

const MIB: usize = 1 << 20;
const SIGBUS: i32 = 7;

/// The process goes on with what it held and the budget that it had.
#[test]
fn a_ledger_that_is_cut_short_ends_no_program_and_the_budget_stays() {
    let rig = Rig::new();
    let client = rig.client();
    // All of it; all but the header; in the middle of the slots, so that the first ones stay.
    for length in [0, 4096, 300_000] {
        let ledger = rig.path("ledger");
        let _ = fs::remove_file(&ledger);
        let mut command = rig.command(Driver::Shim, &client);
        command.args(["cuts", &length.to_string()]);
        command.env("GPUHEAP_LEDGER", &ledger).env("GPUHEAP_BUDGET", (64 * MIB).to_string());
        let (text, _) = said(&mut command);
        let all = 64 * MIB;
        let expected = format!(
            "init: 0\ncount: 0\nretain: 0\ncurrent: 0\nalloc: 0\ncut: 0\nmore than is left: 2\nwhat is left: 0\n\
             info: 0\ninfo without free: 0\ninfo without total: 0\ninfo without either: 0\ntotal: 0\n\
             0 of {all}, 0, {all}\nfree: 0\nas much again: 0\nnothing is left: 2\n"
        );
        assert_eq!(text, expected, "cut to {length}");
        assert!(Reader::open(&ledger).is_err(), "whoever reads it is told");
    }
}

/// Also the thread that answers, which hears no other signal, and memory that moves.
#[test]
fn a_process_whose_ledger_is_gone_still_answers_sleeps_and_wakes() {
    let rig = Rig::new();
    let mut program = Program::start(&rig, "sleeps", &[]);
    let before = program.done(Request::Status);
    let ledger = OpenOptions::new().write(true).open(rig.path("ledger")).unwrap();
    ledger.set_len(0).unwrap();
    assert_eq!(program.done(Request::Status).bytes, before.bytes);
    let slept = program.done(yields(0, true));
    assert_eq!((slept.state, slept.bytes + slept.moved), (State::Held, before.bytes));
    assert_eq!(program.done(Request::Wake).bytes, before.bytes);
    program.tell("");
    program.said("looked at 7");
    program.end();
}

/// Whatever stands in it: a program that is run with it works, and so does one that has it.
#[test]
fn a_ledger_that_somebody_writes_over_ends_no_program() {
    let rig = Rig::new();
    let mut program = Program::start(&rig, "sleeps", &[]);
    let length = fs::metadata(rig.path("ledger")).unwrap().len();
    for byte in [0xff, 0x00, 0x01, 0xa5] {
        let ledger = OpenOptions::new().write(true).open(rig.path("ledger")).unwrap();
        let noise = vec![byte; usize::try_from(length).unwrap()];
        std::os::unix::fs::FileExt::write_all_at(&ledger, &noise, 0).unwrap();
        program.tell("");
        program.said("looked at 7");
    }
    program.end();
    let text = said(rig.command(Driver::Shim, &rig.client()).arg("forked").env("GPUHEAP_LEDGER", rig.path("ledger"))).0;
    assert!(text.ends_with("free: 0\n"), "{text}");
}

#[test]
fn the_signal_for_anything_else_does_what_it_would_do() {
    let rig = Rig::new();
    let client = rig.client();
    let how_it_ends = |driver, how: &str| {
        let mut command = rig.command(driver, &client);
        command.args(["faults", how]).env("GPUHEAP_LEDGER", rig.path("ledger")).env("CLIENT_FILE", rig.path("file"));
        let status = command.output().unwrap().status;
        (status.code(), status.signal())
    };
    for (how, expected) in [
        ("default", (None, Some(SIGBUS))),
        ("default, sent", (None, Some(SIGBUS))),
        ("ignored", (None, Some(SIGBUS))),
        ("ignored, sent", (Some(7), None)),
        ("handled", (Some(42), None)),
        ("handled, sent", (Some(42), None)),
        ("told", (Some(44), None)),
    ] {
        for driver in [Driver::Bare, Driver::Shim] {
            assert_eq!(how_it_ends(driver, how), expected, "{how}, {driver:?}");
        }
    }
}
