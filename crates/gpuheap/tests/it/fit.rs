//! `gpuheap fit` and `gpuheap check --plan` on traces, and with a Python that is none.

use std::path::PathBuf;

use serde_json::Value;

use crate::context::{TestContext, follows, stdout_of};

/// A trace of a small transformer at a batch size, as the tracer wrote it.
fn trace(batch: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/traces/transformer-{batch}.json.gz"))
}

fn fit(more: &[&str]) -> Value {
    let context = TestContext::new();
    let mut command = context.command();
    command.arg("fit").arg("--trace").arg(trace(8)).arg("--trace").arg(trace(4)).arg("--json").args(more);
    let plan = serde_json::from_str(&stdout_of(&mut command, 0)).unwrap();
    follows(gpuheap_fit::JSON_SCHEMA, &plan);
    plan
}

#[test]
fn plans_follow_their_schema_and_keep_to_their_budget() {
    let plan = fit(&[]);
    assert_eq!((&plan["verdict"], &plan["plan"]), (&"fits".into(), &Value::Array(Vec::new())));
    let plan = fit(&["--budget", "1372MiB", "--front"]);
    assert_eq!(plan["verdict"], "fits");
    assert!(plan["peak"]["high"].as_u64().unwrap() <= 1372 << 20);
    assert!(!plan["plan"].as_array().unwrap().is_empty());
    assert!(!plan["front"].as_array().unwrap().is_empty());
    let plan = fit(&["--budget", "900MiB", "--without", "all"]);
    assert_eq!(plan["verdict"], "does_not_fit");
}

#[test]
fn the_screen_has_the_verdict_the_plan_and_who_holds_memory() {
    let context = TestContext::new();
    let screen = |more: &[&str]| {
        let mut command = context.command();
        command.arg("fit").arg("--trace").arg(trace(8)).arg("--trace").arg(trace(4)).args(more);
        stdout_of(&mut command, 0)
    };
    insta::assert_snapshot!("fit_fits", screen(&["--budget", "8GiB"]));
    insta::assert_snapshot!("fit_plan", screen(&["--budget", "1372MiB", "--front"]));
    insta::assert_snapshot!("fit_markdown", screen(&["--budget", "1372MiB", "--md"]));
    let narrow = screen(&["--budget", "1372MiB", "--width", "40"]);
    assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
}

#[test]
fn a_plan_is_checked_against_the_model_of_today() {
    let context = TestContext::new();
    let plan = fit(&["--budget", "1372MiB"]);
    std::fs::write(context.path("plan.json"), plan.to_string()).unwrap();
    let check = |traces: [PathBuf; 2], more: &[&str], code: i32| {
        let mut command = context.command();
        command.args(["check", "--plan", "plan.json"]);
        for trace in traces {
            command.arg("--trace").arg(trace);
        }
        stdout_of(command.args(more), code)
    };
    let text = check([trace(8), trace(4)], &[], 0);
    assert!(text.starts_with("plan.json: fits in 1.34 GiB: "), "{text}");
    // The model has grown: the same plan is not enough.
    let mut smaller = plan.clone();
    smaller["budget_bytes"] = (plan["peak"]["device_bytes"].as_u64().unwrap() - (32 << 20)).into();
    std::fs::write(context.path("plan.json"), smaller.to_string()).unwrap();
    let text = check([trace(8), trace(4)], &["--format", "github"], 1);
    assert!(text.starts_with("::error title=gpuheap fit::plan.json: does not fit in "), "{text}");
    let told: Value = serde_json::from_str(&check([trace(8), trace(4)], &["--format", "json"], 1)).unwrap();
    assert_eq!(told["holds"], false);
}

#[test]
fn what_cannot_be_read_or_done_is_told() {
    let context = TestContext::new().with_file("bad.json", b"{\"schema\":").with_file("plan.json", b"[]");
    insta::assert_snapshot!(context.run(["fit", "--trace", "bad.json"]));
    insta::assert_snapshot!(context.run(["fit", "--trace", "missing.json"]));
    insta::assert_snapshot!(context.run(["check", "--plan", "plan.json"]));
    insta::assert_snapshot!(context.run(["fit", "train.py:make", "--device", "Voodoo"]));
    insta::assert_snapshot!(context.run(["fit", "train.py:make", "--conf", "max_split_size_mb:1"]));
    insta::assert_snapshot!(context.run(["fit", "train.py:make", "--set", "accumulate=0"]));
    insta::assert_snapshot!(context.run(["fit"]));
    let kept = context.run(["fit", "--trace", "bad.json", "--keep-trace", "kept.json"]);
    assert!(kept.contains("cannot be used with"), "{kept}");
}

/// What a page draws.
fn data_of(page: &str) -> Value {
    use base64::Engine as _;
    let (_, data) = page.split_once("id=\"gpuheap-data\">").unwrap();
    let (data, _) = data.split_once('<').unwrap();
    let data = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    serde_json::from_reader(flate2::read::GzDecoder::new(data.as_slice())).unwrap()
}

#[test]
fn a_page_has_the_plan_and_memory_through_time() {
    let context = TestContext::new();
    let write = |more: &[&str]| {
        let mut command = context.command();
        command.arg("fit").arg("--trace").arg(trace(8)).arg("--trace").arg(trace(4)).args(more);
        stdout_of(&mut command, 0)
    };
    let printed = write(&["--budget", "1372MiB", "--html", "plan.html", "--front-svg", "front.svg", "--json"]);
    let page = std::fs::read_to_string(context.path("plan.html")).unwrap();
    assert!(page.len() < 1_000_000 && page.contains("<title>FITS BY RULES: train.py:make</title>"), "{}", page.len());
    let mut data = data_of(&page);
    assert_eq!(data["changes"], Value::Null);
    let timelines = data["fit"].as_object_mut().unwrap().remove("timelines").unwrap();
    let plan: Value = serde_json::from_str(&printed).unwrap();
    follows(gpuheap_fit::JSON_SCHEMA, &plan);
    assert_eq!(data["fit"], plan);
    let most = |timeline: &Value| {
        let columns = timeline["bytes"].as_array().unwrap();
        let points = 0..timeline["at"].as_array().unwrap().len();
        points.map(|point| columns.iter().map(|column| column[point].as_u64().unwrap()).sum::<u64>()).max().unwrap()
    };
    assert_eq!(most(&timelines["baseline"]), plan["baseline"]["allocated_bytes"]);
    assert_eq!(most(&timelines["planned"]), plan["peak"]["allocated_bytes"]);
    // What the page says of phases and holders, without its columns.
    let phases = |timeline: &Value| {
        let line = |phase: &Value| {
            let holder = |holder: &Value| format!("{} {} {}", holder["class"], holder["module"], holder["bytes"]);
            let first = phase["holders"].as_array().unwrap().first().map(holder).unwrap_or_default();
            let of = |name: &str| phase[name].to_string();
            let names = ["step", "phase", "start", "end", "allocated_bytes", "reserved_bytes", "event", "module"];
            format!("{}: {first}", names.map(of).join(" "))
        };
        timeline["phases"].as_array().unwrap().iter().map(line).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(
        "fit_page_phases",
        format!("{}\n\n{}", phases(&timelines["baseline"]), phases(&timelines["planned"]))
    );
    let svg = std::fs::read_to_string(context.path("front.svg")).unwrap();
    assert_eq!(svg.matches("<circle").count(), plan["front"].as_array().unwrap().len());
    // In place of the text.
    assert!(write(&["--html", "-"]).starts_with("<!doctype html>"));
    assert!(write(&["--front-svg", "-"]).starts_with("<svg "));
}

/// A program that stands for Python, and says what it is told to.
#[cfg(unix)]
fn python(context: &TestContext, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = context.path("python");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[cfg(unix)]
#[test]
fn the_tracer_is_run_and_its_failures_are_told() {
    let context = TestContext::new();
    let run = |script: &str, more: &[&str]| {
        python(&context, script);
        let mut command = context.command();
        let output = command.args(["fit", "train.py:make", "--python", "./python"]).args(more).output().unwrap();
        context.show(&output)
    };
    insta::assert_snapshot!(run("echo 'error: train.py has no make' >&2; echo 'hint: it has model' >&2; exit 2", &[]));
    insta::assert_snapshot!(run(
        "printf 'Traceback (most recent call last):\\n  File\\nValueError: x\\n' >&2; exit 1",
        &[]
    ));
    insta::assert_snapshot!(run("echo '/usr/bin/python: No module named gpuheap' >&2; exit 1", &[]));
    insta::assert_snapshot!(run("exit 3", &[]));
    // It gets the function, a place for the trace and the capability of the device; then half of the batch.
    let script = format!(
        "echo \"$@\" >> calls; [ \"$7\" = --batch ] && f={} || f={}; gzip -dc \"$f\" > \"$6\"",
        trace(4).display(),
        trace(8).display()
    );
    let shown = run(&script, &["--device", "T4", "--keep-trace", "kept.json"]);
    assert!(shown.contains("FITS in 14.7 GiB as it is"), "{shown}");
    let calls = std::fs::read_to_string(context.path("calls")).unwrap();
    let calls: Vec<&str> = calls.lines().collect();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(calls[0].starts_with("-m gpuheap._fit trace train.py:make --out "), "{calls:?}");
    assert!(calls[0].ends_with("--capability 7.5") && calls[1].contains(" --batch 4 "), "{calls:?}");
    assert!(context.path("kept.json").is_file());
}

#[cfg(unix)]
#[test]
fn a_page_has_the_lines_that_change() {
    let context = TestContext::new();
    let run = |changes: &str| {
        // A trace, one with the plan applied, which takes less, then the lines.
        let script = format!(
            "case \"$3\" in changes) {changes};; *) case \"$*\" in *\"--apply\"*) f={};; *) f={};; esac; gzip -dc \"$f\" > \"$6\";; esac",
            trace(4).display(),
            trace(8).display()
        );
        python(&context, &script);
        let mut command = context.command();
        command.args(["fit", "train.py:make", "--python", "./python", "--budget", "1900MiB", "--html", "plan.html"]);
        stdout_of(command.args(["--without", "accumulate"]), 0);
        data_of(&std::fs::read_to_string(context.path("plan.html")).unwrap())
    };
    let data = run(r#"echo '{"diff": "-a", "start": "python train.py"}'"#);
    assert_eq!(data["changes"]["start"], "python train.py", "{}", data["fit"]["notes"]);
    assert!(data["changes"]["diff"].as_str().unwrap().starts_with("-a"));
    // All else is there without them.
    let data = run("echo 'error: train.py is gone' >&2; exit 2");
    assert_eq!(data["changes"], Value::Null);
    let notes = data["fit"]["notes"].to_string();
    assert!(
        notes.contains("the lines that change in the program are not known") && notes.contains("is gone"),
        "{notes}"
    );
}

#[cfg(unix)]
#[test]
fn a_program_that_goes_its_own_way_is_told() {
    let context = TestContext::new();
    let run = |script: &str, more: &[&str]| {
        python(&context, script);
        let mut command = context.command();
        let output = command.args(["fit", "--python", "./python"]).args(more).output().unwrap();
        (output.status.code(), context.show(&output))
    };
    // It ends Python with success, and there is no trace.
    let (code, shown) = run("exit 0", &["train.py:make"]);
    assert_eq!(code, Some(2));
    assert!(shown.contains("Failed to trace `train.py:make`: the program ended Python before it was"), "{shown}");
    // What it prints itself is not taken for what went wrong.
    let (_, shown) = run("echo loading >&2; echo 'error: train.py has no make' >&2; exit 2", &["train.py:make"]);
    assert!(shown.contains("Failed to trace `train.py:make`: train.py has no make"), "{shown}");
    let (_, shown) = run("kill -SEGV $$", &["train.py:make"]);
    assert!(shown.contains("Python crashed with signal 11"), "{shown}");
    // A process that it leaves behind holds its streams.
    let began = std::time::Instant::now();
    let (_, shown) = run("sleep 30 & echo 'error: no make' >&2; exit 2", &["train.py:make"]);
    assert!(shown.contains("no make") && began.elapsed().as_secs() < 20, "{shown}");
    // Python's own exit code for a failure is that of a plan that does not fit.
    let file = trace(8).display().to_string();
    let (code, shown) = run("echo 'ValueError: x' >&2; exit 1", &["--trace", &file, "--verify"]);
    assert_eq!(code, Some(2));
    assert!(shown.contains("Failed to verify the plan: ValueError: x"), "{shown}");
}
