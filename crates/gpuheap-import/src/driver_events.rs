//! The events that processes of a run wrote about the driver's memory, as one recording.
//!
//! A run has a file for each process; the recording has an entry for each device, on which all processes meet. A block is
//! what the driver gave at once; it fills a segment of its own, as nobody cuts it up here. Its stack has three frames: the
//! library that asked for it, the call by which it did, and the process. So whatever groups by place groups by library.
//!
//! | of the events | becomes |
//! | --- | --- |
//! | taken, changed and given back memory of devices | blocks. What grows, such as a pool, gets another block; what shrinks loses the last ones |
//! | the same of the host: page-locked, spilled | blocks of the host |
//! | a refused request | an OOM, unless the same process got as much later on |
//! | what the driver told of the whole device | the same, unless whoever watched the run knows better |
//! | moves, yields, wakes | annotations |
//! | memory that is wherever the driver likes, of other processes, registered | nothing; a note says how much it was |
//!
//! Bytes of blocks are those of the ledger. Segments are multiples of 512 bytes, as everything that reads recordings
//! takes them to be; the difference is shown as rounding. Addresses are the driver's where it gave any and nothing else
//! in the recording lies there; others are made up.
//!
//! Memory of a process is there until it gives it back, or until the process is known to have ended: by [`Seen`], or
//! because the same process began another file, which it does after an exec.

mod blocks;
mod order;

use std::path::Path;

use gpuheap_ledger::events::{self, Events, What};
use gpuheap_ledger::{HOST, Identity, Kind};
use gpuheap_record::{Annotation, AnnotationStage, Bytes, DeviceId, DeviceMemory, Note, Recording};

use crate::error::Error;
use blocks::Blocks;

/// What whoever watched the run knows and its processes do not. All of it may be left out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// All memory of devices at some times, by ascending time; without any, what processes wrote down of it. `own` is what the processes of the run held of it;
    /// `reserved` need not be set: it is what the ledger had at that time.
    pub memory: Vec<DeviceMemory>,
    /// When processes had ended, in microseconds of Unix time.
    pub ended: Vec<(Identity, u64)>,
}

/// Reads the files of events in the folder of a run. Without any, the recording has no device. A file that cannot be read
/// is left out, and a note says so.
pub fn read(run: &Path, seen: &Seen) -> Result<Recording, Error> {
    let failed = |source| Error::Open { path: run.to_owned(), source };
    let mut processes = Vec::new();
    let mut notes = Vec::new();
    for file in events::files(run).map_err(failed)? {
        match events::read(&file) {
            Ok(events) => processes.push(events),
            Err(error) => notes.push(Note(format!("the events of a process are left out: {error}"))),
        }
    }
    let mut recording = recording(processes, seen);
    recording.notes.extend(notes);
    run.clone_into(&mut recording.source.path);
    Ok(recording)
}

/// The recording of what some processes wrote.
#[must_use]
pub fn recording(mut processes: Vec<Events>, seen: &Seen) -> Recording {
    processes.sort_by_key(|process| process.began_us);
    let mut recording = Recording::default();
    recording.source.format = gpuheap_record::Format::Gpuheap;
    recording.facts.push(("recorded".to_owned(), "driver".to_owned()));
    let mut blocks = Blocks::new(&processes, &mut recording);
    let mut samples = seen.memory.iter().peekable();
    let steps = order::steps(&processes, &seen.ended);
    for step in &steps {
        if matches!(step.action, order::Action::Size(_)) && !seen.memory.is_empty() {
            continue;
        }
        while let Some(sample) = samples.next_if(|sample| sample.time_us < step.time_us) {
            push_sample(&mut recording, &blocks, sample);
        }
        blocks.carry_out(step, &mut recording);
    }
    for sample in samples {
        push_sample(&mut recording, &blocks, sample);
    }
    annotate(&processes, &mut recording);
    blocks.finish(&mut recording);
    note(&processes, &mut recording);
    recording
}

fn push_sample(recording: &mut Recording, blocks: &Blocks, sample: &DeviceMemory) {
    recording.device_memory.push(DeviceMemory { reserved: blocks.reserved(sample.device), ..*sample });
}

/// Moves that are closer together than this are one, in microseconds.
const ONE_MOVE: u64 = 100_000;

fn annotate(processes: &[Events], recording: &mut Recording) {
    for process in processes {
        for (what, name) in [
            (What::Spilled, "taken on the host"),
            (What::MovedOut, "moved to the host"),
            (What::MovedIn, "moved to the device"),
            (What::Yielded, "yielded"),
            (What::Woken, "woken"),
        ] {
            let mut range: Option<(u64, u64, u64, Option<DeviceId>)> = None;
            let mut end = |(from, to, bytes, device): (u64, u64, u64, Option<DeviceId>)| {
                let text = format!("{name}: {} of {}", Bytes::new(bytes), process_name(process));
                let name = recording.strings.intern(&text);
                for (stage, time_us) in [(AnnotationStage::Start, from), (AnnotationStage::End, to)] {
                    recording.annotations.push(Annotation { name, stage, device, time_us });
                }
            };
            for record in process.records.iter().filter(|record| record.what == what) {
                let time = process.began_us.saturating_add(record.time_us);
                let took = if matches!(what, What::Yielded | What::Woken) { record.address } else { 0 };
                let from = time.saturating_sub(took);
                let device = u32::try_from(record.device).ok().filter(|_| record.device < HOST).map(DeviceId::new);
                match &mut range {
                    Some((_, to, bytes, of)) if from <= to.saturating_add(ONE_MOVE) && *of == device => {
                        (*to, *bytes) = (time.max(*to), bytes.saturating_add(record.bytes));
                    }
                    _ => {
                        if let Some(last) = range.replace((from, time, record.bytes, device)) {
                            end(last);
                        }
                    }
                }
            }
            if let Some(last) = range {
                end(last);
            }
        }
    }
    recording.annotations.sort_by_key(|annotation| annotation.time_us);
}

/// What a process is called.
fn process_name(process: &Events) -> String {
    let number = process.process.process();
    if process.program.is_empty() { format!("process {number}") } else { format!("{} ({number})", process.program) }
}

/// What the reader should know before trusting a figure.
fn note(processes: &[Events], recording: &mut Recording) {
    for process in processes {
        let name = process_name(process);
        if process.missed > 0 {
            recording.notes.push(Note(format!(
                "the events of {name} are not all there: its file was full, and the last {} of them were only counted. \
                 Set `GPUHEAP_EVENTS` to a larger number than {}",
                process.missed,
                process.records.len() as u64 + process.torn,
            )));
        }
        if process.torn > 0 {
            recording.notes.push(Note(format!(
                "{} of the events of {name} are not whole: it was killed while it wrote, or its file was damaged",
                process.torn
            )));
        }
    }
}

/// What is shown as a block, and of what.
fn shown(kind: Kind) -> bool {
    kind.counts() || matches!(kind, Kind::PhysicalHost | Kind::HostPinned | Kind::Spilled)
}

/// By which call memory was asked for, for people.
fn call_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Linear => "cuMemAlloc",
        Kind::Pools => "stream-ordered pools",
        Kind::Physical => "cuMemCreate",
        Kind::Arrays => "arrays",
        Kind::Graphs => "memory of graphs",
        Kind::Managed => "managed memory",
        Kind::PhysicalHost => "cuMemCreate on the host",
        Kind::HostPinned => "page-locked memory",
        Kind::HostRegistered => "registered memory of the program",
        Kind::Imported => "memory of other processes",
        Kind::Spilled => "spilled",
    }
}

#[cfg(test)]
mod tests;
