//! `gpuheap diff` on recordings of real programs.

use std::path::Path;

use gpuheap_report::DIFF_JSON_SCHEMA;
use serde_json::Value;

use crate::context::{TestContext, follows, stdout_of};
use crate::recordings::recording;

fn json(before: &Path, after: &Path) -> Value {
    let text = stdout_of(TestContext::new().command().arg("diff").arg(before).arg(after).arg("--json"), 0);
    let diff = serde_json::from_str(&text).unwrap();
    follows(DIFF_JSON_SCHEMA, &diff);
    diff
}

#[test]
fn a_mended_leak_is_seen_in_every_part() {
    let (before, after) = (recording("loops", "running_loss"), recording("loops", "running_loss_item"));
    let diff = json(&before, &after);
    assert_eq!(
        (&diff["before"]["verdict"]["kind"], &diff["after"]["verdict"]["kind"]),
        (&"leak".into(), &"healthy".into())
    );
    assert!(diff["before"]["leak_bytes_per_step"].as_u64().unwrap() > 0);
    assert_eq!(diff["after"]["leak_bytes_per_step"], 0);
    assert_eq!(diff["classes"][0]["class"], "activations");
    assert_eq!(diff["growth"][0]["before_site"]["function"], "forward");
    let sum = |side: &str| diff["classes"].as_array().unwrap().iter().filter_map(|row| row[side].as_u64()).sum::<u64>();
    assert_eq!(diff["before"]["peaks"]["allocated_bytes"], sum("before_bytes"));
    assert_eq!(diff["after"]["peaks"]["allocated_bytes"], sum("after_bytes"));

    let text = stdout_of(TestContext::new().command().arg("diff").arg(before).arg(after), 0);
    assert!(text.starts_with("At the peak 240 MiB (71 %) less allocated"), "{text}");
    assert!(text.contains("Leaked each step, by line"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_recording_is_like_itself() {
    let context = TestContext::new();
    std::fs::copy(recording("loops", "plain_adam"), context.path("run.pickle.gz")).unwrap();
    insta::assert_snapshot!(context.run(["diff", "run.pickle.gz", "run.pickle.gz"]), @"
    exit_code: 0
    ----- stdout -----
    At the peak as much allocated as before (126 MiB), and as much reserved as
      before (134 MiB)

    Before      run.pickle.gz
                Healthy: 126 MiB allocated and 134 MiB reserved at most, 6 % of it
                never in use; no leak in 35 steps judged
    After       run.pickle.gz
                Healthy: 126 MiB allocated and 134 MiB reserved at most, 6 % of it
                never in use; no leak in 35 steps judged

    In all
       before    after  change
      126 MiB  126 MiB     0 B    allocated at most
      134 MiB  134 MiB     0 B    reserved at most
          0 B      0 B     0 B    leaked each step

    By class at the peak of allocated memory
        before     after  change    class
      12.1 MiB  12.1 MiB     0 B    parameters
      12.1 MiB  12.1 MiB     0 B    gradients
      24.1 MiB  24.1 MiB     0 B    optimizer state
      1.01 MiB  1.01 MiB     0 B    activations
      1.00 MiB  1.00 MiB     0 B    inputs
      12.1 MiB  12.1 MiB     0 B    temporaries
      64.0 MiB  64.0 MiB     0 B    library workspace
      2.80 KiB  2.80 KiB     0 B    rounding

    By line at the peak of allocated memory
      Every line holds what it held before.

    ----- stderr -----
    ");
    let diff = json(&context.path("run.pickle.gz"), &context.path("run.pickle.gz"));
    for part in ["classes", "sites", "growth"] {
        assert!(diff[part].as_array().unwrap().iter().all(|row| row["change_bytes"] == 0), "{part}");
    }
}

/// Two devices, the second of which holds twice as much.
const RANKS: &str = r#"{
  "segments": [
    {"device": 0, "address": 2097152, "total_size": 2097152, "allocated_size": 1048576, "active_size": 1048576,
     "stream": 0, "segment_type": "small", "blocks": [
       {"address": 2097152, "size": 1048576, "requested_size": 1048576, "state": "active_allocated"},
       {"address": 3145728, "size": 1048576, "requested_size": 0, "state": "inactive"}]},
    {"device": 1, "address": 2097152, "total_size": 2097152, "allocated_size": 2097152, "active_size": 2097152,
     "stream": 0, "segment_type": "small", "blocks": [
       {"address": 2097152, "size": 1048576, "requested_size": 1048576, "state": "active_allocated"},
       {"address": 3145728, "size": 1048576, "requested_size": 1048576, "state": "active_allocated"}]}
  ],
  "device_traces": [
    [{"action": "segment_alloc", "addr": 2097152, "size": 2097152, "stream": 0, "time_us": 1},
     {"action": "alloc", "addr": 2097152, "size": 1048576, "stream": 0, "time_us": 2}],
    [{"action": "segment_alloc", "addr": 2097152, "size": 2097152, "stream": 0, "time_us": 1},
     {"action": "alloc", "addr": 2097152, "size": 1048576, "stream": 0, "time_us": 2},
     {"action": "alloc", "addr": 3145728, "size": 1048576, "stream": 0, "time_us": 3}]
  ]
}"#;

#[test]
fn two_ranks_of_one_file() {
    let context = TestContext::new().with_file("ranks.json", RANKS.as_bytes());
    let arguments = ["diff", "ranks.json", "ranks.json", "--device-a", "0", "--device-b", "1"];
    let text = stdout_of(context.command().args(arguments), 0);
    assert!(text.starts_with("At the peak 1.00 MiB (100 %) more allocated, and as much reserved as before"), "{text}");
    assert!(text.contains("ranks.json, device 1"), "{text}");
    let text = stdout_of(context.command().args(["diff", "ranks.json", "ranks.json", "--device", "1"]), 0);
    assert!(text.starts_with("At the peak as much allocated as before"), "{text}");
    insta::assert_snapshot!(context.run(["diff", "ranks.json", "ranks.json", "--device-b", "7"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: The recording has no device 7: it has devices 0, 1

    hint: leave `--device` out to take the fullest
    ");
}

#[test]
fn both_recordings_are_needed() {
    insta::assert_snapshot!(TestContext::new().run(["diff", "a.pickle"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: the following required arguments were not provided:
      <B>

    Usage: gpuheap diff <A> <B>

    For more information, try '--help'.
    ");
}

#[test]
fn markdown_has_all_lines() {
    let (before, after) = (recording("loops", "running_loss"), recording("loops", "running_loss_item"));
    let text = stdout_of(TestContext::new().command().arg("diff").arg(before).arg(after).arg("--md"), 0);
    assert!(text.starts_with("### At the peak 240 MiB (71 %) less allocated"), "{text}");
    assert!(text.contains("| activations | 60.0 MiB |"), "{text}");
}
