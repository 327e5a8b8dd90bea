//! The same snapshot, written in every way that picklers have.

use insta::assert_snapshot;

use crate::support::{frame, read, recorded, sample, text, trace};
use crate::writer::{CPYTHON, Py, Style, pickle, styles};

#[test]
fn a_snapshot_with_everything() {
    assert_snapshot!(text(&recorded(&sample())), @"");
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
    // A list is memoised when it is empty, shared, and grows in between: what an event sees is what was there then.
    let mut out = b"\x80\x02}q\x00X\x0d\x00\x00\x00device_traces]q\x01]q\x02".to_vec();
    let text_of = |text: &str| {
        let mut out = vec![b'X'];
        out.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
        out.extend(text.bytes());
        out
    };
    let frame_of = |line: u8| {
        let mut out = b"}".to_vec();
        out.extend(text_of("line"));
        out.extend([b'K', line, b's']);
        out
    };
    let event_of = |out: &mut Vec<u8>| {
        out.extend(b"}(");
        out.extend(text_of("action"));
        out.extend(text_of("alloc"));
        out.extend(text_of("frames"));
        out.extend(b"h\x05ua");
    };
    // The list of frames, stored under 5, grown, then taken off the stack.
    out.extend(b"]q\x05");
    out.extend(frame_of(1));
    out.extend(b"a");
    out.extend(frame_of(2));
    out.extend(b"a0");
    event_of(&mut out);
    out.extend(b"h\x05(");
    out.extend(frame_of(3));
    out.extend(frame_of(4));
    out.extend(b"e0");
    event_of(&mut out);
    out.extend(b"as.");
    assert_snapshot!(text(&read(&out).unwrap()), @"");
}
