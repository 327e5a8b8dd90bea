//! Traces that contradict themselves, or are none.

use std::io::Write as _;

use gpuheap_fit::trace::parse;

use crate::model::{Model, text};

fn why(text: &str) -> String {
    parse(text.as_bytes()).unwrap_err().to_string()
}

fn with(storages: &str, events: &str) -> String {
    format!(
        r#"{{"schema":"gpuheap.fit.trace/1","modules":[{{"name":"","class":"M"}}],"ops":["aten.mm.default"],
"storages":{storages},"events":[{events}]}}"#
    )
}

const ONE: &str = r#"{"bytes":[512],"class":["activation"]}"#;

#[test]
fn what_is_no_trace_says_why() {
    assert_eq!(why(""), "the file is empty");
    assert!(why("{").starts_with("line 1, column 1"), "{}", why("{"));
    assert!(why("[]").contains("line 1"), "{}", why("[]"));
    assert!(why(r#"{"schema":"other/1","storages":{"bytes":[],"class":[]},"events":[]}"#).contains("`other/1`"));
    let cut = text(Model::default());
    let told = why(&cut[..cut.len() / 2]);
    assert!(told.contains("it ends within"), "{told}");
}

#[test]
fn what_cannot_be_true_is_told_with_its_place() {
    for (events, part) in [
        (r#"["step",1],["free",0]"#, "event 1: storage 0 is freed while it is not alive"),
        (r#"["step",1],["alloc",0],["alloc",0]"#, "event 2: storage 0 is made while it is alive"),
        (r#"["alloc",7]"#, "a storage is 7, out of range, at event 0"),
        (r#"["alloc",-1]"#, "a storage is -1, out of range, at event 0"),
        (r#"["leave",0,0]"#, "event 0: module 0 is left without having been entered"),
        (r#"["enter",0,9]"#, "a pass is 9, out of range, at event 0"),
        (r#"["op",3,0,0,0,0,0,[],[]]"#, "an operator is 3, out of range"),
        (r#"["op",0,0,0,-5,0,0,[],[]]"#, "a number of operations is -5, out of range"),
        (r#"["op",0,0,0,1e300,0,0,[],[]]"#, "out of range"),
        (r#"["op",0,0]"#, "event 0: a thread is missing"),
        (r#"["alloc"]"#, "event 0: a storage is missing"),
        (r#"{"alloc":0}"#, "event 0"),
        ("", "there is no step in it"),
    ] {
        let told = why(&with(ONE, events));
        assert!(told.contains(part), "{events}: {told}");
    }
    let step = r#"["step",1]"#;
    assert!(why(&with(r#"{"bytes":[-1],"class":["input"]}"#, step)).contains("the size of a storage is -1"));
    assert!(why(&with(r#"{"bytes":[9e18],"class":["input"]}"#, step)).contains("line"));
    assert!(why(&with(r#"{"bytes":[1],"class":[]}"#, step)).contains("`storages.class` has 0 entries"));
}

#[test]
fn unknown_things_are_passed_over() {
    let trace = parse(with(ONE, r#"["step",1],["later",5,"x"],["phase","lunch"],["alloc",0]"#).as_bytes()).unwrap();
    assert_eq!(trace.events.len(), 3);
}

#[test]
fn compressed_traces_are_read_and_damaged_ones_refused() {
    let text = text(Model { layers: 1, ..Model::default() });
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    let gzip = encoder.finish().unwrap();
    assert_eq!(parse(&gzip).unwrap(), parse(text.as_bytes()).unwrap());
    let cut = parse(&gzip[..gzip.len() / 2]).unwrap_err().to_string();
    assert!(cut.starts_with("the gzip data is damaged or cut short"), "{cut}");
    assert!(parse(&[0x28, 0xb5, 0x2f, 0xfd, 0xff]).unwrap_err().to_string().contains("zstd"));
}
