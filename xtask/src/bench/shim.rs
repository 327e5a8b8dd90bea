//! `cargo xtask bench shim`: what the shim adds to a launch, in front of a driver that does nothing and in front of the one
//! for tests.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Bar, Limit, judge};
use crate::failure::Failure;
use crate::workspace::{self, Workspace};

/// The most nanoseconds that a launch of a dozen parameters may cost, all that is done for it taken together.
const LAUNCH_BAR: f64 = 150.0;
/// The same while some memory is on the host, when each launch is written down as well: it is a thousandth of what a step
/// takes then.
const SPILLED_BAR: f64 = 500.0;
/// The most nanoseconds that taking memory and giving it back may cost beyond the driver's own.
const ALLOCATION_BAR: f64 = 2000.0;
/// The chunks of a program of 20 GiB, and of one that has more than any card.
const CHUNKS: [&str; 2] = ["1000", "100000"];
const SHAPE: &str = "12 parameters, half addresses";

/// What a benchmark said: names and figures.
struct Figures(Vec<(String, f64)>);

impl Figures {
    fn get(&self, name: &str) -> Result<f64, Failure> {
        let found = self.0.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| *value).ok_or_else(|| Failure::new(format!("The benchmark did not say `{name}`")))
    }
}

/// Measures, prints, and with `strict` fails if a bar is missed.
pub(crate) fn run(workspace: &Workspace, strict: bool) -> Result<(), Failure> {
    workspace::run(&mut workspace.cargo([
        "build",
        "--release",
        "--locked",
        "--package",
        "gpuheap-shim",
        "--package",
        "gpuheap-fakecuda",
    ]))?;
    workspace::run(&mut workspace.cargo([BENCH, &["--no-run"]].concat()))?;
    let nothing = Pair::make(workspace, "nothing")?;
    let tests = Pair::make(workspace, "tests")?;

    println!("Nanoseconds; best of several runs");
    println!();
    let figures = ask(workspace, &[])?;
    let added = ask(workspace, &nothing.arguments("nothing"))?;
    ask(workspace, &tests.arguments("tests"))?;
    // Twice: with what happened written down, and without.
    let events = workspace.target("bench-shim").join("run");
    let allocation = |run: Option<&Path>| {
        ask_in(workspace, &nothing.arguments("allocations"), run, &[])?.get("cuMemAlloc and cuMemFree: the shim adds")
    };
    let alone = allocation(None)?;
    println!("and in a run, with events written:");
    let in_a_run = allocation(Some(&events))?;
    println!("and in a run that has gone past its budget:");
    // Twelve pieces of 8 MiB within eight.
    let past = [("GPUHEAP_BUDGET", (64 << 20).to_string()), ("GPUHEAP_SPILL", (128 << 20).to_string())];
    let spilled = ask_in(workspace, &tests.arguments("spilled"), Some(&events), &past)?;
    let spilled = spilled.get("launches while some memory is on the host: the shim adds")?;
    println!();

    let gate = added.get("cuLaunchKernel, 12 parameters: the shim adds")?;
    let mut bars = Vec::new();
    for (chunks, name) in
        CHUNKS.iter().zip(["launch, 12 parameters, 1,000 chunks: ns", "launch, 12 parameters, 100,000 chunks: ns"])
    {
        let counted = figures.get(&format!("{chunks} chunks, {SHAPE}: found and counted"))?;
        bars.push(Bar { name, value: gate + counted, limit: Limit::AtMost(LAUNCH_BAR) });
    }
    let together = figures.0.iter().find(|(name, _)| name.starts_with(&format!("1000 chunks, {SHAPE}: 8 threads")));
    let (_, together) = together.ok_or_else(|| Failure::new("The benchmark did not say what 8 threads take"))?;
    let name = "launch, the same by 8 threads at once: ns";
    bars.push(Bar { name, value: gate + together, limit: Limit::AtMost(LAUNCH_BAR) });
    bars.push(Bar { name: "allocation and free: ns", value: alone, limit: Limit::AtMost(ALLOCATION_BAR) });
    let name = "launch while some memory is on the host: ns";
    bars.push(Bar { name, value: spilled, limit: Limit::AtMost(SPILLED_BAR) });
    let name = "allocation and free in a run, two events: ns";
    bars.push(Bar { name, value: in_a_run, limit: Limit::AtMost(ALLOCATION_BAR) });
    judge(&bars, strict)
}

const BENCH: &[&str] = &["bench", "--locked", "--package", "gpuheap-shim", "--bench", "launch"];

/// Runs the benchmark and prints what it says.
fn ask(workspace: &Workspace, arguments: &[String]) -> Result<Figures, Failure> {
    ask_in(workspace, arguments, None, &[])
}

/// The same, as a program of a run whose folder that is.
fn ask_in(
    workspace: &Workspace,
    arguments: &[String],
    run: Option<&Path>,
    settings: &[(&str, String)],
) -> Result<Figures, Failure> {
    let mut command = workspace.cargo(BENCH.iter().copied());
    command.arg("--").args(arguments).envs(settings.iter().map(|(name, value)| (name, value)));
    if let Some(run) = run {
        let failed = |error| Failure::new(format!("Failed to make `{}`", run.display())).cause(error);
        // What an earlier one wrote is of no use.
        let _ = fs::remove_dir_all(run);
        fs::create_dir_all(run).map_err(failed)?;
        command.env("GPUHEAP_RUN", run).env("GPUHEAP_EVENTS", "4000000");
    }
    let said = workspace::output(&mut command)
        .ok_or_else(|| Failure::new(format!("The benchmark `launch {}` failed", arguments.join(" "))))?;
    let figures = parse(&said);
    for (name, value) in &figures.0 {
        println!("{name:<72} {value:>9.2}");
    }
    Ok(figures)
}

fn parse(said: &str) -> Figures {
    let figure = |line: &str| {
        let (name, value) = line.split_once('\t')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    Figures(said.lines().filter_map(figure).collect())
}

/// A shim in a folder with the driver that it finds there.
struct Pair {
    folder: PathBuf,
}

impl Pair {
    fn make(workspace: &Workspace, kind: &str) -> Result<Self, Failure> {
        let folder = workspace.target("bench-shim").join(kind);
        let pair = Self { folder };
        let failed = |error| Failure::new(format!("Failed to fill `{}`", pair.folder.display())).cause(error);
        fs::create_dir_all(&pair.folder).map_err(failed)?;
        fs::copy(workspace.target("release/libgpuheap_shim.so"), pair.shim()).map_err(failed)?;
        match kind {
            "nothing" => {
                let source = workspace.path("crates/gpuheap-shim/benches/launch/null.c");
                let mut compiler = workspace.command("cc");
                compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(pair.driver()).arg(source);
                workspace::run(&mut compiler)?;
            }
            _ => {
                fs::copy(workspace.target("release/libgpuheap_fakecuda.so"), pair.driver()).map_err(failed)?;
            }
        }
        Ok(pair)
    }

    fn shim(&self) -> PathBuf {
        self.folder.join("libcuda.so.1")
    }

    fn driver(&self) -> PathBuf {
        self.folder.join("libcuda-real.so")
    }

    fn arguments(&self, what: &str) -> [String; 3] {
        [what.to_owned(), self.shim().display().to_string(), self.driver().display().to_string()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_a_name_and_a_value() {
        let figures = parse("running\nfind: any chunk\t2.5\nodd\tx\n");
        assert_eq!(figures.get("find: any chunk").ok(), Some(2.5));
        assert!(figures.get("odd").is_err());
    }
}
