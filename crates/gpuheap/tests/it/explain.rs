//! `gpuheap explain` on input that it cannot explain.

use std::process::Stdio;

use crate::context::TestContext;

#[test]
fn missing_file() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "missing.pickle"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to open `missing.pickle`
      cause: No such file or directory (os error 2)

    hint: paths start from this folder; PyTorch wrote the file in the folder of the program that ran
    ");
}

#[test]
fn missing_file_beside_recordings() {
    let context = TestContext::new().with_file("runs/rank0.pickle", b"\x80\x04.");
    insta::assert_snapshot!(context.run(["explain", "runs/rank9.pickle"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to open `runs/rank9.pickle`
      cause: No such file or directory (os error 2)

    hint: did you mean:
      runs/rank0.pickle
    ");
    insta::assert_snapshot!(context.run(["explain", "runs/snapshot.pickle"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to open `runs/snapshot.pickle`
      cause: No such file or directory (os error 2)

    hint: paths start from this folder; PyTorch wrote the file in the folder of the program that ran
    ");
    insta::assert_snapshot!(context.run(["explain", "run/rank0.pickle"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to open `run/rank0.pickle`
      cause: No such file or directory (os error 2)

    hint: there is no folder `run`
    ");
}

#[test]
fn standard_input_is_named_so() {
    use std::process::Stdio;

    let file = std::fs::File::open(crate::recordings::recording("loops", "plain_adam")).unwrap();
    let output = TestContext::new().command().args(["explain", "-"]).stdin(Stdio::from(file)).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nSource      standard input, "), "{text}");
}

#[test]
fn a_snapshot_of_nothing() {
    let context = TestContext::new().with_file("nothing.json", br#"{"segments": [], "device_traces": [[]]}"#);
    insta::assert_snapshot!(context.run(["explain", "nothing.json"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: There is nothing to explain: the recording has no memory of any device

    hint: the program allocated nothing on a GPU before the snapshot was taken
    ");
}

#[test]
fn empty_file() {
    insta::assert_snapshot!(TestContext::new().with_file("empty.pickle", b"").run(["explain", "empty.pickle"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to read snapshot `empty.pickle`
      cause: the file is empty

    hint: the process may have been killed before it wrote anything, or the disk may be full
    ");
}

#[test]
fn picture() {
    let context = TestContext::new().with_file("plot.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    insta::assert_snapshot!(context.run(["explain", "plot.png"]), @r#"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to read snapshot `plot.png`
      cause: this is not a memory snapshot: it looks like a PNG image

    hint: record one with `torch.cuda.memory._record_memory_history()` before the work and `torch.cuda.memory._dump_snapshot("snapshot.pickle")` after it
    "#);
}

#[test]
fn nothing_on_standard_input() {
    insta::assert_snapshot!(TestContext::new().run(["explain", "-"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to read snapshot `-`
      cause: the file is empty

    hint: the process may have been killed before it wrote anything, or the disk may be full
    ");
}

#[test]
fn folder_without_recordings() {
    let context = TestContext::new().with_file("run/train.log", b"step 1");
    insta::assert_snapshot!(context.run(["explain", "run"]), @r#"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: No recording in folder `run`

    hint: `torch.cuda.memory._dump_snapshot("snapshot.pickle")` writes one; folders in the folder are not searched
    "#);
}

#[test]
fn folder_with_several_recordings() {
    let context = TestContext::new()
        .with_file("run/rank 1.pickle", b"\x80\x04.")
        .with_file("run/rank0.pickle", b"\x80\x04.")
        .with_file("run/config.json", b"{\"lr\": 0.1}");
    insta::assert_snapshot!(context.run(["explain", "run"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: 2 recordings in folder `run`

    hint: choose one:
      'run/rank 1.pickle'
      run/rank0.pickle
    ");
}

#[test]
fn folder_with_one_recording_is_that_recording() {
    let context = TestContext::new().with_file("run/cut.pickle", b"\x80\x04").with_file("run/notes.txt", b"cut short");
    insta::assert_snapshot!(context.run(["explain", "run"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to read snapshot `run/cut.pickle`
      cause: unexpected end of file at byte 2: another opcode should follow

    hint: the file is cut short; the process may have been killed while writing it
    ");
}

#[test]
fn errors_have_colour_only_where_it_is_wanted() {
    let context = TestContext::new();
    let stderr = |arguments: &[&str], no_color: bool| {
        let mut command = context.command();
        command.args(arguments);
        if no_color {
            command.env("NO_COLOR", "1");
        } else {
            command.env("CLICOLOR_FORCE", "1");
        }
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    assert!(stderr(&["explain", "missing"], false).contains("\u{1b}["));
    assert!(stderr(&["explain", "missing", "--color", "always"], true).contains("\u{1b}["));
    assert!(!stderr(&["explain", "missing"], true).contains('\u{1b}'));
    assert!(!stderr(&["explain", "missing", "--color", "never"], false).contains('\u{1b}'));
}

#[test]
fn names_of_files_do_not_reach_the_terminal_as_they_are() {
    let output = TestContext::new().command().args(["explain", "\u{1b}[2Jevil\u{7}"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("[2Jevil"), "{stderr}");
    assert!(stderr.chars().all(|c| c == '\n' || !c.is_control()), "{stderr:?}");
}

#[test]
fn nothing_is_written_where_nothing_was_explained() {
    let context = TestContext::new().with_file("report.md", b"kept");
    let output = context.command().args(["explain", "missing", "--md", "--output", "report.md"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(std::fs::read(context.path("report.md")).unwrap(), b"kept");
    assert_eq!(std::fs::read_dir(context.path("")).unwrap().count(), 1);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let context = TestContext::new();
    let mut child =
        context.command().args(["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}
