//! `gpuheap run --record`.

use std::fs;

use super::rig::{Rig, said};

#[test]
fn what_happened_to_memory_can_be_explained_afterwards() {
    let rig = Rig::new();
    let client = rig.client();
    let client = client.to_str().unwrap();
    let mut command = rig.run(&["--budget", "64MiB", "--record", "driver.gpuheap"], &[client, "kinds"]);
    let (code, output, error) = said(&mut command);
    assert_eq!(code, Some(0), "{error}");
    assert!(output.starts_with("alloc 0\n"), "{output}");
    assert!(error.ends_with("; 2 requests refused\ngpuheap: recorded in `driver.gpuheap`\n"), "{error}");
    let (code, report, error) = said(rig.command().args(["explain", "driver.gpuheap", "--json"]));
    assert_eq!(code, Some(0), "{error}");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["peaks"]["allocated_bytes"], 64 << 20);
    let (_, text, _) = said(rig.command().args(["explain", "driver.gpuheap"]));
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("under a limit of 64.0 MiB"), "the run's own budget: {text}");
    // The account closes down to the size of the device.
    assert!(text.contains("= reserved ") && text.contains("free on the device") && text.contains("= device"), "{text}");
    assert_eq!(rig.runs().len(), 0);
}

#[test]
fn without_it_nothing_is_written_and_a_folder_that_is_not_there_is_told_first() {
    let rig = Rig::new();
    let client = rig.client();
    let script = format!("{} once 1048576 < /dev/null; ls $GPUHEAP_RUN", client.display());
    let (code, output, error) = said(&mut rig.run(&[], &["sh", "-c", &script]));
    assert_eq!(code, Some(0), "{error}");
    assert!(output.contains("ledger\n") && !output.contains("events"), "{output}");
    let (code, _, error) = said(&mut rig.run(&["--record", "nowhere/x.gpuheap"], &["touch", "was-run"]));
    assert_eq!(code, Some(2));
    assert_eq!(
        error,
        "error: Failed to find the folder of `nowhere/x.gpuheap`, where the recording is to be written\n"
    );
    assert!(!rig.path("was-run").exists());
    fs::create_dir(rig.path("folder.gpuheap")).unwrap();
    let (code, _, error) = said(&mut rig.run(&["--record", "folder.gpuheap"], &["touch", "was-run"]));
    assert_eq!(code, Some(2));
    assert!(error.starts_with("error: Failed to write the recording `folder.gpuheap`: it is a folder\n"), "{error}");
    assert!(!rig.path("was-run").exists());
    // What can only be told at the end does not change how the program ended.
    let script = "mkdir made.gpuheap; exit 6";
    let (code, _, error) = said(&mut rig.run(&["--record", "made.gpuheap"], &["sh", "-c", script]));
    assert_eq!(code, Some(6));
    assert!(error.starts_with("gpuheap: failed to write the recording `made.gpuheap`: "), "{error}");
}
