//! The same snapshot, written in every way that picklers have.

use insta::assert_snapshot;

use crate::support::{failure, frame, read, recorded, sample, text, trace};
use crate::writer::{CPYTHON, Py, Style, pickle, styles};

#[test]
fn a_snapshot_with_everything() {
    assert_snapshot!(text(&recorded(&sample())), @r#"
    device 0
      segment 0x7f1234000000 20971520 stream 0x0 Large pool (0, 0) expandable false [train train.py:70000, main train.py:10]
        0x7f1234000000 8388596 of 8388608 Allocated [train train.py:70000, main train.py:10]
        0x7f1234800000 0 of 12582912 Free []
      segment 0x7f1236000000 2097152 stream 0x5600deadbeef Small pool (0, 3) expandable true []
        0x7f1236000000 2097140 of 2097152 PendingFree []
    device 1
      SegmentAlloc 0x7f1234000000 20971520 stream 0x0 @1700000000000000 ["", ""] pool None [train train.py:70000, main train.py:10]
      Alloc 0x7f1234000000 8388596 stream 0x0 @1700000000000000 ["", ""] pool None [train train.py:70000, main train.py:10]
      FreeRequested 0x7f1234000000 200 stream 0x0 @1700000000000000 ["0/1", ""] pool None [main train.py:10]
      FreeCompleted 0x7f1234000000 70000 stream 0x0 @1700000000000000 ["", "ünïcode € 🔥"] pool None [main train.py:10]
      OutOfMemory 0x1ebbd02800 8589934592 stream 0x0 @1700000000000000 ["", ""] pool None []
      SegmentMap 0xffff800000000000 2097152 stream 0x5600deadbeef @1700000000000000 ["", ""] pool None []
      SegmentUnmap 0x3 4 stream 0x0 @1700000000000000 ["", ""] pool None []
      SegmentFree 0x7f1234000000 20971520 stream 0x0 @1700000000000000 ["", ""] pool Some((0, 3)) []
      Snapshot 0x0 5 stream 0x0 @1700000000000000 ["", ""] pool None []
    annotation Optimizer.step#AdamW.step Start Some(0) @7
    annotation Optimizer.step#AdamW.step End Some(0) @9
    AllocatorSettings { known: true, conf: "max_split_size_mb:128", max_split_size: Some(134217728), garbage_collection_threshold: 0.8, expandable_segments: false, roundup_power2_divisions: [0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4], all: [("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128"), ("max_split_size", "134217728"), ("garbage_collection_threshold", "0.8"), ("expandable_segments", "False"), ("roundup_power2_divisions", "1:0,2:8,32768:4"), ("something_new", "None")] }
    "#);
}

#[test]
fn every_style_gives_the_same_recording() {
    let expected = text(&recorded(&sample()));
    for style in styles() {
        let recording = read(&pickle(&sample(), style)).unwrap_or_else(|error| panic!("{style:?}: {error:?}"));
        assert_eq!(text(&recording), expected, "{style:?}");
    }
    let json = read(sample().json().as_bytes()).unwrap();
    assert_eq!(text(&json), expected);
}

#[test]
fn long_lists_come_in_batches() {
    let stack: Vec<Py> = (0..2500).map(|line| frame("recurse", line)).collect();
    let events: Vec<Py> =
        (0..2500).map(|n| crate::support::event("alloc", n, n).with("frames", stack[..3].to_vec())).collect();
    let mut events = events;
    events.push(crate::support::event("alloc", 1, 1).with("frames", stack));
    let value = trace(events);
    let expected = text(&read(&pickle(&value, Style { batch: usize::MAX, ..CPYTHON })).unwrap());
    assert!(expected.contains("recurse train.py:2499]"));
    for batch in [0, 1, 7, 999, 1000, 1001] {
        assert_eq!(text(&read(&pickle(&value, Style { batch, ..CPYTHON })).unwrap()), expected);
    }
    assert_eq!(text(&read(value.json().as_bytes()).unwrap()), expected);
}

#[test]
fn lists_that_grow_after_they_were_stored() {
    // A list of frames is stored while it is empty, and grows in pieces before an event uses it.
    let mut out = b"\x80\x02}X\x0d\x00\x00\x00device_traces]]}(X\x06\x00\x00\x00actionX\x05\x00\x00\x00alloc".to_vec();
    let frame = |line: u8| [b"}X\x04\x00\x00\x00lineK", &[line, b's'][..]].concat();
    out.extend(b"X\x06\x00\x00\x00frames]q\x05");
    out.extend([frame(1), b"a".to_vec(), frame(2), b"a0h\x05(".to_vec(), frame(3), frame(4), b"e".to_vec()].concat());
    let used = out.clone();
    out.extend(b"uaas.");
    assert_snapshot!(text(&read(&out).unwrap()), @r#"
    device 0
      Alloc 0x0 0 stream 0x0 @0 ["", ""] pool None [ :1,  :2,  :3,  :4]
    "#);
    // What changes after its use is refused: the event would not see it.
    let mut out = used;
    out.extend(b"uah\x05");
    out.extend(frame(5));
    out.extend(b"a0as.");
    assert_snapshot!(failure(&out), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: a list of frames changes after its use, at byte 136
    "#);
}
