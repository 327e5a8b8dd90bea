//! What the tests share: a sample, reading from memory, and a recording as text.

use std::error::Error as _;
use std::fmt::Write;
use std::path::Path;
use std::rc::Rc;

use gpuheap_import::{Error, Options};
use gpuheap_record::{DeviceRecording, Recording, StackId};

use crate::writer::{CPYTHON, Py, dict, pickle};

pub(crate) fn read(bytes: &[u8]) -> Result<Recording, Error> {
    gpuheap_import::read_from(bytes, Some(bytes.len() as u64), Path::new("snapshot.pickle"), Options::default())
}

/// The recording of a value, pickled as CPython does.
pub(crate) fn recorded(value: &Py) -> Recording {
    read(&pickle(value, CPYTHON)).unwrap()
}

/// The error, its causes and its hint, as the command shows them.
pub(crate) fn failure(bytes: &[u8]) -> String {
    let error = match read(bytes) {
        Ok(recording) => panic!("read as {}", text(&recording)),
        Err(error) => error,
    };
    let mut shown = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        write!(shown, "\n  cause: {cause}").unwrap();
        source = cause.source();
    }
    if let Some(hint) = error.hint() {
        write!(shown, "\nhint: {hint}").unwrap();
    }
    shown
}

pub(crate) fn notes(recording: &Recording) -> Vec<&str> {
    recording.notes.iter().map(|note| note.0.as_str()).collect()
}

/// All of a recording but its source.
pub(crate) fn text(recording: &Recording) -> String {
    let mut out = String::new();
    for device in &recording.devices {
        writeln!(out, "device {}", device.device.get()).unwrap();
        rows(&mut out, recording, device);
    }
    if let Some(host) = &recording.host {
        writeln!(out, "host").unwrap();
        rows(&mut out, recording, host);
    }
    for annotation in &recording.annotations {
        let name = recording.strings.text(annotation.name);
        let device = annotation.device.map(gpuheap_record::DeviceId::get);
        writeln!(out, "annotation {name} {:?} {device:?} @{}", annotation.stage, annotation.time_us).unwrap();
    }
    if recording.settings.known {
        writeln!(out, "{:?}", recording.settings).unwrap();
    }
    for note in notes(recording) {
        writeln!(out, "note: {note}").unwrap();
    }
    out
}

fn rows(out: &mut String, recording: &Recording, device: &DeviceRecording) {
    for id in device.events.ids() {
        let event = device.events.get(id);
        let stream = recording.streams.get(event.stream).unwrap();
        let context = recording.contexts.get(event.context).unwrap();
        let context = [context.compile, context.user].map(|text| recording.strings.text(text));
        let pool = event.pool.map(|pool| *recording.pools.get(pool).unwrap());
        writeln!(
            out,
            "  {:?} {:#x} {} stream {stream:#x} @{} {context:?} pool {pool:?} {}",
            event.kind,
            event.address,
            event.size,
            event.time_us,
            stack(recording, event.stack)
        )
        .unwrap();
    }
    for segment in &device.segments {
        let stream = recording.streams.get(segment.stream).unwrap();
        let pool = recording.pools.get(segment.pool).unwrap();
        writeln!(
            out,
            "  segment {:#x} {} stream {stream:#x} {:?} pool {pool:?} expandable {} {}",
            segment.address,
            segment.total_size,
            segment.kind,
            segment.expandable,
            stack(recording, segment.stack)
        )
        .unwrap();
        for block in &segment.blocks {
            writeln!(
                out,
                "    {:#x} {} of {} {:?} {}",
                block.address,
                block.requested_size,
                block.size,
                block.state,
                stack(recording, block.stack)
            )
            .unwrap();
        }
    }
}

fn stack(recording: &Recording, stack: StackId) -> String {
    let frames: Vec<_> = recording
        .frames_of(stack)
        .map(|frame| format!("{} {}:{}", recording.function(frame), recording.file(frame), recording.frame(frame).line))
        .collect();
    format!("[{}]", frames.join(", "))
}

pub(crate) fn frame(name: &str, line: i128) -> Py {
    dict([("name", name.into()), ("filename", "train.py".into()), ("line", line.into())])
}

pub(crate) fn event(action: &str, address: i128, size: i128) -> Py {
    dict([
        ("action", action.into()),
        ("addr", address.into()),
        ("size", size.into()),
        ("stream", 0.into()),
        ("time_us", 1_700_000_000_000_000.into()),
        ("compile_context", "N/A".into()),
        ("user_metadata", "".into()),
        ("frames", Py::List(vec![])),
    ])
}

pub(crate) fn block(address: i128, size: i128, state: &str) -> Py {
    dict([
        ("address", address.into()),
        ("size", size.into()),
        ("requested_size", (size - 12).into()),
        ("state", state.into()),
        ("frames", Py::List(vec![])),
    ])
}

pub(crate) fn segment(address: i128, size: i128, blocks: Vec<Py>) -> Py {
    dict([
        ("device", 0.into()),
        ("address", address.into()),
        ("total_size", size.into()),
        ("allocated_size", 0.into()),
        ("stream", 0.into()),
        ("segment_type", "large".into()),
        ("segment_pool_id", Py::Tuple(vec![0.into(), 0.into()])),
        ("is_expandable", false.into()),
        ("frames", Py::List(vec![])),
        ("blocks", Py::List(blocks)),
    ])
}

/// A snapshot with these parts.
pub(crate) fn snapshot(segments: Vec<Py>, traces: Vec<Vec<Py>>) -> Py {
    dict([
        ("segments", Py::List(segments)),
        ("device_traces", Py::List(traces.into_iter().map(Py::List).collect())),
        ("external_annotations", Py::List(vec![])),
    ])
}

/// A snapshot whose only content is these events of device 0.
pub(crate) fn trace(events: Vec<Py>) -> Py {
    snapshot(vec![], vec![events])
}

/// A snapshot with something of everything: shared frames, shared lists of frames, all kinds of numbers.
pub(crate) fn sample() -> Py {
    let shared = |value: Py| Py::Shared(Rc::new(value));
    let (main, train) = (shared(frame("main", 10)), shared(frame("train", 70_000)));
    let both = shared(Py::List(vec![train, main.clone()]));
    let alone = Py::List(vec![main]);
    let base = 0x7f12_3400_0000;
    let settings = dict([
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128".into()),
        ("max_split_size", (128 << 20).into()),
        ("garbage_collection_threshold", Py::Float(0.8)),
        ("expandable_segments", false.into()),
        ("roundup_power2_divisions", dict([("1", 0.into()), ("2", 8.into()), ("32768", 4.into())])),
        ("something_new", Py::None),
    ]);
    let annotation = |stage: &str, time: i128| {
        dict([
            ("stage", stage.into()),
            ("name", "Optimizer.step#AdamW.step".into()),
            ("device", 0.into()),
            ("time_us", time.into()),
        ])
    };
    snapshot(
        vec![
            segment(
                base,
                20 << 20,
                vec![
                    block(base, 8 << 20, "active_allocated").with("frames", both.clone()),
                    block(base + (8 << 20), 12 << 20, "inactive"),
                ],
            )
            .with("frames", both.clone()),
            segment(base + (32 << 20), 2 << 20, vec![block(base + (32 << 20), 2 << 20, "active_pending_free")])
                .with("segment_type", "small")
                .with("segment_pool_id", Py::Tuple(vec![0.into(), 3.into()]))
                .with("is_expandable", true)
                .with("stream", 0x5600_dead_beef),
        ],
        vec![
            vec![],
            vec![
                event("segment_alloc", base, 20 << 20).with("frames", both.clone()),
                event("alloc", base, (8 << 20) - 12).with("frames", both),
                event("free_requested", base, 200).with("frames", alone.clone()).with("compile_context", "0/1"),
                event("free_completed", base, 70_000).with("frames", alone).with("user_metadata", "ünïcode € 🔥"),
                event("oom", 0, 1 << 33).without("addr").with("device_free", 132_000_000_000),
                event("segment_map", 0xffff_8000_0000_0000, 2 << 20).with("stream", 0x5600_dead_beef),
                event("segment_unmap", 3, 4),
                event("segment_free", base, 20 << 20).with("pool_id", Py::Tuple(vec![0.into(), 3.into()])),
                event("snapshot", 0, 5),
            ],
        ],
    )
    .with("allocator_settings", settings)
    .with("external_annotations", vec![annotation("START", 7), annotation("END", 9)])
}
