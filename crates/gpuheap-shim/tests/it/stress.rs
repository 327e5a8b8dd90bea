//! Everything at once: several processes with many threads each allocate, launch, copy, look at what they have and free it,
//! while calls of the driver fail, memory spills, processes are put to sleep and woken, and some are killed.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gpuheap_ledger::control::{self, Reply, Request};
use gpuheap_ledger::{HOST, Reader, Snapshot};

use crate::rig::{Driver, Rig, said};
use crate::sleeping::{Program, yields};
use crate::support::KERNELS;

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 160 * MIB;
const SPILL: u64 = 200 * MIB;
/// Turns of each of the 8 threads: with three processes some 10,000 operations.
const TURNS: u32 = 420;

struct Stressed {
    child: Child,
    socket: PathBuf,
    output: thread::JoinHandle<Vec<String>>,
}

fn start(rig: &Rig, client: &Path) -> Stressed {
    let (run, kernels) = (rig.path("run"), rig.path("kernels.ptx"));
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(&kernels, KERNELS).unwrap();
    let mut command = rig.command(Driver::Shim, client);
    command.arg("moves").arg(&kernels).arg(TURNS.to_string());
    command.env("GPUHEAP_RUN", &run).env("GPUHEAP_LEDGER", rig.path("ledger")).env("GPUHEAP_EVENTS", "0");
    command.env("GPUHEAP_BUDGET", BUDGET.to_string()).env("GPUHEAP_SPILL", SPILL.to_string());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // What comes before is not of interest; from here on it listens.
    lines.by_ref().map(Result::unwrap).find(|line| line == "ready").unwrap();
    let socket = control::socket(&run, child.id());
    let output = thread::spawn(move || lines.map(Result::unwrap).collect());
    Stressed { child, socket, output }
}

/// What a program said whose memory does not all fit, and what it left in the ledger.
#[track_caller]
fn after_spilling(what: &str, budget: u64, spill: u64) -> (String, Snapshot) {
    let rig = Rig::new();
    let (client, run, kernels) = (rig.client(), rig.path("run"), rig.path("kernels.ptx"));
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(&kernels, KERNELS).unwrap();
    let mut command = rig.command(Driver::Shim, &client);
    command.arg(what).arg(&kernels).env("GPUHEAP_RUN", &run).env("GPUHEAP_LEDGER", rig.path("ledger"));
    command.env("GPUHEAP_BUDGET", budget.to_string()).env("GPUHEAP_SPILL", spill.to_string());
    let (said, charged) = said(&mut command);
    assert_eq!(charged, "end:\n", "{said}");
    (said, Reader::open(&rig.path("ledger")).unwrap().snapshot().unwrap())
}

#[test]
fn what_kernels_use_comes_to_the_device_and_what_they_do_not_use_makes_room() {
    let (said, snapshot) = after_spilling("hot", 40 * MIB, 64 * MIB);
    assert_eq!(said.matches("alloc: 0").count(), 8, "{said}");
    let process = &snapshot.processes[0];
    // Three did not fit and are the ones that are used: they change places with three that are not.
    // On a busy machine that may look as if it had been of no use, and be undone and done again.
    let moved = (process.moved_in, process.moved_out);
    assert!(moved.0 >= 24 * MIB && moved.0 == moved.1, "{moved:?}");
    assert!(snapshot.peaks[0] == 40 * MIB && snapshot.peaks[HOST] >= 24 * MIB, "{:?}", snapshot.peaks);
}

/// While the host's memory is mapped, nothing is copied out, as the two would wait for each other, but something in. What
/// moves are made with is made once for each life of a context.
#[test]
fn the_host_s_memory_is_mapped_beside_copies_in_and_never_beside_copies_out() {
    let (said, snapshot) = after_spilling("wanders", 64 * MIB, 128 * MIB);
    assert_eq!((said.matches("alloc: 0").count(), said.matches("came: enough").count()), (24, 2), "{said}");
    assert!(said.contains("beside copies out: 0\n") && said.contains("beside copies in: some\n"), "{said}");
    // One of the program's in each life, and two others.
    assert!(said.contains("went: some\n") && said.contains("streams: 6\n"), "{said}");
    assert!(snapshot.peaks[0] <= 64 * MIB, "{:?}", snapshot.peaks);
}

/// Of what a step keeps it is not known where it will be, but when it will be met again.
#[test]
fn what_steps_use_that_are_alike_comes_and_goes_and_nothing_is_lost() {
    let (said, snapshot) = after_spilling("alike", 96 * MIB, 192 * MIB);
    assert_eq!((said.matches("alloc: 0").count(), said.contains("steps: some")), (24, true), "{said}");
    let process = &snapshot.processes[0];
    assert!(process.moved_in > 96 * MIB && process.moved_out > 96 * MIB, "{process:?}");
    assert!(snapshot.peaks[0] <= 96 * MIB, "{:?}", snapshot.peaks);
}

#[test]
fn what_leaves_may_be_copied_ahead_whatever_the_program_does_meanwhile() {
    let rig = Rig::new();
    std::fs::write(rig.path("kernels"), KERNELS).unwrap();
    let settings = [("GPUHEAP_BUDGET", (160 * MIB).to_string()), ("GPUHEAP_SPILL", (256 * MIB).to_string())];
    let mut program = Program::start(&rig, &format!("repeats {}", rig.path("kernels").display()), &settings);
    program.said("ahead");
    for _ in 0..3 {
        program.done(yields(0, false));
        thread::sleep(Duration::from_millis(300));
    }
    program.said("looked");
    let snapshot = Reader::open(&rig.path("ledger")).unwrap().snapshot().unwrap();
    assert!(snapshot.peaks[0] <= 160 * MIB && snapshot.processes[0].violations == 0, "{snapshot:?}");
    program.end();
}

/// Kernels that nobody sees launched: the graph is asked what they get.
#[test]
fn what_the_kernels_of_a_graph_use_comes_to_the_device_as_well() {
    let (said, snapshot) = after_spilling("graphs", 40 * MIB, 64 * MIB);
    assert_eq!(said.matches("alloc: 0").count(), 8, "{said}");
    let process = &snapshot.processes[0];
    let moved = (process.moved_in, process.moved_out);
    assert!(moved.0 >= 24 * MIB && moved.0 == moved.1, "{moved:?}");
}

#[test]
fn what_a_program_uses_in_turn_comes_and_goes_and_nothing_is_lost() {
    let (said, snapshot) = after_spilling("turns", 64 * MIB, 128 * MIB);
    assert_eq!((said.matches("alloc: 0").count(), said.contains("rounds: some")), (12, true), "{said}");
    let process = &snapshot.processes[0];
    // Four at a time are not there; each turn needs all of them. How long that goes on depends on the machine's pace.
    assert!(process.moved_in > 2 * 32 * MIB && process.moved_out > 2 * 32 * MIB, "{process:?}");
    assert!(snapshot.peaks[0] <= 64 * MIB, "{:?}", snapshot.peaks);
}

#[test]
fn a_free_that_fails_frees_nothing_and_one_in_a_recording_is_made_after_it() {
    let rig = Rig::new();
    let (client, run) = (rig.client(), rig.path("run"));
    std::fs::create_dir_all(&run).unwrap();
    let (bare, _) = said(rig.command(Driver::Bare, &client).arg("frees"));
    let (with, charged) = said(rig.command(Driver::Shim, &client).arg("frees").env("GPUHEAP_RUN", &run));
    assert_eq!(with, bare);
    let both = 2 * 40 * MIB;
    let expected = format!("in it: 0={both}\nstill in it: 0={both}\nafter it: 0={}\nend:\n", 40 * MIB);
    assert_eq!(charged, expected);
}

/// Asks a process for something. Nothing if it is gone.
fn ask(socket: &Path, request: Request) -> Option<Reply> {
    let mut stream = UnixStream::connect(socket).ok()?;
    control::send(&mut stream, &request).ok()?;
    control::receive(&mut stream).ok()?.parse().ok()
}

#[test]
fn contents_budget_and_figures_hold_whatever_happens_at_once() {
    let rig = Rig::new();
    let client = rig.client();
    let mut processes: Vec<Stressed> = (0..3).map(|_| start(&rig, &client)).collect();
    let (mut naps, mut refused, mut killed) = (0_u32, 0_u32, 0_u32);
    let mut dice = 12_345_u64;
    let begun = Instant::now();
    while processes.iter_mut().any(|process| process.child.try_wait().unwrap().is_none()) {
        assert!(begun.elapsed() < Duration::from_secs(100), "it goes on and on: {naps} naps, {refused} refused");
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let which = usize::try_from(dice >> 60).unwrap() % processes.len();
        let hold = (dice >> 40).is_multiple_of(4);
        match ask(&processes[which].socket, Request::Yield { keep: (dice >> 20 & 31) * MIB, hold }) {
            Some(Reply::Done(_)) => naps += 1,
            Some(Reply::Refused(_)) => refused += 1,
            None => {}
        }
        thread::sleep(Duration::from_millis(10 + (dice >> 30 & 31)));
        if hold {
            ask(&processes[which].socket, Request::Wake);
        }
        // One is killed at some point, asleep or not, and another takes its place.
        if naps / 8 > killed && killed < 2 {
            killed += 1;
            let mut victim = processes.swap_remove(which);
            victim.child.kill().unwrap();
            victim.child.wait().unwrap();
            processes.push(start(&rig, &client));
        }
    }
    assert!(naps > 10, "{naps} naps, {refused} refused");
    for mut process in processes {
        let status = process.child.wait().unwrap();
        let said = process.output.join().unwrap();
        assert!(status.success(), "{status}: {said:?}");
    }
    let snapshot = Reader::open(&rig.path("ledger")).unwrap().snapshot().unwrap();
    let most = snapshot.peaks[0];
    assert!(most > 0 && most <= BUDGET && snapshot.peaks[HOST] <= SPILL + BUDGET, "{:?}", snapshot.peaks);
    for process in &snapshot.processes {
        assert!(!process.alive, "{process:?}");
        // Those that were killed hold what they held until someone needs it; the others gave all back.
        assert_eq!(process.violations, 0, "{process:?}");
    }
    // Whoever comes next finds nothing in the way.
    let last = start(&rig, &client);
    assert_eq!(ask(&last.socket, Request::Status).map(|reply| matches!(reply, Reply::Done(_))), Some(true));
    let said = last.output.join().unwrap();
    assert!(said.last().is_some_and(|line| line.starts_with("denied some")), "{said:?}");
}
