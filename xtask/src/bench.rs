//! `cargo xtask bench`: `gpuheap explain` against CPython's own reader, and the speed of replays under other settings, on
//! files that everyone can make. `cargo xtask bench shim`: what the shim costs a program.

pub(crate) mod fit;
mod serve;
pub(crate) mod shim;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::fixtures;
use crate::workspace::{self, Workspace};

const RUNS: usize = 3;
const SMALL_EVENTS: u64 = 1_000_000;
const LARGE_EVENTS: u64 = 4_000_000;

/// The least that `explain` must be faster than `pickle.load` by.
const SPEED_BAR: f64 = 7.0;
/// The most memory that `explain` may take, in sizes of the file.
const MEMORY_BAR: f64 = 2.5;
/// The most that four times the events may take, in times of the smaller file.
const GROWTH_BAR: f64 = 4.5;

/// The least events a second, in millions, that one core replays with native and with expandable segments.
const NATIVE_BAR: f64 = 5.0;
const EXPANDABLE_BAR: f64 = 3.0;
/// The most seconds that a search over settings may take on all cores.
const SEARCH_BAR: f64 = 3.0;
/// The most seconds that the page of a million events may take on all cores, and its most megabytes.
const PAGE_BAR: f64 = 3.0;
const PAGE_SIZE_BAR: f64 = 2.0;
/// Replays from which the time of one is told.
const REPLAYS: usize = 12;

/// How often a running program's memory is looked at.
const POLL: Duration = Duration::from_millis(2);

/// Prints seconds of `pickle.load` alone, and the peak of resident memory in bytes.
const PICKLE_LOAD: &str = "
import pickle, resource, sys, time
with open(sys.argv[1], 'rb') as file:
    start = time.perf_counter()
    snapshot = pickle.load(file)
    seconds = time.perf_counter() - start
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
";

/// What one program took, the best of several runs.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Measured {
    seconds: f64,
    /// The most resident memory, where the system tells.
    peak_bytes: Option<u64>,
}

impl Measured {
    fn best(runs: impl IntoIterator<Item = Self>) -> Option<Self> {
        runs.into_iter().min_by(|one, other| one.seconds.total_cmp(&other.seconds))
    }
}

/// Measures, prints, and with `strict` fails if a bar is missed.
pub(crate) fn run(workspace: &Workspace, strict: bool) -> Result<(), Failure> {
    workspace::run(&mut workspace.cargo(["build", "--release", "--locked", "--package", "gpuheap"]))?;
    let binary = workspace.target("release").join(format!("gpuheap{}", std::env::consts::EXE_SUFFIX));
    let folder = workspace.target("fixtures");
    let small = fixtures::ensure(&folder, SMALL_EVENTS, 1)?;
    let large = fixtures::ensure(&folder, LARGE_EVENTS, 1)?;
    let huge = fixtures::ensure(&folder, serve::EVENTS, 1)?;
    let pin = Pin::find();

    let load = pickle_load(workspace, pin, &small)?;
    let explain_small = explain(workspace, pin, &binary, &small)?;
    let explain_large = explain(workspace, pin, &binary, &large)?;
    let native = replay_rate(workspace, pin, &binary, &small, "backend:native")?;
    let expandable = replay_rate(workspace, pin, &binary, &small, "expandable_segments:True")?;
    let search = best(|| {
        let mut command = workspace.command(&binary);
        command.arg("whatif").arg(&small).arg("--json");
        command
    })?;
    let page = workspace.target("fixtures/page.html");
    let written = best(|| {
        let mut command = workspace.command(&binary);
        command.arg("explain").arg(&small).arg("--html").arg(&page);
        command
    })?;
    let [small_bytes, large_bytes] = [file_bytes(&small)?, file_bytes(&large)?];

    println!("Best of {RUNS} runs, {}", pin.description());
    println!();
    println!("{:<28} {:>10} {:>10} {:>12} {:>8}", "", "file", "time", "peak memory", "/ file");
    if let Some(load) = load {
        println!("{}", row("pickle.load, 1 M events", small_bytes, load));
    }
    println!("{}", row("gpuheap explain, 1 M events", small_bytes, explain_small));
    println!("{}", row("gpuheap explain, 4 M events", large_bytes, explain_large));
    println!("{}", row("gpuheap whatif, all cores", small_bytes, search));
    println!("{}", row("gpuheap explain --html, all", small_bytes, written));
    println!();

    let mut bars = Vec::new();
    match load {
        Some(load) => bars.push(Bar {
            name: "explain, 1 M: times faster than pickle.load",
            value: load.seconds / explain_small.seconds,
            limit: Limit::AtLeast(SPEED_BAR),
        }),
        None => println!("python3 is not to be had: explain is not compared with pickle.load"),
    }
    for (name, measured, bytes) in [
        ("explain, 1 M: peak memory / file", explain_small, small_bytes),
        ("explain, 4 M: peak memory / file", explain_large, large_bytes),
    ] {
        match measured.peak_bytes {
            Some(peak) => bars.push(Bar { name, value: peak as f64 / bytes as f64, limit: Limit::AtMost(MEMORY_BAR) }),
            None => println!("this system does not tell a program's peak memory: it is not compared with the file"),
        }
    }
    bars.push(Bar {
        name: "explain, 4 M: time / time of 1 M",
        value: explain_large.seconds / explain_small.seconds,
        limit: Limit::AtMost(GROWTH_BAR),
    });
    for (name, value, bar) in [
        ("whatif: million events/s, native segments", native, NATIVE_BAR),
        ("whatif: million events/s, expandable", expandable, EXPANDABLE_BAR),
    ] {
        bars.push(Bar { name, value, limit: Limit::AtLeast(bar) });
    }
    let name = "whatif, 1 M: seconds for a whole search";
    bars.push(Bar { name, value: search.seconds, limit: Limit::AtMost(SEARCH_BAR) });
    let name = "explain --html, 1 M: seconds";
    bars.push(Bar { name, value: written.seconds, limit: Limit::AtMost(PAGE_BAR) });
    let name = "explain --html, 1 M: megabytes of the file";
    bars.push(Bar { name, value: file_bytes(&page)? as f64 / 1e6, limit: Limit::AtMost(PAGE_SIZE_BAR) });
    bars.extend(serve::run(workspace, pin, &binary, &huge)?);
    judge(&bars, strict)
}

/// Prints the bars, and with `strict` fails if one is missed.
fn judge(bars: &[Bar], strict: bool) -> Result<(), Failure> {
    for bar in bars {
        println!("{bar}");
    }
    let missed = bars.iter().filter(|bar| !bar.met()).count();
    if strict && missed > 0 {
        return Err(Failure::new(format!("{missed} of {} bars missed", bars.len())));
    }
    Ok(())
}

/// One promise and what came of it.
struct Bar {
    name: &'static str,
    value: f64,
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    fn met(&self) -> bool {
        match self.limit {
            Limit::AtLeast(limit) => self.value >= limit,
            Limit::AtMost(limit) => self.value <= limit,
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, limit) = match self.limit {
            Limit::AtLeast(limit) => ("≥", limit),
            Limit::AtMost(limit) => ("≤", limit),
        };
        let verdict = if self.met() { "ok" } else { "MISSED" };
        write!(formatter, "{:<44} {:>6.2}   bar {sign} {limit:.1}   {verdict}", self.name, self.value)
    }
}

/// How the measured programs are held on one core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pin {
    Taskset,
    None,
}

impl Pin {
    fn find() -> Self {
        if workspace::succeeds(Command::new("taskset").args(["-c", "0", "true"])) { Self::Taskset } else { Self::None }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Taskset => "each on core 0",
            Self::None => "on any core (taskset is not to be had)",
        }
    }

    fn command(self, workspace: &Workspace, program: impl AsRef<OsStr>) -> Command {
        self.on("0", workspace, program)
    }

    /// On two cores.
    fn pair(self, workspace: &Workspace, program: impl AsRef<OsStr>) -> Command {
        self.on("0,1", workspace, program)
    }

    fn on(self, cores: &str, workspace: &Workspace, program: impl AsRef<OsStr>) -> Command {
        match self {
            Self::Taskset => {
                // It replaces itself by the program, so the process is the program's.
                let mut command = workspace.command("taskset");
                command.args(["-c", cores]).arg(program);
                command
            }
            Self::None => workspace.command(program),
        }
    }
}

/// Measures `pickle.load`; nothing if there is no Python.
fn pickle_load(workspace: &Workspace, pin: Pin, file: &Path) -> Result<Option<Measured>, Failure> {
    if !workspace::succeeds(Command::new("python3").arg("--version")) {
        return Ok(None);
    }
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let mut command = pin.command(workspace, "python3");
        let printed = workspace::output(command.args(["-c", PICKLE_LOAD]).arg(file));
        let measured = printed.as_deref().and_then(parse_pickle_load);
        runs.push(measured.ok_or_else(|| Failure::new(format!("`pickle.load` failed to read `{}`", file.display())))?);
    }
    Ok(Measured::best(runs))
}

fn parse_pickle_load(printed: &str) -> Option<Measured> {
    let (seconds, bytes) = printed.trim().split_once(' ')?;
    Some(Measured { seconds: seconds.parse().ok()?, peak_bytes: bytes.parse().ok() })
}

/// Measures `gpuheap explain FILE --json`, from the start of the process to its end.
fn explain(workspace: &Workspace, pin: Pin, binary: &Path, file: &Path) -> Result<Measured, Failure> {
    best(|| {
        let mut command = pin.command(workspace, binary);
        command.arg("explain").arg(file).arg("--json");
        command
    })
}

/// Millions of events a second that one core replays under `conf`: from what more replays of the same take.
fn replay_rate(workspace: &Workspace, pin: Pin, binary: &Path, file: &Path, conf: &str) -> Result<f64, Failure> {
    let with = |replays: usize| {
        best(|| {
            let mut command = pin.command(workspace, binary);
            command.arg("whatif").arg(file).arg("--json");
            // Settings that are written alike are replayed once.
            for index in 0..replays {
                command.args(["--conf", &format!("{conf}{}", " ".repeat(index))]);
            }
            command
        })
    };
    let seconds = with(1 + REPLAYS)?.seconds - with(1)?.seconds;
    Ok(SMALL_EVENTS as f64 * REPLAYS as f64 / seconds.max(f64::MIN_POSITIVE) / 1e6)
}

/// The best of several runs of a command, from the start of the process to its end.
fn best(command: impl Fn() -> Command) -> Result<Measured, Failure> {
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(measure(command().stdin(Stdio::null()).stdout(Stdio::null()))?);
    }
    Measured::best(runs).ok_or_else(|| Failure::new("Nothing was measured"))
}

fn measure(command: &mut Command) -> Result<Measured, Failure> {
    let start = Instant::now();
    let mut child = command.spawn().map_err(|error| workspace::not_started(command, error))?;
    let status = format!("/proc/{}/status", child.id());
    let ended = AtomicBool::new(false);
    let (result, peak_bytes) = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = None;
            while !ended.load(Ordering::Relaxed) {
                // The system keeps the peak, so only growth in the last moments can be missed.
                peak = peak.max(fs::read_to_string(&status).ok().and_then(|text| peak_of(&text)));
                thread::sleep(POLL);
            }
            peak
        });
        let result = child.wait().map(|status| (status, start.elapsed()));
        ended.store(true, Ordering::Relaxed);
        (result, watcher.join().unwrap_or(None))
    });
    let (status, elapsed) =
        result.map_err(|error| Failure::new("Failed to wait for `gpuheap explain`").cause(error))?;
    if !status.success() {
        return Err(Failure::new("`gpuheap explain` failed").cause(status));
    }
    Ok(Measured { seconds: elapsed.as_secs_f64(), peak_bytes })
}

/// The peak of resident memory in a process's status.
fn peak_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

fn file_bytes(file: &Path) -> Result<u64, Failure> {
    let failed = |error| Failure::new(format!("Failed to read snapshot `{}`", file.display())).cause(error);
    fs::metadata(file).map(|metadata| metadata.len()).map_err(failed)
}

fn row(name: &str, file_bytes: u64, measured: Measured) -> String {
    let file = mebibytes(file_bytes);
    let (peak, ratio) = measured.peak_bytes.map_or_else(
        || ("-".to_owned(), "-".to_owned()),
        |peak| (mebibytes(peak), format!("{:.2}", peak as f64 / file_bytes as f64)),
    );
    format!("{name:<28} {file:>10} {:>8.3} s {peak:>12} {ratio:>8}", measured.seconds)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_from_a_status() {
        let status = "Name:\tgpuheap\nVmPeak:\t  999999 kB\nVmHWM:\t  305152 kB\nVmRSS:\t  1000 kB\n";
        assert_eq!(peak_of(status), Some(305_152 * 1024));
        assert_eq!(peak_of("Name:\tgpuheap\n"), None);
    }

    #[test]
    fn python_tells_seconds_and_bytes() {
        assert_eq!(parse_pickle_load("3.75 1048576\n"), Some(Measured { seconds: 3.75, peak_bytes: Some(1 << 20) }));
        assert_eq!(parse_pickle_load("Traceback"), None);
    }

    #[test]
    fn the_best_run_counts() {
        let run = |seconds| Measured { seconds, peak_bytes: None };
        assert_eq!(Measured::best([run(2.0), run(1.5), run(1.7)]), Some(run(1.5)));
    }

    #[test]
    fn bars_have_a_direction() {
        let bar = |limit| Bar { name: "x", value: 3.0, limit };
        assert!(bar(Limit::AtLeast(3.0)).met() && bar(Limit::AtMost(3.0)).met());
        assert!(!bar(Limit::AtLeast(3.1)).met() && !bar(Limit::AtMost(2.9)).met());
        assert!(bar(Limit::AtLeast(7.0)).to_string().ends_with("3.00   bar ≥ 7.0   MISSED"));
    }

    #[test]
    fn a_row_names_file_time_and_memory() {
        let measured = Measured { seconds: 0.5, peak_bytes: Some(300 << 20) };
        let row = row("explain", 200 << 20, measured);
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["explain", "200", "MiB", "0.500", "s", "300", "MiB", "1.50"]
        );
    }
}
