//! `gpuheap export`. What the formats' own tools read in exports is checked by `cargo xtask exports`.

use std::process::Stdio;

use crate::context::{TestContext, stdout_of};
use crate::recordings::{explain_json, recording};

const FORMATS: [&str; 8] = ["perfetto", "chrome", "pprof", "speedscope", "firefox", "folded", "csv", "parquet"];

#[test]
fn help_of_export() {
    insta::assert_snapshot!(TestContext::new().run(["export", "--help"]));
}

#[test]
fn every_format_is_the_same_in_a_file_and_on_standard_output() {
    let context = TestContext::new();
    let file = recording("edge", "annotated");
    for format in FORMATS {
        let mut command = context.command();
        let output = command.arg("export").arg(&file).args(["--to", format, "-o", "-"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{format}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty() && !output.stdout.is_empty(), "{format}");
        let mut command = context.command();
        stdout_of(command.arg("export").arg(&file).args(["--to", format, "--output", "out"]), 0);
        assert_eq!(std::fs::read(context.path("out")).unwrap(), output.stdout, "{format}");
    }
    assert_eq!(std::fs::read_dir(context.path("")).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn folded_stacks_hold_what_the_report_says() {
    let cases = [
        ("models", "gan_leak", "peak"),
        ("models", "oom_frag_11.0", "oom"),
        ("edge", "late_start", "end"),
        ("edge", "native_frames", "peak-reserved"),
        ("edge", "ring_lost_start", "peak"),
    ];
    for (folder, name, moment) in cases {
        let file = recording(folder, name);
        let context = TestContext::new();
        let mut command = context.command();
        let folded = stdout_of(command.arg("export").arg(&file).args(["--to", "folded", "--at", moment]), 0);
        let bytes = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
        let report = &explain_json(&file, &[])[moment.replace('-', "_")];
        assert_eq!(folded.lines().map(bytes).sum::<u64>(), report["allocated_bytes"].as_u64().unwrap(), "{name}");
    }
}

#[test]
fn backward_passes_hang_beneath_what_started_them() {
    let file = recording("models", "gan_leak");
    let context = TestContext::new();
    let mut command = context.command();
    let folded = stdout_of(command.arg("export").arg(&file).args(["--to", "folded"]), 0);
    assert!(folded.lines().any(|line| line.contains(");backward pass ")), "{folded}");
}

#[test]
fn rows_of_a_device_and_of_a_moment() {
    let file = recording("edge", "two_devices");
    let rows = |more: &[&str]| {
        let context = TestContext::new();
        let mut command = context.command();
        let text = stdout_of(command.arg("export").arg(&file).args(["--to", "csv"]).args(more), 0);
        text.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    for device in ["0", "1"] {
        let all = rows(&["--device", device]);
        let held = rows(&["--device", device, "--at", "end"]);
        assert!(!held.is_empty() && held.len() < all.len(), "{} of {}", held.len(), all.len());
        assert!(all.iter().all(|of| of == device), "{all:?}");
    }
}

#[test]
fn moments_that_never_came() {
    let file = recording("edge", "annotated");
    let context = TestContext::new();
    let output = context.command().arg("export").arg(&file).args(["--to", "folded", "--at", "oom"]).output().unwrap();
    insta::assert_snapshot!(context.show(&output), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: The recording has no such moment: no allocation failed

    hint: leave `--at` out to explain the peak
    ");
}

#[test]
fn formats_with_every_moment() {
    let file = recording("edge", "annotated");
    let context = TestContext::new();
    let output = context.command().arg("export").arg(&file).args(["--to", "chrome", "--at", "end"]).output().unwrap();
    insta::assert_snapshot!(context.show(&output), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: The format `chrome` has every moment of the recording

    hint: leave `--at` out; the named moments are marked in it
    ");
}

#[test]
fn formats_that_are_none() {
    insta::assert_snapshot!(TestContext::new().run(["export", "x", "--to", "svg"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: invalid value 'svg' for '--to <FORMAT>'
      [possible values: perfetto, chrome, pprof, speedscope, firefox, folded, csv, parquet, gpuheap]

    For more information, try '--help'.
    ");
    insta::assert_snapshot!(TestContext::new().run(["export", "x"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: the following required arguments were not provided:
      --to <FORMAT>

    Usage: gpuheap export --to <FORMAT> <FILE>

    For more information, try '--help'.
    ");
}

#[test]
fn places_that_cannot_be_written() {
    let file = recording("edge", "annotated");
    let context = TestContext::new().with_file("kept", b"before");
    let mut command = context.command();
    let output = command.arg("export").arg(&file).args(["--to", "csv", "-o", "no/such/folder"]).output().unwrap();
    insta::assert_snapshot!(context.show(&output), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to write `no/such/folder`
      cause: No such file or directory (os error 2)
    ");
    // What was there stays if there is nothing to write.
    let output = context.command().args(["export", "missing.pickle", "--to", "csv", "-o", "kept"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(std::fs::read(context.path("kept")).unwrap(), b"before");
}

#[test]
fn a_reader_that_goes_away_has_what_it_wanted() {
    let file = recording("models", "gan_leak");
    let context = TestContext::new();
    for format in FORMATS {
        let mut command = context.command();
        command.arg("export").arg(&file).args(["--to", format]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()), "{format}");
    }
}

/// `script` gives the command a terminal.
#[cfg(target_os = "linux")]
#[test]
fn terminals_get_text_only() {
    let file = recording("edge", "annotated");
    let context = TestContext::new();
    let export = |format: &str| {
        let line = format!("'{}' export '{}' --to {format}", env!("CARGO_BIN_EXE_gpuheap"), file.display());
        let mut command = std::process::Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).stdin(Stdio::null());
        command.env("TERM", "dumb").env("NO_COLOR", "1").current_dir(context.path(""));
        command.output()
    };
    // Not every machine has it.
    let Ok(output) = export("parquet") else { return };
    insta::assert_snapshot!(context.show(&output).replace('\r', ""), @"
    exit_code: 2
    ----- stdout -----
    error: The format `parquet` is not text: a terminal cannot show it

    hint: name a file with `--output`, or send it on with `|` or `>`

    ----- stderr -----
    ");
    let output = export("folded").unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout).unwrap().contains(".py:"));
}
