//! `gpuheap whatif` on recordings of real programs.

use std::path::PathBuf;

use gpuheap_report::WHATIF_JSON_SCHEMA;
use serde_json::Value;

use crate::context::{TestContext, follows, stdout_of};
use crate::recordings::recording;

const GIB: u64 = 1 << 30;

fn json(path: &PathBuf, more: &[&str]) -> Value {
    let output = TestContext::new().command().arg("whatif").arg(path).arg("--json").args(more).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{}", path.display());
    assert_eq!(output.status.code(), Some(0), "{}", path.display());
    let report = serde_json::from_slice(&output.stdout).unwrap();
    follows(WHATIF_JSON_SCHEMA, &report);
    report
}

fn rows(report: &Value) -> &Vec<Value> {
    report["whatif"].as_array().unwrap()
}

#[test]
fn a_search_finds_what_saves_most() {
    let report = json(&recording("models", "gpt2_varlen"), &[]);
    assert_eq!(report["best"], "expandable_segments:True");
    let rows = rows(&report);
    assert_eq!((&rows[0]["conf"], &rows[0]["role"]), (&"".into(), &"recorded".into()));
    assert_eq!(rows[0]["peak_reserved_bytes"], 39_151_730_688_u64);
    let best = rows.iter().find(|row| row["conf"] == "expandable_segments:True").unwrap();
    assert!(best["peak_reserved_bytes"].as_u64().unwrap() <= 28_300_000_000);
    let saves = rows[0]["peak_reserved_bytes"].as_u64().unwrap() - best["peak_reserved_bytes"].as_u64().unwrap();
    assert_eq!(report["saves_bytes"], saves);
}

#[test]
fn the_screen_ends_with_the_line_to_copy() {
    let text = stdout_of(TestContext::new().command().arg("whatif").arg(recording("models", "gpt2_varlen")), 0);
    assert!(text.contains("stock settings  (recorded)"), "{text}");
    assert!(text.contains("expandable_segments:True  (best)"), "{text}");
    assert!(text.ends_with("\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    let text = stdout_of(TestContext::new().command().arg("whatif").arg(recording("loops", "plain_adam")), 0);
    assert!(text.ends_with("\nNothing better was found\n"), "{text}");
}

#[test]
fn given_settings_are_the_rows_with_their_strings_unchanged() {
    let given = ["max_split_size_mb:128", " expandable_segments : True", ""];
    let arguments: Vec<&str> = given.iter().flat_map(|conf| ["--conf", conf]).collect();
    let report = json(&recording("loops", "varlen_train"), &arguments);
    let confs: Vec<&str> = rows(&report).iter().map(|row| row["conf"].as_str().unwrap()).collect();
    assert_eq!(confs, ["", "max_split_size_mb:128", " expandable_segments : True", ""]);
    assert!(rows(&report)[1..].iter().all(|row| row["role"] == "given"));
}

#[test]
fn a_limit_holds_for_all_rows() {
    let limit = 30 * GIB;
    let report = json(&recording("models", "gpt2_varlen"), &["--limit", "30GiB"]);
    for row in rows(&report) {
        assert_eq!(row["limit_bytes"], limit);
        assert!(row["peak_reserved_bytes"].as_u64().unwrap() <= limit, "{row}");
    }
}

#[test]
fn a_run_out_of_memory_is_told_with_its_place() {
    let path = recording("models", "gpt2_varlen");
    let report = json(&path, &["--limit", "20GiB", "--conf", ""]);
    assert!(rows(&report).iter().all(|row| row["oom"] == true && row["oom_site"]["function"] == "step"), "{report}");
    assert_eq!(report["best"], Value::Null);
    let context = TestContext::new();
    let mut command = context.command();
    let text = stdout_of(command.arg("whatif").arg(&path).args(["--limit", "20GiB", "--conf", ""]), 0);
    assert!(text.contains("out of memory in event"), "{text}");
    assert!(text.contains("runs out of memory under 20.0 GiB with every setting"), "{text}");
}

#[test]
fn verification_says_how_many_segment_events_match() {
    let verify = |name: &str, code: i32| {
        let path = recording("models", name);
        let context = TestContext::new();
        std::fs::copy(path, context.path("run.pickle.gz")).unwrap();
        stdout_of(context.command().args(["whatif", "run.pickle.gz", "--verify"]), code)
    };
    insta::assert_snapshot!(verify("gpt2_varlen", 0), @"
    Exact: 428 of 428 segment events predicted with stock settings
    Source      run.pickle.gz
    ");
    insta::assert_snapshot!(verify("gpt2_expandable", 0), @"
    Exact: 380 of 380 segment events predicted with expandable_segments:True
    Source      run.pickle.gz
    ");
    let report = json(&recording("models", "gpt2_gc"), &["--verify"]);
    assert_eq!(rows(&report).len(), 0);
    assert_eq!((&report["replay"]["exact"], &report["replay"]["matched"]), (&true.into(), &504.into()));
}

#[test]
fn a_recording_that_cannot_be_predicted_fails_its_verification() {
    // The largest segment of a small program is said to be larger than it was.
    let context = TestContext::new().with_file("changed.json", CHANGED.as_bytes());
    insta::assert_snapshot!(context.run(["whatif", "changed.json", "--verify"]), @r#"
    exit_code: 1
    ----- stdout -----
    Not exact: 0 of 1 segment event predicted with stock settings
    First       a segment of 6291456 bytes was made at 0x100000, the policy makes
                one of 2097152
    Source      changed.json
    Notes       No frames were recorded: nothing can be said about places and
                classes; record with `stacks="python"`

    ----- stderr -----
    "#);
    let output = context.command().args(["whatif", "changed.json", "--verify", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    follows(WHATIF_JSON_SCHEMA, &serde_json::from_slice(&output.stdout).unwrap());
}

/// One request of 1 MiB, for which PyTorch would have taken a segment of 2 MiB and not of 6.
const CHANGED: &str = r#"{
  "segments": [{
    "device": 0, "address": 1048576, "total_size": 6291456, "allocated_size": 1048576, "active_size": 1048576,
    "stream": 0, "segment_type": "small", "is_expandable": false, "segment_pool_id": [0, 0], "frames": [],
    "blocks": [
      {"address": 1048576, "size": 1048576, "requested_size": 1048576, "state": "active_allocated", "frames": []},
      {"address": 2097152, "size": 5242880, "requested_size": 0, "state": "inactive", "frames": []}
    ]
  }],
  "device_traces": [[
    {"action": "segment_alloc", "addr": 1048576, "size": 6291456, "stream": 0, "frames": [], "time_us": 1},
    {"action": "alloc", "addr": 1048576, "size": 1048576, "stream": 0, "frames": [], "time_us": 2}
  ]]
}"#;

#[test]
fn settings_that_pytorch_refuses() {
    let context = TestContext::new();
    std::fs::copy(recording("loops", "varlen_train"), context.path("run.pickle.gz")).unwrap();
    insta::assert_snapshot!(context.run(["whatif", "run.pickle.gz", "--conf", "expandable_segment:True"]), @r#"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to read the settings `expandable_segment:True`
      cause: PyTorch refuses it: Unrecognized key 'expandable_segment' in CUDA allocator config.

    hint: `--conf` takes what `PYTORCH_CUDA_ALLOC_CONF` takes, such as `--conf expandable_segments:True`; `--conf ""` is stock PyTorch
    "#);
}

#[test]
fn verification_takes_no_settings() {
    insta::assert_snapshot!(TestContext::new().run(["whatif", "x", "--verify", "--conf", ""]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: the argument '--verify' cannot be used with '--conf <STRING>'

    Usage: gpuheap whatif --verify <FILE>

    For more information, try '--help'.
    ");
}

#[test]
fn missing_file() {
    insta::assert_snapshot!(TestContext::new().run(["whatif", "runs/missing.pickle"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to open `runs/missing.pickle`
      cause: No such file or directory (os error 2)

    hint: there is no folder `runs`
    ");
}

#[test]
fn the_same_input_gives_the_same_output() {
    let run = || stdout_of(TestContext::new().command().arg("whatif").arg(recording("models", "bert_sgd")), 0);
    assert_eq!(run(), run());
}

#[test]
fn markdown_goes_to_a_file() {
    let context = TestContext::new();
    let mut command = context.command();
    let arguments = ["--md", "--output", "whatif.md"];
    assert_eq!(stdout_of(command.arg("whatif").arg(recording("loops", "varlen_train")).args(arguments), 0), "");
    let text = std::fs::read_to_string(context.path("whatif.md")).unwrap();
    assert!(text.starts_with("### With ") && text.contains("| stock settings | (recorded) |"), "{text}");
}

#[test]
fn nothing_is_recommended_that_does_not_run() {
    let path = recording("models", "gpt2_varlen");
    let report = json(&path, &["--limit", "1GiB"]);
    assert!(rows(&report).iter().all(|row| row["oom"] == true));
    assert_eq!((&report["best"], &report["saves_bytes"]), (&Value::Null, &Value::Null));
    let context = TestContext::new();
    let text = stdout_of(context.command().arg("whatif").arg(&path).args(["--limit", "1GiB"]), 0);
    assert!(!text.contains("(best)"), "{text}");
    assert!(text.ends_with("\nNothing better was found\n"), "{text}");
}

#[test]
fn the_recorded_row_is_what_was_recorded() {
    // Runs under a cap, runs whose segments ascend, and one that died.
    let recordings = [
        ("models", "gpt2_cap30"),
        ("models", "gpt2_gc"),
        ("models", "llama_oom"),
        ("loops", "amp_cycle"),
        ("loops", "curriculum"),
        ("loops", "checkpointed"),
    ];
    for (folder, name) in recordings {
        let path = recording(folder, name);
        let explained = TestContext::new().command().arg("explain").arg(&path).arg("--json").output().unwrap();
        let explained: Value = serde_json::from_slice(&explained.stdout).unwrap();
        let report = json(&path, &[]);
        let row = &rows(&report)[0];
        assert_eq!(row["peak_reserved_bytes"], explained["peaks"]["reserved_bytes"], "{name}");
        assert_eq!(row["oom"], name == "llama_oom", "{name}");
        // And run once more, under a limit that does not bind.
        if folder == "loops" {
            let again = json(&path, &["--limit", "1TiB"]);
            assert_eq!(rows(&again)[0]["peak_reserved_bytes"], row["peak_reserved_bytes"], "{name}");
            assert_eq!(rows(&again)[0]["exact"], true, "{name}");
        }
    }
}

#[test]
fn the_smallest_limit_is_one_that_works() {
    for (folder, name, conf) in [
        ("edge", "annotated", "expandable_segments:True"),
        ("loops", "varlen_train", "expandable_segments:True"),
        ("loops", "varlen_train", "max_split_size_mb:128"),
    ] {
        let path = recording(folder, name);
        let smallest = |report: &Value| rows(report)[1]["smallest_limit_bytes"].as_u64().unwrap();
        let limit = smallest(&json(&path, &["--conf", conf]));
        let under = json(&path, &["--conf", conf, "--limit", &limit.to_string()]);
        assert_eq!(rows(&under)[1]["oom"], false, "{name} {conf}");
        let less = json(&path, &["--conf", conf, "--limit", &(limit - (2 << 20)).to_string()]);
        assert_eq!(rows(&less)[1]["oom"], true, "{name} {conf}");
    }
}
