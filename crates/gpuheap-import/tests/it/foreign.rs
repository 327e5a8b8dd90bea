//! Files that are something else, and say so.

use insta::assert_snapshot;

use crate::support::failure;
use crate::writer::{CPYTHON, Py, dict, pickle};

#[test]
fn files_of_another_kind_are_named() {
    assert_snapshot!(failure(b""), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the file is empty
    hint: the process may have been killed before it wrote anything, or the disk may be full
    "#);
    assert_snapshot!(failure(b"PK\x03\x04archive/data.pkl"), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: this is not a memory snapshot: it looks like a zip archive, such as `torch.save` writes
    hint: a checkpoint holds tensors, not the history of memory; record one with `torch.cuda.memory._record_memory_history()` before the work and `torch.cuda.memory._dump_snapshot("snapshot.pickle")` after it
    "#);
    assert_snapshot!(failure(b"<!DOCTYPE html>\n<html>"), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: this is not a memory snapshot: it looks like an HTML page
    hint: gpuheap reads the snapshot that the page was made from; record one with `torch.cuda.memory._record_memory_history()` before the work and `torch.cuda.memory._dump_snapshot("snapshot.pickle")` after it
    "#);
    assert_snapshot!(failure(b"\x89PNG\r\n\x1a\n"), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: this is not a memory snapshot: it looks like a PNG image
    hint: record one with `torch.cuda.memory._record_memory_history()` before the work and `torch.cuda.memory._dump_snapshot("snapshot.pickle")` after it
    "#);
    assert_snapshot!(failure(b"\xfd7zXZ\x00"), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: this is not a memory snapshot: it looks like xz data
    hint: decompress it first: `xz -d FILE`
    "#);
    assert_snapshot!(failure(b"step,loss\n1,2.5\n"), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: this is not a memory snapshot: it looks like plain text
    hint: record one with `torch.cuda.memory._record_memory_history()` before the work and `torch.cuda.memory._dump_snapshot("snapshot.pickle")` after it
    "#);
    assert_snapshot!(failure(b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09"), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: this is not a memory snapshot: it looks like unknown data (it begins with the bytes 00 01 02 03 04 05 06 07)
    hint: record one with `torch.cuda.memory._record_memory_history()` before the work and `torch.cuda.memory._dump_snapshot("snapshot.pickle")` after it
    "#);
    assert_snapshot!(failure(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: this is not a memory snapshot: it looks like a checkpoint of `torch.save`
    hint: a checkpoint holds tensors, not the history of memory; record one with `torch.cuda.memory._record_memory_history()` before the work and `torch.cuda.memory._dump_snapshot("snapshot.pickle")` after it
    "#);
}

#[test]
fn pickles_that_are_no_snapshot_tell_what_they_are() {
    let cause = |value: &Py| {
        let shown = failure(&pickle(value, CPYTHON));
        assert!(shown.contains("hint: record one with `torch.cuda.memory._record_memory_history()`"), "{shown}");
        shown.lines().nth(1).unwrap().trim_start_matches("  cause: this is not a memory snapshot: it holds ").to_owned()
    };
    let numbers = || Py::List(vec![1.into(), 2.into()]);
    let shown: Vec<_> = [
        Py::None,
        Py::Bool(true),
        Py::Int(7),
        Py::Int(1 << 70),
        Py::Float(0.5),
        "hello".into(),
        Py::List(vec![]),
        numbers(),
        Py::List(vec![numbers(), numbers()]),
        Py::List(vec![crate::support::frame("f", 1)]),
        Py::List(vec![crate::support::event("alloc", 1, 1)]),
        crate::support::event("alloc", 1, 1),
        Py::Tuple(vec![1.into(), 2.into()]),
        Py::Tuple(vec![1.into()]),
        Py::Dict(vec![]),
        Py::Dict(vec![(1.into(), 2.into())]),
        dict([("model", numbers()), ("optimizer", Py::None), ("a", 1.into()), ("b", 1.into()), ("c", 1.into())]),
        dict([("epoch", 1.into())]),
        dict([("max_split_size", 1.into()), ("x", 2.into())]),
    ]
    .iter()
    .map(cause)
    .collect();
    assert_snapshot!(shown.join("\n"), @r#"
    only `None`, without `segments` or `device_traces`
    only `True`, without `segments` or `device_traces`
    a number, without `segments` or `device_traces`
    a number, without `segments` or `device_traces`
    a number, without `segments` or `device_traces`
    a text, without `segments` or `device_traces`
    an empty list, without `segments` or `device_traces`
    a list, without `segments` or `device_traces`
    a list, without `segments` or `device_traces`
    a list of frames, without `segments` or `device_traces`
    a list of events, without `segments` or `device_traces`
    a single event, without `segments` or `device_traces`
    a tuple, without `segments` or `device_traces`
    another object, without `segments` or `device_traces`
    an empty dict, without `segments` or `device_traces`
    a dict, without `segments` or `device_traces`
    a dict with the keys `model`, `optimizer`, `a`, `b`, without `segments` or `device_traces`
    a dict with the keys `epoch`, without `segments` or `device_traces`
    a dict with the keys `max_split_size`, `x`, without `segments` or `device_traces`
    "#);
}

#[test]
fn json_that_is_no_snapshot() {
    assert_snapshot!(failure(b"{\"loss\": [1, 2,\n 3]}"), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: this is not a memory snapshot: it holds a dict, without `segments` or `device_traces`
    hint: record one with `torch.cuda.memory._record_memory_history()` before the work and `torch.cuda.memory._dump_snapshot("snapshot.pickle")` after it
    "#);
    assert_snapshot!(failure(b"{\"segments\": [{\"address\": 1,\n oops}]}"), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the JSON is invalid
      cause: key must be a string at line 2 column 2
    "#);
    assert_snapshot!(failure(b"{\"segments\": [{\"address\": 1,\n"), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the JSON is invalid
      cause: EOF while parsing a value at line 2 column 0
    hint: the file is cut short; the process may have been killed while writing it
    "#);
    assert_snapshot!(failure(b"\n\n{\"segments\": [{\"total_size\": -1}]}"), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: `total_size` is -1, out of range, in the object that ends at line 3
    "#);
    let deep = format!("{{\"segments\": {}", "[".repeat(100_000));
    assert_snapshot!(failure(deep.as_bytes()), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the JSON is invalid
      cause: recursion limit exceeded at line 1 column 140
    "#);
}
