//! Crafted files: sharing, nesting and lengths that would blow up a careless reader.

use std::rc::Rc;
use std::time::{Duration, Instant};

use gpuheap_import::Cause;
use insta::assert_snapshot;

use crate::support::{block, event, failure, frame, read, recorded, segment, snapshot, trace};
use crate::writer::{CPYTHON, Py, Style, dict, pickle};

fn shared(value: Py) -> Py {
    Py::Shared(Rc::new(value))
}

fn cause_of(value: &Py) -> String {
    failure(&pickle(value, CPYTHON)).lines().nth(1).unwrap().trim_start_matches("  cause: ").to_owned()
}

/// Memory at its highest, in bytes, of a process that reads `bytes`; and whether it refused for want of memory.
#[cfg(target_os = "linux")]
fn peak(bytes: &[u8]) -> (usize, bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb");
    std::fs::write(&path, bytes).unwrap();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "bombs::child", "--nocapture"])
        .env("GPUHEAP_TEST_BOMB", &path)
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stdout}");
    let line = stdout.lines().find_map(|line| line.split_once("peak ").map(|(_, rest)| rest.to_owned())).unwrap();
    let (kilobytes, refused) = line.split_once(' ').unwrap();
    (kilobytes.parse::<usize>().unwrap() << 10, refused == "true")
}

#[cfg(target_os = "linux")]
#[test]
fn child() {
    let Some(path) = std::env::var_os("GPUHEAP_TEST_BOMB") else { return };
    let result = gpuheap_import::read(path.as_ref(), gpuheap_import::Options::default());
    let refused = matches!(result.as_ref().map_err(gpuheap_import::Error::cause), Err(Some(Cause::Memory { .. })));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let high = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!("\npeak {} {refused}", high.trim().trim_end_matches(" kB"));
}

/// A file that must be refused for its memory, in bounds and soon.
#[cfg(target_os = "linux")]
fn assert_bounded(bytes: &[u8]) {
    let start = Instant::now();
    let (peak, refused) = peak(bytes);
    assert!(refused, "read to the end");
    // The process itself takes some 10 MiB.
    assert!(peak < 2 * bytes.len() + (32 << 20), "{peak} bytes for a file of {}", bytes.len());
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[cfg(target_os = "linux")]
#[test]
fn floods_of_empty_objects() {
    for opcode in [b"]", b"}", b"N"] {
        assert_bounded(&[b"\x80\x04".as_slice(), &opcode.repeat(4 << 20)].concat());
    }
    assert_bounded(&[b"\x80\x04]", b"\x94".repeat(8 << 20).as_slice()].concat());
}

#[cfg(target_os = "linux")]
#[test]
fn stacks_that_grow_and_are_used_over_and_over() {
    // A list of frames that an event uses after every frame: each use would be a new stack, one longer than the last.
    let mut bytes =
        b"\x80\x02]q\x000}q\x01X\x04\x00\x00\x00lineK\x01s0X\x06\x00\x00\x00framesq\x020X\x06\x00\x00\x00actionq\x030"
            .to_vec();
    bytes.extend(b"h\x00h\x01a0}(h\x02h\x00h\x03Nu0".repeat(100_000));
    assert!(failure(&bytes).contains("a list of frames changes after its use"));
    // One list that is too long to be a stack.
    let mut bytes = b"\x80\x02]q\x000}q\x01X\x04\x00\x00\x00lineK\x01s0h\x00(".to_vec();
    bytes.extend(b"h\x01".repeat(1 << 20));
    bytes.extend(b"e}X\x06\x00\x00\x00framesh\x00s.");
    assert_bounded(&bytes);
}

#[test]
fn costly_objects_that_are_used_over_and_over() {
    let many = || shared(Py::List(vec![Py::List(vec![]); 100_000]));
    let big = || {
        let pairs =
            (0..100_000).map(|n| (Py::Str(n.to_string()), n.into())).chain([("max_split_size".into(), 1.into())]);
        shared(Py::Dict(pairs.collect()))
    };
    let long = shared(Py::Str("x".repeat(100_000)));
    let (list, dict_of_many) = (many(), big());
    let events =
        (0..50_000).map(|n| event("alloc", n, 1).with("frames", list.clone()).with("more", dict_of_many.clone()));
    let settings = (0..50_000).map(|n| (Py::Str(n.to_string()), long.clone()));
    let settings = settings.chain([("max_split_size".into(), dict_of_many.clone())]).collect();
    let odd = (0..50_000).map(|n| event("alloc", n, 1).with("action", long.clone()));
    let start = Instant::now();
    let value = trace(events.chain(odd).collect()).with("allocator_settings", Py::Dict(settings));
    let recording = recorded(&value);
    assert_eq!(recording.event_count(), 100_000);
    assert!(recording.settings.all.len() < 1000);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[cfg(target_os = "linux")]
#[test]
fn lists_that_take_turns_to_grow() {
    let mut bytes = b"\x80\x02]q\x000]q\x010}q\x02X\x04\x00\x00\x00lineK\x01s0".to_vec();
    bytes.extend(b"h\x00h\x02a0h\x01h\x02a0".repeat(200_000));
    assert_bounded(&bytes);
}

#[cfg(target_os = "linux")]
#[test]
fn a_compressed_flood() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(b"\x80\x04").unwrap();
    for _ in 0..64 {
        encoder.write_all(&b"]".repeat(1 << 20)).unwrap();
    }
    let bytes = encoder.finish().unwrap();
    let (peak, refused) = peak(&bytes);
    assert!(refused && peak < 48 << 20, "{peak}");
}

#[test]
fn declared_lengths_are_not_believed() {
    for header in [
        b"\x80\x04X\xff\xff\xff\xff".as_slice(),
        b"\x80\x04\x8d\0\0\0\0\0\x01\0\0",
        b"\x80\x04\x8e\0\0\0\0\0\x01\0\0",
        b"\x80\x04\x96\0\0\0\0\0\x01\0\0",
        b"\x80\x04B\xff\xff\xff\xff",
        b"\x80\x04\x8b\xff\xff\xff\xff",
        b"\x80\x04T\xff\xff\xff\xff",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let shown = failure(&[header, b"abc"].concat());
        assert!(shown.contains("unexpected end of file"), "{shown}");
    }
}

#[test]
fn far_memo_entries_take_no_room() {
    let mut bytes = b"\x80\x02N".to_vec();
    for index in [u32::MAX, 1 << 31, 1 << 30, 0, 5, 3, 1, 2, 4, 6] {
        bytes.push(b'r');
        bytes.extend(index.to_le_bytes());
    }
    bytes.extend(b"j\0\0\0\x80.");
    assert!(failure(&bytes).contains("only `None`"));
}

#[test]
fn deep_nesting() {
    assert_snapshot!(failure(&[b"\x80\x04".as_slice(), &b"]q\0(".repeat(100_000)].concat()), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: nested more than 1000 deep at byte 4005
    "#);
    // Without marks nothing is nested for the machine.
    let lists = [b"\x80\x04".as_slice(), &b"]".repeat(100_000), &b"a".repeat(99_999), b"."].concat();
    assert!(failure(&lists).contains("it holds a list"));
    let dicts =
        [b"\x80\x04".as_slice(), &b"}\x8c\x06frames".repeat(100_000), b"N", &b"s".repeat(100_000), b"."].concat();
    assert!(failure(&dicts).contains("a dict with the keys `frames`"));
}

#[test]
fn exponential_sharing() {
    let mut list = Py::List(vec![]);
    let mut map = dict([("x", 1.into())]);
    for _ in 0..64 {
        let (one, other) = (shared(list), shared(map));
        list = Py::List(vec![one.clone(), one]);
        map = dict([("a", other.clone()), ("b", other)]);
    }
    let value = trace(vec![event("alloc", 1, 1)]).with("laughs", list).with("more", map);
    assert_eq!(recorded(&value).event_count(), 1);
}

#[test]
fn objects_that_hold_themselves() {
    assert_snapshot!(failure(b"\x80\x02]q\0h\0a."), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the same list appears twice, or out of order, at byte 7
    "#);
    assert_snapshot!(failure(b"\x80\x02]q\0(]q\x01h\0ah\0e."), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the same list appears twice, or out of order, at byte 14
    "#);
    let dict_in_itself = b"\x80\x02}q\0(X\x08\0\0\0segmentsh\0X\x0d\0\0\0device_tracesh\0u.";
    assert_eq!(read(dict_in_itself).unwrap().event_count(), 0);
    // A list of traces that is among its own traces, through a list between.
    let traces = b"\x80\x02}X\x0d\0\0\0device_traces]q\0(]q\x01h\0aes.";
    assert_eq!(read(traces).unwrap().event_count(), 0);
}

#[test]
fn shared_rows_are_refused() {
    let one = shared(event("alloc", 1, 1));
    let other = shared(event("alloc", 2, 1));
    let list = shared(Py::List(vec![event("alloc", 1, 1), event("alloc", 2, 1)]));
    let piece = shared(segment(4096, 512, vec![]));
    let unit = shared(block(4096, 512, "inactive"));
    let units = shared(Py::List(vec![block(4096, 512, "inactive")]));
    let traces = |lists: Vec<Py>| dict([("device_traces", Py::List(lists))]);
    let shown = [
        cause_of(&trace(vec![one.clone(), one.clone()])),
        cause_of(&snapshot(vec![], vec![vec![one.clone(), other.clone()], vec![other, one]])),
        cause_of(&traces(vec![list.clone(), list.clone()])),
        cause_of(&traces(vec![list.clone()]).with("host_traces", list)),
        cause_of(&snapshot(vec![piece.clone(), piece.clone()], vec![])),
        cause_of(&snapshot(vec![piece.clone()], vec![]).with("host_segments", vec![piece])),
        cause_of(&snapshot(vec![segment(4096, 512, vec![unit.clone(), unit.clone()])], vec![])),
        cause_of(&snapshot(vec![segment(1, 1, vec![unit.clone()]), segment(2, 1, vec![unit])], vec![])),
        cause_of(&snapshot(
            vec![segment(1, 1, vec![]).with("blocks", units.clone()), segment(2, 1, vec![]).with("blocks", units)],
            vec![],
        )),
    ];
    assert_snapshot!(shown.join("\n"), @r#"
    the same event appears twice, or out of order, at byte 173
    the same event appears twice, or out of order, at byte 223
    the same event appears twice, or out of order, at byte 207
    the same event appears twice, or out of order, at byte 221
    the same segment appears twice, or out of order, at byte 190
    the same segment appears twice, or out of order, at byte 254
    the same block appears twice, or out of order, at byte 251
    the same block appears twice, or out of order, at byte 298
    the same block appears twice, or out of order, at byte 295
    "#);
    // Empty lists hold no rows: CPython shares none, others may.
    let empty = shared(Py::List(vec![]));
    let value = traces(vec![empty.clone(), empty.clone()]).with("segments", empty);
    assert_eq!(recorded(&value).event_count(), 0);
}

#[test]
fn a_million_shared_frames_are_one_stack() {
    let stack = shared(Py::List((0..1000).map(|line| frame("recurse", line)).collect()));
    let events = (0..1000).map(|n| event("alloc", n, 1).with("frames", stack.clone())).collect();
    let recording = read(&pickle(&trace(events), Style { batch: usize::MAX, ..CPYTHON })).unwrap();
    assert_eq!(recording.stacks.len(), 1001);
}
