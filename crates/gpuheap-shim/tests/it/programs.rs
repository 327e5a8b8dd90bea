//! Programs see the same with the shim and without, and the figures are what they hold.

use std::fs;
use std::path::Path;
use std::process::Command;

use gpuheap_cuda::symbols::{self, Flavour};
use gpuheap_shim::NAMES;

use crate::rig::{Driver, Rig, said};

/// What the C program holds at its stops. Kinds: 0 linear, 1 pools, 2 physical, 3 arrays, 4 graphs, 5 managed; on the host
/// 6 physical, 7 page-locked, 8 registered, 9 of others.
const CHARGED: &str = "\
linear: 0=3172328 5=5242880 host7=12345 host8=8192
the same: 0=3172328 5=5242880 host7=12345 host8=8192
nothing:
one chunk: 1=33554432
two pools: 1=75497472
one keeps: 1=41943040
nothing:
created: 2=6291456 host6=6291456
held by mappings: 2=6291456 host6=6291456
still: 2=6291456 host6=6291456
held by handles: 2=6291456 host6=6291456
imported: 2=6291456 host6=6291456 host9=2097152
nothing:
others: 0=3145728 3=8000000 4=4194304
one left: 0=3145728
nothing:
";

#[test]
fn a_program_is_told_the_same_and_every_byte_is_charged_however_it_finds_functions() {
    let rig = Rig::new();
    let client = rig.client();
    for way in ["0", "1", "2"] {
        let run = |driver| said(rig.command(driver, &client).arg("calls").env("CLIENT_WAY", way));
        let (bare, nothing) = run(Driver::Bare);
        assert_eq!(nothing, "");
        let (with, charged) = run(Driver::Shim);
        assert_eq!(with, bare, "way {way}");
        assert_eq!(charged, CHARGED, "way {way}");
        assert!(bare.lines().count() > 100);
    }
}

#[test]
fn every_form_of_every_function_is_answered_as_the_driver_answers() {
    let rig = Rig::new();
    let client = rig.client();
    let list = rig.path("list");
    let lines: Vec<String> = symbols::all()
        .iter()
        .map(|symbol| {
            let flavour = match symbol.flavour {
                Flavour::Legacy => "-",
                Flavour::ThreadNoStream => "ptds",
                Flavour::ThreadStream => "ptsz",
            };
            format!("{} {} {flavour} {}\n", symbol.base, symbol.since, symbol.name)
        })
        .collect();
    fs::write(&list, lines.concat()).unwrap();
    for version in ["13020", "12000", "11030"] {
        let run = |driver| {
            let setup = format!("version {version}");
            let mut command = rig.command(driver, &client);
            said(command.arg("resolve").arg(&list).env("GPUHEAP_FAKECUDA", setup)).0
        };
        let (bare, with) = (run(Driver::Bare), run(Driver::Shim));
        // With the shim, "the library's own export" is the shim's for overridden functions and the driver's for others:
        // so the same answers mean that each is swapped, in every form, and nothing else is.
        assert_eq!(with, bare);
        let own = with.lines().filter(|line| line.contains(": 0 0 1, 0 1, 1")).count();
        assert!(version != "13020" || own > 600, "{own} answers are the library's exports");
    }
}

#[test]
fn memory_is_charged_to_the_device_that_it_is_on() {
    let rig = Rig::new();
    let client = rig.client();
    let run = |driver| said(rig.command(driver, &client).arg("devices").env("GPUHEAP_FAKECUDA", "devices 2"));
    let ((bare, _), (with, charged)) = (run(Driver::Bare), run(Driver::Shim));
    assert_eq!(with, bare);
    assert!(bare.contains("without a context: 201\n"), "{bare}");
    let expected = "both: other0=3145728 other1=33554432 other2=4194304 0=1048576\n\
        other: other0=3145728 other1=33554432 other2=4194304\n\
        a pool's chunk: other1=33554432\n";
    assert_eq!(charged, expected);
}

#[test]
fn many_threads_may_start_at_once() {
    let rig = Rig::new();
    let client = rig.client();
    for _ in 0..3 {
        let (_, charged) = said(rig.command(Driver::Shim, &client).arg("threads"));
        assert_eq!(charged, format!("threads: 0={}\n", 64 * 10 * 1000));
    }
}

#[test]
fn a_child_of_the_process_has_no_driver_and_figures_of_its_own() {
    let rig = Rig::new();
    let client = rig.client();
    let (bare, _) = said(rig.command(Driver::Bare, &client).arg("forked"));
    let (with, charged) = said(rig.command(Driver::Shim, &client).arg("forked"));
    assert_eq!(with, bare);
    assert_eq!(charged, "child:\nparent: 0=3145728\n");
}

#[test]
fn a_driver_that_calls_exported_functions_itself_is_left_alone() {
    let rig = Rig::new();
    let client = rig.client();
    let (with, charged) = said(rig.command(Driver::Shim, &client).arg("nested"));
    assert!(with.contains("from within: 0\ncreate: 0\n"), "{with}");
    assert_eq!(charged, "nested: 2=4194304\nafter: 0=1048576 2=4194304\n");
}

/// Each overridden function returns an error of the driver's as it is, and no sum goes below zero for it.
#[test]
fn every_error_of_the_driver_s_comes_through_and_the_figures_stay_sane() {
    let rig = Rig::new();
    let client = rig.client();
    let functions = NAMES.iter().filter(|name| !name.starts_with("cuGetProcAddress") && **name != "cuInit");
    for (function, code) in functions.zip(["2", "700", "999"].iter().cycle()) {
        let run = |driver| {
            let mut command = rig.command(driver, &client);
            said(command.arg("calls").env("GPUHEAP_FAKECUDA", format!("fail {function} 1 {code} 1000")))
        };
        let ((bare, _), (with, charged)) = (run(Driver::Bare), run(Driver::Shim));
        assert_eq!(with, bare, "{function} returns {code}");
        assert!(!charged.contains("MISTAKES"), "{function} returns {code}: {charged}");
    }
}

#[test]
fn random_memory_of_all_kinds_on_many_threads_keeps_its_content_and_leaves_nothing_charged() {
    let rig = Rig::new();
    let client = rig.client();
    let processes: Vec<_> = (0..3)
        .map(|_| {
            let mut command = rig.command(Driver::Shim, &client);
            command.arg("stress").env("GPUHEAP_LEDGER", rig.path("ledger"));
            std::thread::spawn(move || said(&mut command))
        })
        .collect();
    for process in processes {
        let (text, charged) = process.join().unwrap();
        assert!(text.ends_with("synchronize: 0\n"), "{text}");
        assert_eq!(charged, "end:\n");
    }
}

#[test]
fn python_sees_the_same_and_its_bytes_are_charged() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3 here");
        return;
    }
    let rig = Rig::new();
    let script = rig.path("client.py");
    fs::write(&script, include_str!("client.py")).unwrap();
    let run = |driver| said(rig.command(driver, Path::new("python3")).arg(&script));
    let (bare, _) = run(Driver::Bare);
    let (with, charged) = run(Driver::Shim);
    assert_eq!(with, bare);
    assert!(bare.contains("b'\\x07\\x07\\x07\\x07'\n") && bare.contains("no such function"), "{bare}");
    assert_eq!(charged, "5242880\n0\n");
}
