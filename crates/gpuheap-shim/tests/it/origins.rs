//! Memory is charged to the library that asked for it, and the run's files say what happened.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gpuheap_explain::{MomentName, PartKind};
use gpuheap_import::driver_events::{self, Seen};
use gpuheap_ledger::events::{self, Events, Record, What};
use gpuheap_ledger::{Kind, ORIGINS, Origin, Reader};

use crate::rig::{Driver, Rig};

/// Libraries by the names of those that programs have.
struct Askers {
    rig: Rig,
    program: PathBuf,
}

impl Askers {
    fn new() -> Self {
        let rig = Rig::new();
        for (name, text) in [
            ("driver.h", include_str!("client/driver.h")),
            ("asker.c", include_str!("client/asker.c")),
            ("askers.c", include_str!("client/askers.c")),
        ] {
            fs::write(rig.path(name), text).unwrap();
        }
        let program = rig.path("askers");
        compile(&[&rig.path("askers.c")], &program, &["-ldl", "-pthread"]);
        fs::create_dir(rig.path("libraries")).unwrap();
        fs::create_dir(rig.path("run")).unwrap();
        let askers = Self { rig, program };
        askers.library("libcudart.so.12", &["-DRUNTIME"]);
        askers
    }

    fn library(&self, name: &str, options: &[&str]) -> String {
        // Compiled once; a file of another name is another library.
        let made = self.rig.path(&format!("asker{}.so", options.concat()));
        if !made.exists() {
            compile(&[&self.rig.path("asker.c")], &made, &[&["-shared", "-fPIC", "-ldl"], options].concat());
        }
        let path = self.rig.path("libraries").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(made, &path).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn command(&self, steps: &[String]) -> Command {
        let mut command = self.rig.command(Driver::Shim, &self.program);
        let folders = [self.rig.driver_folder(Driver::Shim), self.rig.path("libraries")];
        command.env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap());
        command
            .env("GPUHEAP_LEDGER", self.rig.path("ledger"))
            .env("GPUHEAP_RUN", self.rig.path("run"))
            .env("GPUHEAP_MOVE", "0");
        command.args(steps).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// What the first device's memory is charged to, by number, once the program did its steps.
    fn held(&self, steps: &[String]) -> [u64; ORIGINS] {
        let mut child = Waiting(self.command(steps).spawn().unwrap());
        let said = child.ready();
        assert!(said.iter().all(|line| line.ends_with(": 0")), "{said:?}");
        let snapshot = Reader::open(&self.rig.path("ledger")).unwrap().snapshot().unwrap();
        let process = snapshot.living().next().unwrap();
        assert_eq!(process.origins[0].iter().sum::<u64>(), process.limited[0]);
        process.origins[0]
    }

    /// By process, as far as their files have begun.
    fn events(&self) -> Vec<Events> {
        let files = events::files(&self.rig.path("run")).unwrap();
        files.iter().filter_map(|file| events::read(file).ok()).collect()
    }
}

fn compile(sources: &[&Path], output: &Path, options: &[&str]) {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-o"]).arg(output).args(sources).args(options);
    assert!(compiler.status().unwrap().success());
}

/// A program that waits for the end of its input.
struct Waiting(Child);

impl Waiting {
    fn ready(&mut self) -> Vec<String> {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut said = Vec::new();
        for line in lines {
            if line == "ready" {
                // The first line is how many devices there are, without a code.
                return said;
            }
            said.push(line);
        }
        panic!("it ended: {said:?}")
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn only(held: [u64; ORIGINS]) -> Vec<(Origin, u64)> {
    Origin::ALL.into_iter().zip(held).filter(|(_, bytes)| *bytes > 0).collect()
}

const KNOWN: [(&str, Origin); 16] = [
    ("libc10_cuda.so", Origin::PyTorch),
    ("libtorch_cuda.so", Origin::PyTorch),
    ("xla_cuda_plugin.so", Origin::Xla),
    ("libtensorflow_cc.so.2", Origin::TensorFlow),
    ("cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so", Origin::CuPy),
    ("cuda/bindings/cydriver.so", Origin::CudaPython),
    ("libffi.so.8", Origin::CudaPython),
    ("libtriton.so", Origin::Triton),
    ("libcublas.so.12", Origin::CuBlas),
    ("libcublasLt.so.12", Origin::CuBlas),
    ("libcudnn_graph.so.9", Origin::CuDnn),
    ("libcufft.so.11", Origin::CuFft),
    ("libcusparse.so.12", Origin::CuSparse),
    ("libcusolver.so.11", Origin::CuSolver),
    ("libcurand.so.10", Origin::CuRand),
    ("libsomething.so", Origin::Other),
];

#[test]
fn each_library_is_charged_with_what_it_asked_for_through_the_runtime_or_with_one_inside() {
    let askers = Askers::new();
    for options in [[].as_slice(), &["-DDIRECT"]] {
        let (mut steps, mut expected) = (vec!["own=4096".to_owned()], [0; ORIGINS]);
        expected[Origin::Program.number()] = 4096;
        for (number, (name, origin)) in (1_u64..).zip(KNOWN) {
            let library = askers.library(name, options);
            // The second time on, a way is known.
            for time in 0..3 {
                let bytes = (number << 20) + time;
                steps.push(format!("{library}={bytes}"));
                expected[origin.number()] += bytes;
            }
        }
        assert_eq!(only(askers.held(&steps)), only(expected), "{options:?}");
    }
}

#[test]
fn frames_of_any_size_in_between_change_nothing() {
    let askers = Askers::new();
    let steps = |library: &str| {
        let sizes = [0, 0, 100, 0, 5000, 100, 100, 70_000, 0, 0];
        sizes.map(|more| format!("{library}=1000,{more}"))
    };
    let (first, second) = (askers.library("libcublas.so.12", &[]), askers.library("libnccl.so.2", &["-DDIRECT"]));
    let all: Vec<String> = steps(&first).into_iter().chain(steps(&second)).chain(steps(&first)).collect();
    assert_eq!(only(askers.held(&all)), [(Origin::CuBlas, 20_000), (Origin::Nccl, 10_000)]);
}

#[test]
fn where_the_stack_cannot_be_walked_nobody_is_charged_or_whoever_called() {
    let without = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer"];
    let askers = Askers::new();
    let direct = askers.library("libnccl.so.2", &[&["-DDIRECT"], without.as_slice()].concat());
    let through = askers.library("libcublas.so.12", &[]);
    askers.library("libcudart.so.12", &[&["-DRUNTIME"], without.as_slice()].concat());
    let steps = [format!("{direct}=1000"), format!("{through}=2000"), format!("{direct}=10"), format!("{through}=20")];
    assert_eq!(only(askers.held(&steps)), [(Origin::Unknown, 2020), (Origin::Nccl, 1010)]);
}

#[test]
fn what_takes_the_place_of_a_closed_library_is_told_from_it() {
    let askers = Askers::new();
    let (first, second) =
        (askers.library("libcufft.so.11", &["-DDIRECT"]), askers.library("libnccl.so.2", &["-DDIRECT"]));
    let turn = [format!("{first}=1000"), "close".to_owned(), format!("{second}=10"), "close".to_owned()];
    let steps: Vec<String> = (0..5).flat_map(|_| turn.clone()).collect();
    assert_eq!(only(askers.held(&steps)), [(Origin::CuFft, 5000), (Origin::Nccl, 50)]);
}

#[test]
fn threads_are_told_from_one_another() {
    let askers = Askers::new();
    let (first, second) = (askers.library("libcublas.so.12", &[]), askers.library("libnccl.so.2", &["-DDIRECT"]));
    let steps = [format!("threads={first}"), format!("threads={second}"), format!("threads={first}")];
    assert_eq!(only(askers.held(&steps)), [(Origin::CuBlas, 8000), (Origin::Nccl, 4000)]);
}

#[test]
fn the_run_s_file_says_what_happened_and_a_killed_program_s_is_whole() {
    let askers = Askers::new();
    let (first, second) = (askers.library("libcublas.so.12", &[]), askers.library("libnccl.so.2", &["-DDIRECT"]));
    let steps = [
        format!("{first}=1000"),
        format!("{second}=3000"),
        "free".to_owned(),
        // More than there is: the driver refuses, so it never was.
        format!("{second}={}", 1_u64 << 42),
        "own=20".to_owned(),
        "die".to_owned(),
    ];
    let status = askers.command(&steps).status().unwrap();
    assert_eq!(status.signal(), Some(9));
    let all = askers.events();
    assert_eq!(all.len(), 1);
    let Events { program, records, torn, missed, .. } = &all[0];
    assert!(program.starts_with("askers") && (*torn, *missed) == (0, 0), "{:?}", all[0]);
    // The driver is asked for the size of the device once, after the first.
    let size = records[1];
    assert_eq!((size.what, size.device), (What::Size, 0));
    assert!(size.address > 0 && size.address < size.bytes);
    let records: Vec<Record> = records.iter().filter(|record| record.what != What::Size).copied().collect();
    let about: Vec<_> = records.iter().map(|Record { what, origin, bytes, .. }| (*what, *origin, *bytes)).collect();
    let expected = [
        (What::Take, Origin::CuBlas, 1000),
        (What::Take, Origin::Nccl, 3000),
        (What::GiveBack, Origin::Nccl, 3000),
        (What::Take, Origin::Program, 20),
    ];
    assert_eq!(about, expected);
    assert!(records.iter().all(|record| record.kind == Kind::Linear && record.device == 0));
    assert_eq!(records[1].charge, records[2].charge);
    assert!(records[0].address != 0 && records[0].address != records[1].address);
    assert!(records.is_sorted_by_key(|record| record.time_us));
}

#[test]
fn a_program_that_is_killed_while_its_threads_write_leaves_at_most_their_last_records_torn() {
    let askers = Askers::new();
    let library = askers.library("libnccl.so.2", &["-DDIRECT"]);
    let mut child = askers.command(&vec![format!("threads={library}"); 1000]).spawn().unwrap();
    while askers.events().first().is_none_or(|events| events.records.len() <= 20_000) {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let events = askers.events().remove(0);
    assert!(events.records.len() > 20_000 && events.torn <= 8, "{} torn", events.torn);
    let mut alive = BTreeMap::new();
    for Record { what, charge, bytes, .. } in events.records {
        let known = match what {
            What::Take => alive.insert(charge, bytes).is_none(),
            What::GiveBack => alive.remove(&charge) == Some(bytes),
            What::Size => true,
            other => panic!("{other:?}"),
        };
        assert!(known, "charge {charge}");
    }
    // Half of what a thread takes it gives back.
    assert!(alive.len() > 5000);
}

#[test]
fn the_recording_of_a_run_explains_what_the_ledger_says() {
    // With large memory in one piece, and as chunks that can move.
    for moving in ["0", "1"] {
        explains_what_the_ledger_says(moving);
    }
}

fn explains_what_the_ledger_says(moving: &str) {
    let askers = Askers::new();
    let (blas, nccl) = (askers.library("libcublas.so.12", &[]), askers.library("libnccl.so.2", &["-DDIRECT"]));
    let torch = askers.library("libc10_cuda.so", &[]);
    let steps = [
        format!("{torch}={}", 40 << 20),
        "free".to_owned(),
        format!("{torch}={}", 20 << 20),
        format!("{blas}={}", (8 << 20) + 1000),
        format!("{nccl}={}", 4 << 20),
        "own=5000".to_owned(),
    ];
    let other = [format!("{torch}={}", 2 << 20)];
    let mut processes = [&steps[..], &other].map(|steps| {
        let mut command = askers.command(steps);
        Waiting(command.env("GPUHEAP_MOVE", moving).spawn().unwrap())
    });
    for process in &mut processes {
        process.ready();
    }
    let ledger = Reader::open(&askers.rig.path("ledger")).unwrap().snapshot().unwrap();
    let recording = driver_events::read(&askers.rig.path("run"), &Seen::default()).unwrap();
    assert_eq!(recording.notes, []);
    let options = gpuheap_explain::Options { at: Some(MomentName::End), ..Default::default() };
    let report = gpuheap_explain::explain(&recording, &options).unwrap();

    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    for (origin, bytes) in ledger.living().flat_map(|process| Origin::ALL.into_iter().zip(process.origins[0])) {
        *held.entry(origin.title()).or_default() += bytes;
    }
    held.retain(|_, bytes| *bytes > 0);
    let libraries = report.ledger.iter().filter(|part| part.kind == PartKind::Class);
    let told = libraries.map(|part| (part.part.as_str(), part.bytes.get())).collect::<BTreeMap<_, _>>();
    assert_eq!(told, held);
    let all: u64 = held.values().sum();
    assert_eq!(ledger.used(0), all);
    // Closed to what the driver says the device has.
    let total = recording.device_memory[0].total;
    assert_eq!(report.ledger.iter().map(|part| part.bytes.get()).sum::<u64>(), total);
    let outside = report.ledger.iter().filter(|part| part.kind == PartKind::Outside).map(|part| part.bytes.get());
    assert_eq!(total - outside.sum::<u64>(), all.next_multiple_of(512));
    assert!(report.replay.exact && report.source.notes.is_empty(), "{:?}", report.source.notes);
    if let Ok(path) = std::env::var("RECORDING") {
        gpuheap_record::file::write(&recording, fs::File::create(path).unwrap()).unwrap();
    }
}

#[test]
fn a_request_that_the_budget_refused_is_an_oom_of_whoever_asked() {
    let askers = Askers::new();
    let (blas, torch) = (askers.library("libcublas.so.12", &[]), askers.library("libc10_cuda.so", &[]));
    let steps = [format!("{torch}={}", 40 << 20), format!("{blas}={}", 20 << 20)];
    let mut command = askers.command(&steps);
    let mut process = Waiting(command.env("GPUHEAP_BUDGET", (50 << 20).to_string()).spawn().unwrap());
    let said = process.ready();
    assert!(said.last().unwrap().ends_with("libcublas.so.12: 2"), "{said:?}");
    let recording = driver_events::read(&askers.rig.path("run"), &Seen::default()).unwrap();
    let report = gpuheap_explain::explain(&recording, &gpuheap_explain::Options::default()).unwrap();
    assert!(report.verdict.headline.ends_with("the program holds too much, by cuBLAS"), "{}", report.verdict.headline);
    let evidence = &report.findings[0].evidence;
    for said in ["the budget had 10.0 MiB left", "what fills it: PyTorch 40.0 MiB (100 %)"] {
        assert!(evidence.iter().any(|sentence| sentence == said), "{evidence:?}");
    }
    let oom = report.oom.unwrap();
    assert_eq!((oom.asked_bytes.get(), oom.device_free_bytes.get()), (20 << 20, 10 << 20));
    assert_eq!(oom.holders[0].label, "PyTorch");
}
