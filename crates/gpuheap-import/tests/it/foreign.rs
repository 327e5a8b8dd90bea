//! Files that are something else, and say so.

use insta::assert_snapshot;

use crate::support::failure;
use crate::writer::{CPYTHON, Py, dict, pickle};

#[test]
fn files_of_another_kind_are_named() {
    assert_snapshot!(failure(b""), @"");
    assert_snapshot!(failure(b"PK\x03\x04archive/data.pkl"), @"");
    assert_snapshot!(failure(b"<!DOCTYPE html>\n<html>"), @"");
    assert_snapshot!(failure(b"\x89PNG\r\n\x1a\n"), @"");
    assert_snapshot!(failure(b"\xfd7zXZ\x00"), @"");
    assert_snapshot!(failure(b"step,loss\n1,2.5\n"), @"");
    assert_snapshot!(failure(b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09"), @"");
    assert_snapshot!(failure(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."), @"");
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
    assert_snapshot!(shown.join("\n"), @"");
}

#[test]
fn json_that_is_no_snapshot() {
    assert_snapshot!(failure(b"{\"loss\": [1, 2,\n 3]}"), @"");
    assert_snapshot!(failure(b"{\"segments\": [{\"address\": 1,\n oops}]}"), @"");
    assert_snapshot!(failure(b"{\"segments\": [{\"address\": 1,\n"), @"");
    assert_snapshot!(failure(b"\n\n{\"segments\": [{\"total_size\": -1}]}"), @"");
    let deep = format!("{{\"segments\": {}", "[".repeat(100_000));
    assert_snapshot!(failure(deep.as_bytes()), @"");
}
