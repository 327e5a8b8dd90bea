//! `gpuheap check`, and the workflow that uses it.

use std::path::Path;

use gpuheap_report::CHECK_JSON_SCHEMA;
use serde_json::Value;

use crate::context::{TestContext, follows, stdout_of};
use crate::recordings::{recording, root};

/// A folder with a recording that fragments and one that leaks.
fn context() -> TestContext {
    let context = TestContext::new();
    std::fs::copy(recording("models", "gpt2_varlen"), context.path("varlen.pickle.gz")).unwrap();
    std::fs::copy(recording("loops", "loss_accumulate"), context.path("leak.pickle.gz")).unwrap();
    context
}

#[test]
fn all_within_the_budget() {
    insta::assert_snapshot!(context().run(["check", "varlen.pickle.gz", "--max-peak", "26GiB", "--no-leaks"]), @"
    exit_code: 0
    ----- stdout -----
    All 2 checks hold

    ----- stderr -----
    ");
}

#[test]
fn one_line_for_each_violation() {
    let budget = ["--max-peak", "20GiB", "--max-reserved", "30GiB", "--max-waste", "15", "--no-leaks"];
    let files = ["check", "varlen.pickle.gz", "leak.pickle.gz"];
    insta::assert_snapshot!(context().run(files.into_iter().chain(budget)), @"
    exit_code: 1
    ----- stdout -----
    varlen.pickle.gz: max-peak: the most allocated memory is 25.3 GiB (27129146368 bytes), above 20.0 GiB (21474836480 bytes), at /home/user/capture.py:56 in step
    varlen.pickle.gz: max-reserved: the most reserved memory is 36.5 GiB (39151730688 bytes), above 30.0 GiB (32212254720 bytes), at /home/user/capture.py:56 in step
    varlen.pickle.gz: max-waste: 30.7 % of the most reserved memory was never in use, above 15 %, at /home/user/capture.py:56 in step
    leak.pickle.gz: no-leaks: +7.00 MiB per optimizer step (35 of 50 steps judged): the graph of every forward pass is kept, at /home/user/loops/cases_a.py:16 in loss_accumulate

    ----- stderr -----
    ");
    let github = files.into_iter().chain(budget).chain(["--format", "github"]);
    insta::assert_snapshot!(context().run(github), @"
    exit_code: 1
    ----- stdout -----
    ::error file=/home/user/capture.py,line=56,title=gpuheap check max-peak::varlen.pickle.gz: the most allocated memory is 25.3 GiB (27129146368 bytes), above 20.0 GiB (21474836480 bytes)
    ::error file=/home/user/capture.py,line=56,title=gpuheap check max-reserved::varlen.pickle.gz: the most reserved memory is 36.5 GiB (39151730688 bytes), above 30.0 GiB (32212254720 bytes)
    ::error file=/home/user/capture.py,line=56,title=gpuheap check max-waste::varlen.pickle.gz: 30.7 %25 of the most reserved memory was never in use, above 15 %25
    ::error file=/home/user/loops/cases_a.py,line=16,title=gpuheap check no-leaks::leak.pickle.gz: +7.00 MiB per optimizer step (35 of 50 steps judged): the graph of every forward pass is kept

    ----- stderr -----
    ");
}

#[test]
fn limits_are_exact() {
    let code = |limit: &str| {
        let output = context().command().args(["check", "varlen.pickle.gz", "--max-reserved", limit]).output().unwrap();
        output.status.code()
    };
    assert_eq!(code("39151730688"), Some(0));
    assert_eq!(code("39151730687"), Some(1));
}

#[test]
fn a_budget_file_fills_what_the_command_line_leaves_open() {
    let context = context().with_file("gpuheap.toml", b"max-peak = \"20GiB\"\nmax-waste = 40\n");
    let check = |more: &[&str], code| {
        let arguments = ["check", "varlen.pickle.gz", "--budget-file", "gpuheap.toml", "--format", "json"];
        let report: Value =
            serde_json::from_str(&stdout_of(context.command().args(arguments).args(more), code)).unwrap();
        follows(CHECK_JSON_SCHEMA, &report);
        let checks = report["recordings"][0]["checks"].as_array().unwrap().clone();
        checks
            .iter()
            .map(|check| (check["name"].as_str().unwrap().to_owned(), check["holds"] == true))
            .collect::<Vec<_>>()
    };
    let named = |name: &str, holds| (name.to_owned(), holds);
    assert_eq!(check(&[], 1), [named("max-peak", false), named("max-waste", true)]);
    assert_eq!(check(&["--max-peak", "26GiB"], 0), [named("max-peak", true), named("max-waste", true)]);
}

#[test]
fn budget_files_that_cannot_be_used() {
    let refused = |content: &str| {
        let context = context().with_file("gpuheap.toml", content.as_bytes());
        context.run(["check", "varlen.pickle.gz", "--budget-file", "gpuheap.toml"])
    };
    insta::assert_snapshot!(refused("max-waste = 15\n\n# a slip\nmax-peek = \"20GiB\"\n"), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to read budget file `gpuheap.toml`
      cause: line 4: unknown field `max-peek`, expected one of `max-peak`, `max-reserved`, `max-waste`, `no-leaks`
    ");
    insta::assert_snapshot!(refused("max-peak = \"20 apples\"\n"), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to read budget file `gpuheap.toml`
      cause: line 1: `20 apples` is not an amount of memory: write `24GiB`, `24GB`, `512MiB` or a plain number of bytes
    ");
    insta::assert_snapshot!(refused("max-peak = 0\n"), @r#"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to read budget file `gpuheap.toml`
      cause: line 1: invalid value: integer `0`, expected an amount of memory such as "24GiB", or a number of bytes
    "#);
    insta::assert_snapshot!(refused("max-waste = 120\n"), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to read budget file `gpuheap.toml`
      cause: line 1: invalid value: floating point `120.0`, expected a number from 0 to 100
    ");
    insta::assert_snapshot!(refused("no-leaks = yes\n"), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to read budget file `gpuheap.toml`
      cause: line 1: string values must be quoted, expected literal string
    ");
    insta::assert_snapshot!(refused("no-leaks = false\n"), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: The budget in `gpuheap.toml` checks nothing

    hint: give at least one of `--max-peak`, `--max-reserved`, `--max-waste` and `--no-leaks`, or a file that does so with `--budget-file`
    ");
    insta::assert_snapshot!(context().run(["check", "varlen.pickle.gz", "--budget-file", "missing.toml"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to read budget file `missing.toml`
      cause: No such file or directory (os error 2)
    ");
}

#[test]
fn a_check_of_nothing_is_wrong_use() {
    insta::assert_snapshot!(context().run(["check", "varlen.pickle.gz"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: The budget checks nothing

    hint: give at least one of `--max-peak`, `--max-reserved`, `--max-waste` and `--no-leaks`, or a file that does so with `--budget-file`
    ");
}

#[test]
fn bad_input_is_no_violation() {
    let context = context().with_file("broken.pickle", b"\x80\x04");
    let output = context.command().args(["check", "varlen.pickle.gz", "broken.pickle", "--no-leaks"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}

#[test]
fn percentages_that_are_none() {
    for wrong in ["-1", "101", "NaN", "much"] {
        let output = context().command().args(["check", "x", &format!("--max-waste={wrong}")]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn junit_goes_to_a_file_and_the_exit_code_still_tells() {
    let context = context();
    let arguments = ["check", "leak.pickle.gz", "--no-leaks", "--format", "junit", "--output", "gpuheap.xml"];
    assert_eq!(stdout_of(context.command().args(arguments), 1), "");
    let xml = std::fs::read_to_string(context.path("gpuheap.xml")).unwrap();
    assert!(xml.contains("tests=\"1\" failures=\"1\"") && xml.contains("<failure message=\"+7.00 MiB"), "{xml}");
    let mut reader = quick_xml::Reader::from_str(&xml);
    while !matches!(reader.read_event().unwrap(), quick_xml::events::Event::Eof) {}
}

/// The lines of a workflow that call the command.
fn run_lines(workflow: &str) -> Vec<String> {
    let commands = workflow.lines().filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix("run: "));
    commands.filter(|command| command.starts_with("gpuheap ")).map(str::to_owned).collect()
}

#[cfg(unix)]
#[test]
fn the_workflow_example_works_as_it_stands() {
    let examples = root().join("examples");
    let workflow = std::fs::read_to_string(examples.join("gpuheap-check.yml")).unwrap();
    let lines = run_lines(&workflow);
    assert_eq!(lines.len(), 2, "{lines:?}");
    let run = |folder: &str, name: &str| {
        let context = TestContext::new();
        std::fs::copy(examples.join("gpuheap.toml"), context.path("gpuheap.toml")).unwrap();
        std::fs::copy(recording(folder, name), context.path("snapshot.pickle")).unwrap();
        let outputs = lines.iter().map(|line| context.shell(line)).collect::<Vec<_>>();
        (outputs, std::fs::read_to_string(context.path("summary.md")).unwrap())
    };
    let (outputs, summary) = run("loops", "plain_adam");
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    assert_eq!(String::from_utf8_lossy(&outputs[0].stdout), "All 4 checks hold\n");
    assert!(summary.starts_with("### Healthy: "), "{summary}");

    let (outputs, summary) = run("models", "gpt2_varlen");
    assert_eq!(outputs[0].status.code(), Some(1));
    let annotations = String::from_utf8_lossy(&outputs[0].stdout).into_owned();
    assert_eq!(annotations.lines().filter(|line| line.starts_with("::error file=")).count(), 3, "{annotations}");
    assert!(outputs[1].status.success() && summary.starts_with("### Fragmentation: "), "{summary}");
}

#[test]
fn the_budget_example_names_every_key() {
    let text = std::fs::read_to_string(Path::new(&root()).join("examples/gpuheap.toml")).unwrap();
    for key in ["max-peak", "max-reserved", "max-waste", "no-leaks"] {
        assert!(text.lines().any(|line| line.starts_with(&format!("{key} = "))), "{key}");
    }
}

#[test]
fn every_device_is_checked() {
    let path = recording("edge", "two_devices");
    let text = stdout_of(TestContext::new().command().arg("check").arg(&path).args(["--max-peak", "1KiB"]), 1);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("(device 0): max-peak") && text.contains("(device 1): max-peak"), "{text}");
}

#[test]
fn a_folder_with_several_recordings() {
    let context = TestContext::new()
        .with_file("my runs/rank0.pickle", b"\x80\x04.")
        .with_file("my runs/rank1.pickle", b"\x80\x04.");
    insta::assert_snapshot!(context.run(["check", "my runs/", "--no-leaks"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: 2 recordings in folder `my runs/`

    hint: `gpuheap check 'my runs/'/*` checks all of them
    ");
}

#[test]
fn budgets_without_a_unit() {
    let context = TestContext::new().with_file("gpuheap.toml", b"max-peak = 24\n");
    let text = context.run(["check", "x.pickle", "--budget-file", "gpuheap.toml"]);
    assert!(text.contains("line 1: 24 bytes are less than any card has: did you mean `24GiB`?"), "{text}");
}
