//! The seeds of the fuzz target: small files of every form, and what fuzzing found.

use std::io::Write;
use std::path::Path;

use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::support::{event, frame, sample, segment, snapshot};
use crate::writer::{CPYTHON, Py, dict, pickle, styles};

#[test]
fn no_seed_is_a_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/import");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let _ = crate::support::read(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 40, "{count} seeds");
}

#[test]
#[ignore = "writes files; run it with `--ignored` after a change of the sample or the writer"]
fn write_fuzz_seeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/import");
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    for style in styles().iter().filter(|style| style.batch != 3) {
        let batch = if style.batch > 1000 { "all".to_owned() } else { style.batch.to_string() };
        let memo = if style.memo { "memo" } else { "plain" };
        write(&format!("protocol{}-{memo}-{batch}.pickle", style.protocol), &pickle(&sample(), *style));
    }
    let plain = pickle(&sample(), CPYTHON);
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&plain).unwrap();
    write("sample.pickle.gz", &gzip.finish().unwrap());
    write("sample.pickle.zst", &compress_to_vec(&*plain, CompressionLevel::Fastest));
    write("sample.json", sample().json().as_bytes());
    let past = dict([("addr", 1.into()), ("real_size", 5.into()), ("frames", Py::List(vec![frame("f", 1)]))]);
    let block = dict([("size", 512.into()), ("state", "active_allocated".into()), ("history", Py::List(vec![past]))]);
    let old = Py::List(vec![segment(4096, 512, vec![block])]);
    write("old.pickle", &pickle(&old, CPYTHON));
    write("old.json", old.json().as_bytes());
    let texts = Py::List(vec!["f".into(), "g".into()]);
    let tuples = Py::List(vec![Py::Tuple(vec!["f.py".into(), 1.into(), "f".into()])]);
    let odd = snapshot(
        vec![],
        vec![vec![
            event("alloc", 1, 1).with("frames", texts),
            event("annotate", 1, 1).with("frames", tuples),
            event("foo", -5, 1).with("size", Py::Float(4.0)),
        ]],
    )
    .with("host_traces", vec![event("alloc", 4, 1)])
    .with("host_segments", vec![segment(1, 512, vec![])]);
    write("odd.pickle", &pickle(&odd, CPYTHON));
    write("odd.json", odd.json().as_bytes());
    write("global.pickle", b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.");
    let opcodes = b"\x80\x05}(\x8c\x01aC\x01x\x8c\x01b\x8f(K\x01\x90\x8c\x01cB\x01\0\0\0xU\x01dI01\nU\x01eL5L\nS'f'\nF0.5\n\
        Vg\n(K\x01K\x02tU\x01h(K\x01K\x02lU\x01i(K\x01K\x02dN20(1p5\ng5\n0\x8b\x01\0\0\0\x7f\x8e\x01\0\0\0\0\0\0\0x(\x91K\x01\x85u.";
    write("opcodes.pickle", opcodes);
}
