//! `cargo xtask fixtures`: synthetic snapshots for benchmarks, the same for everyone, without Python.
//!
//! An imagined training program (`program`) allocates from a small copy of PyTorch's allocator (`allocator`), so that
//! addresses, segments and final blocks fit the events. The result is written (`snapshot`, `pickle`) as CPython would.

mod allocator;
mod heap;
mod pickle;
mod program;
mod random;
mod snapshot;
mod stacks;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use self::heap::Event;
use self::program::Program;
use self::snapshot::SnapshotWriter;
use crate::failure::Failure;
use crate::workspace::Workspace;

/// What the content of a fixture depends on. A fixture made by other sources is out of date.
const SOURCES: [&str; 8] = [
    include_str!("fixtures.rs"),
    include_str!("fixtures/allocator.rs"),
    include_str!("fixtures/heap.rs"),
    include_str!("fixtures/pickle.rs"),
    include_str!("fixtures/program.rs"),
    include_str!("fixtures/random.rs"),
    include_str!("fixtures/snapshot.rs"),
    include_str!("fixtures/stacks.rs"),
];

/// Below this there is not even one step of the shallowest model.
const FEWEST_EVENTS: u64 = 1000;

/// Writes the fixture unless it is there, and prints where it is.
pub(crate) fn run(workspace: &Workspace, out: Option<&Path>, events: u64, seed: u64) -> Result<(), Failure> {
    let folder = out.map_or_else(|| workspace.target("fixtures"), Path::to_path_buf);
    let path = ensure(&folder, events, seed)?;
    println!("{}", path.display());
    Ok(())
}

/// The path of the fixture of at least `events` events, which is written if there is none or an outdated one.
pub(crate) fn ensure(folder: &Path, events: u64, seed: u64) -> Result<PathBuf, Failure> {
    if events < FEWEST_EVENTS {
        return Err(Failure::usage(format!(
            "Failed to make a snapshot of {events} events: the least is {FEWEST_EVENTS}"
        )));
    }
    let name = if seed == 1 { format!("training-{events}") } else { format!("training-{events}-seed{seed}") };
    let path = folder.join(format!("{name}.pickle"));
    let stamp = folder.join(format!("{name}.stamp"));
    let version = format!("{:016x}\n", SOURCES.iter().fold(HASH_START, |hash, source| hashed(hash, source.as_bytes())));
    if path.exists() && fs::read_to_string(&stamp).is_ok_and(|text| text == version) {
        eprintln!("`{}` is up to date", path.display());
        return Ok(path);
    }
    let failed = |error: io::Error| Failure::new(format!("Failed to write snapshot `{}`", path.display())).cause(error);
    fs::create_dir_all(folder).map_err(failed)?;
    let unfinished = folder.join(format!("{name}.unfinished"));
    let written = write_file(&unfinished, events, seed).map_err(failed)?;
    fs::rename(&unfinished, &path).map_err(failed)?;
    fs::write(&stamp, version).map_err(failed)?;
    let bytes = fs::metadata(&path).map_err(failed)?.len();
    eprintln!("Wrote `{}`: {written} events, {bytes} bytes", path.display());
    Ok(path)
}

fn write_file(path: &Path, events: u64, seed: u64) -> io::Result<u64> {
    let mut output = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let written = write(&mut output, events, seed)?;
    output.flush()?;
    Ok(written)
}

/// Writes the snapshot and says how many events it has: those of the whole steps that it takes to reach `events`.
///
/// A snapshot starts with the state at the end. So the program runs twice: first to its end, then again with its
/// events written as they come, which keeps no more than one step of them in memory.
fn write<W: Write>(output: W, events: u64, seed: u64) -> io::Result<u64> {
    let mut last = Program::start(events, seed);
    simulate(&mut last, events, |_| Ok(()))?;
    let mut program = Program::start(events, seed);
    let stacks = last.stacks().clone();
    let mut writer = SnapshotWriter::new(output, &stacks)?;
    writer.segments(last.heap())?;
    let mut trace = writer.begin_trace()?;
    let written = simulate(&mut program, events, |event| writer.event(&mut trace, event))?;
    writer.end_trace(trace, program.annotations())?;
    Ok(written)
}

/// Runs the program until it has caused `events` events and its step is over.
fn simulate(program: &mut Program, events: u64, mut each: impl FnMut(&Event) -> io::Result<()>) -> io::Result<u64> {
    let mut count = 0;
    loop {
        for event in program.heap().take_events() {
            each(&event)?;
            count += 1;
        }
        if count >= events {
            return Ok(count);
        }
        program.step();
    }
}

const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a: good enough to see that a source has changed.
fn hashed(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixture_is_whole_and_always_the_same() {
        let snapshot = |seed| {
            let mut bytes = Vec::new();
            let events = write(&mut bytes, 5000, seed).unwrap();
            (events, bytes)
        };
        let (events, bytes) = snapshot(1);
        assert!((5000..7000).contains(&events), "{events}");
        assert!(bytes.starts_with(b"\x80\x04\x95") && bytes.ends_with(b"."));
        let dicts = |name: &str| bytes.windows(name.len()).filter(|window| *window == name.as_bytes()).count();
        assert_eq!(dicts("N/A") as u64, events, "each event has a context of its own");
        assert_eq!(snapshot(1).1, bytes);
        assert_ne!(snapshot(2).1, bytes);
    }

    #[test]
    fn too_few_events_are_refused() {
        assert_eq!(ensure(Path::new("nowhere"), 10, 1).unwrap_err().code(), 2);
    }
}
