//! `gpuheap yield`: a process moves its memory to the host.

use std::path::Path;
use std::process::ExitCode;

use gpuheap_ledger::State;
use gpuheap_ledger::control::{Done, Request};
use gpuheap_record::Bytes;
use serde::Serialize;

use crate::cli::Yield;
use crate::errors::Error;
use crate::output;
use crate::progress::Progress;
use crate::run::ask::Target;

/// What a process did, as JSON.
#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    pid: u32,
    state: &'static str,
    bytes: u64,
    host_bytes: u64,
    moved_bytes: u64,
    kept_bytes: u64,
    seconds: f64,
    bytes_per_second: Option<f64>,
}

pub(super) fn run(arguments: &Yield) -> Result<ExitCode, Error> {
    let request = Request::Yield { keep: arguments.keep.get(), hold: arguments.hold };
    let (process, done) = ask(arguments.pid, request, arguments.json)?;
    if arguments.json {
        return print_json("gpuheap.yield/1", process, &done);
    }
    let left = if done.bytes > 0 { format!(", {} left on devices", Bytes::new(done.bytes)) } else { String::new() };
    print(&format!("{process} {}: {}{left}\n", state(done.state), moved(&done, "to the host")))
}

/// Asks a process, with a line on the terminal while it takes long.
pub(super) fn ask(process: u32, request: Request, quiet: bool) -> Result<(u32, Done), Error> {
    let target = Target::find(process).map_err(Error::Run)?;
    let mut progress = Progress::new(Path::new("-"), quiet);
    let done = target.ask(request, |moved| progress.moved(moved)).map_err(Error::Run)?;
    progress.clear();
    Ok((target.process(), done))
}

/// How much was moved, in which time.
pub(super) fn moved(done: &Done, place: &str) -> String {
    let bytes = Bytes::new(done.moved);
    match speed(done) {
        Some(speed) => format!("{bytes} moved {place} in {:.2} s ({:.1} GB/s)", done.seconds, speed / 1e9),
        None => format!("{bytes} moved {place}"),
    }
}

/// What it does now, after its number.
pub(super) fn state(state: State) -> &'static str {
    match state {
        State::Running => "is running",
        State::GoingToSleep => "is going to sleep",
        State::Asleep => "is asleep",
        State::Held => "is asleep until it is woken",
        State::Waking => "is waking",
    }
}

/// Bytes in a second.
fn speed(done: &Done) -> Option<f64> {
    (done.moved > 0 && done.seconds > 0.0).then(|| done.moved as f64 / done.seconds)
}

pub(super) fn print_json(schema: &'static str, process: u32, done: &Done) -> Result<ExitCode, Error> {
    let answer = Answer {
        schema,
        pid: process,
        state: done.state.name(),
        bytes: done.bytes,
        host_bytes: done.host,
        moved_bytes: done.moved,
        kept_bytes: done.kept,
        seconds: done.seconds,
        bytes_per_second: speed(done),
    };
    let text = serde_json::to_string_pretty(&answer).map_err(|error| Error::Print(error.into()))?;
    print(&(text + "\n"))
}

pub(super) fn print(text: &str) -> Result<ExitCode, Error> {
    output::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
