//! `gpuheap explain` on recordings of real programs, against what the programs' own counters and labels say.
//!
//! See `recordings/README.md` for where they come from.

use std::path::{Path, PathBuf};

use gpuheap_report::JSON_SCHEMA;
use serde_json::Value;

use crate::context::{TestContext, follows, stdout_of};

/// The JSON report of the recording at `path`.
pub(crate) fn explain_json(path: &Path, more: &[&str]) -> Value {
    let output = TestContext::new().command().arg("explain").arg(path).arg("--json").args(more).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{}: {stderr}", path.display());
    assert_eq!(stderr, "", "{}", path.display());
    let report = serde_json::from_slice(&output.stdout).unwrap();
    check_sums(&report, path);
    follows(JSON_SCHEMA, &report);
    report
}

/// What holds for every report: ledgers add up, classes add up, peaks are peaks.
fn check_sums(report: &Value, path: &Path) {
    for (moment, parts) in report["ledgers"].as_object().unwrap() {
        let sum: u64 = parts.as_array().unwrap().iter().map(|part| part["bytes"].as_u64().unwrap()).sum();
        assert_eq!(Some(sum), report[moment]["reserved_bytes"].as_u64(), "{}: ledger at {moment}", path.display());
    }
    for moment in ["peak", "peak_reserved", "end"] {
        let moment = &report[moment];
        let sum: u64 = moment["by_class"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        assert_eq!(Some(sum), moment["allocated_bytes"].as_u64(), "{}", path.display());
    }
    assert_eq!(report["peaks"]["allocated_bytes"], report["peak"]["allocated_bytes"]);
    assert_eq!(report["peaks"]["reserved_bytes"], report["peak_reserved"]["reserved_bytes"]);
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Recordings that are examples stand there only.
pub(crate) fn recording(folder: &str, name: &str) -> PathBuf {
    let file = format!("{name}.pickle.gz");
    let example = root().join("examples").join(&file);
    if folder != "loops_after_return" && example.exists() {
        example
    } else {
        root().join("recordings").join(folder).join(file)
    }
}

fn labels(path: &str) -> serde_json::Map<String, Value> {
    let text = std::fs::read_to_string(root().join("recordings").join(path)).unwrap();
    serde_json::from_str::<Value>(&text).unwrap().as_object().unwrap().clone()
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn is_near(value: u64, truth: u64, tolerance: f64) -> bool {
    value.abs_diff(truth) as f64 <= tolerance * truth as f64
}

/// The counters of `torch.cuda.memory_stats()` under the settings that the recording was made with.
#[test]
fn peaks_equal_the_programs_own_counters() {
    let truth = labels("models/truth.json");
    let names = [
        "bert_large",
        "bert_sgd",
        "gan_leak",
        "gpt2_cap30",
        "gpt2_expandable",
        "gpt2_gc",
        "gpt2_maxsplit128",
        "gpt2_varlen",
        "llama_generate",
        "llama_oom",
        "resnet152_amp",
        "streams_graphs",
    ];
    for name in names {
        let report = explain_json(&recording("models", name), &[]);
        for counter in ["allocated", "requested", "active", "reserved"] {
            let told = &report["peaks"][format!("{counter}_bytes")];
            assert_eq!(told, &truth[name][format!("peak_{counter}_bytes")], "{name}: {counter}");
        }
    }
}

#[test]
fn the_policy_predicts_every_segment_event() {
    let events = [
        ("bert_large", 355),
        ("bert_sgd", 163),
        ("gan_leak", 149),
        ("gpt2_cap30", 498),
        ("gpt2_expandable", 380),
        ("gpt2_gc", 504),
        ("gpt2_maxsplit128", 616),
        ("gpt2_varlen", 428),
        ("llama_generate", 3),
        ("llama_oom", 404),
        ("resnet152_amp", 290),
        ("streams_graphs", 80),
    ];
    for (name, count) in events {
        let replay = &explain_json(&recording("models", name), &[])["replay"];
        assert_eq!(replay["exact"], true, "{name}: {replay}");
        assert_eq!((bytes(&replay["segment_events"]), bytes(&replay["matched"])), (count, count), "{name}");
    }
}

#[test]
fn model_state_is_classed_as_the_program_counted_it() {
    let truth = labels("models/truth.json");
    for name in ["bert_large", "bert_sgd", "resnet152_amp", "gpt2_varlen", "gpt2_expandable", "gpt2_cap30"] {
        let report = explain_json(&recording("models", name), &[]);
        for (class, counter) in [
            ("parameters", "parameter_bytes"),
            ("gradients", "gradient_bytes"),
            ("optimizer_state", "optimizer_state_bytes"),
        ] {
            let (told, truth) = (bytes(&report["end"]["by_class"][class]), bytes(&truth[name][counter]));
            assert!(is_near(told, truth, 0.02), "{name}: {class} {told}, counted {truth}");
        }
    }
    for name in truth.keys() {
        let report = explain_json(&recording("models", name), &[]);
        let (unknown, all) = (bytes(&report["peak"]["by_class"]["unknown"]), bytes(&report["peak"]["allocated_bytes"]));
        assert!(unknown * 20 < all, "{name}: {unknown} of {all} bytes unknown");
    }
}

/// Training and inference loops, each with a label that says what is wrong with it, if anything.
fn check_loop(path: &Path, name: &str, label: &Value) {
    let report = explain_json(path, &[]);
    let told = label.get("told").unwrap_or(&label["verdict"]);
    assert_eq!(&report["verdict"]["kind"], told, "{name}: {}", report["verdict"]["headline"]);
    let leak = report["findings"].as_array().unwrap().iter().find(|finding| finding["kind"] == "leak");
    assert_eq!(leak.is_some(), label["verdict"] == "leak" && told != "healthy", "{name}: {leak:?}");
    let Some(leak) = leak else { return };
    assert_eq!(leak["site"]["function"], label["grows"], "{name}: {leak}");
    if label["steady"] == false {
        return;
    }
    // A step may be a part of what the label calls a step, or several: bytes times steps are the same.
    let (rate, truth) = (bytes(&leak["bytes_per_step"]), bytes(&label["bytes_per_step"]));
    let steps = (bytes(&report["steps"]["count"]), bytes(&label["steps"]));
    let matches = is_near(rate, truth, 0.1) || is_near(rate * steps.0, truth * steps.1, 0.1);
    assert!(matches, "{name}: {rate} bytes for each of {} steps, labelled {truth} for each of {}", steps.0, steps.1);
}

#[test]
fn labelled_loops_get_their_verdict() {
    for (name, label) in &labels("loops/labels.json") {
        check_loop(&recording("loops", name), name, label);
    }
}

#[test]
fn loops_dumped_after_their_function_returned_get_the_same_verdict() {
    let labels = labels("loops/labels.json");
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("recordings/loops_after_return")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().trim_end_matches(".pickle.gz").to_owned();
        check_loop(&path, &name, &labels[&name]);
        count += 1;
    }
    assert_eq!(count, 15);
}

#[test]
fn recordings_at_the_edges_end_where_the_program_did() {
    let truth = labels("edge/truth.json");
    let complete = |name: &str| !matches!(name, "late_start" | "ring_lost_start");
    for (name, truth) in truth.iter().filter(|(_, truth)| truth.get("devices").is_none()) {
        let report = explain_json(&recording("edge", name), &[]);
        assert_eq!(report["end"]["allocated_bytes"], truth["allocated_bytes"], "{name}");
        assert_eq!(report["end"]["reserved_bytes"], truth["reserved_bytes"], "{name}");
        assert_eq!(report["source"]["complete"], complete(name), "{name}");
        assert_eq!(report["replay"]["exact"], true, "{name}: {}", report["replay"]);
        if let Some(parameters) = truth.get("parameter_bytes") {
            let told = bytes(&report["end"]["by_class"]["parameters"]);
            assert!(is_near(told, bytes(parameters), 0.02), "{name}: {told} bytes of parameters");
        }
    }
}

#[test]
fn each_device_has_its_own_story() {
    let truth = labels("edge/truth.json");
    let path = recording("edge", "two_devices");
    for (device, verdict) in [("0", "healthy"), ("1", "leak")] {
        let report = explain_json(&path, &["--device", device]);
        assert_eq!(report["verdict"]["kind"], verdict, "device {device}");
        let truth = &truth["two_devices"]["devices"][device.parse::<usize>().unwrap()];
        assert_eq!(report["end"]["allocated_bytes"], truth["allocated_bytes"]);
        assert_eq!(report["end"]["reserved_bytes"], truth["reserved_bytes"]);
        assert_eq!(report["peaks"]["allocated_bytes"], truth["peak_allocated_bytes"]);
        assert_eq!(report["peaks"]["reserved_bytes"], truth["peak_reserved_bytes"]);
        assert_eq!(report["source"]["devices"], 2);
    }
    assert_eq!(explain_json(&path, &["--device", "1"])["findings"][0]["bytes_per_step"], 1 << 20);
}

#[test]
fn a_leak_is_found_although_the_recording_starts_late() {
    let report = explain_json(&recording("edge", "late_start"), &[]);
    assert_eq!(report["verdict"]["kind"], "leak");
    assert_eq!(report["findings"][0]["bytes_per_step"], 16 << 20);
    assert!(report["source"]["notes"].to_string().contains("starts late"));
}

#[test]
fn out_of_memory_names_the_request_the_limit_and_what_fills_it() {
    let report = explain_json(&recording("models", "llama_oom"), &[]);
    assert_eq!(report["verdict"]["kind"], "oom");
    let oom = &report["oom"];
    assert_eq!(oom["asked_bytes"], 250 << 20);
    assert_eq!(oom["cached_bytes"], 86_719_488);
    let limit = 16_u64 << 30;
    assert!(bytes(&oom["limit_at_least_bytes"]) <= limit && limit < bytes(&oom["limit_below_bytes"]));
    let headline = report["verdict"]["headline"].as_str().unwrap();
    for part in ["250 MiB asked for", "limit of about 16 GiB", "82.7 MiB cached", "not fragmentation"] {
        assert!(headline.contains(part), "{headline}");
    }
    let given = explain_json(&recording("models", "llama_oom"), &["--at", "end"]);
    assert_eq!(given["ledger_at"], "end");

    let report = explain_json(&recording("edge", "oom_in_backward"), &[]);
    let headline = report["verdict"]["headline"].as_str().unwrap();
    assert!(headline.contains("512 MiB asked for under a limit of about 6 GiB"), "{headline}");
    let activations = bytes(&report["oom"]["by_class"]["activations"]);
    assert!(activations * 10 > bytes(&report["oom"]["allocated_bytes"]) * 8, "activations fill it");
    assert_eq!(report["oom"]["holders"][0]["class"], "activations");

    let report = explain_json(&recording("models", "oom_frag_11.0"), &[]);
    let headline = report["verdict"]["headline"].as_str().unwrap();
    assert!(headline.contains("fragmentation, enough is free but in pieces"), "{headline}");
    assert_eq!(report["findings"][0]["remedy"]["conf"], "expandable_segments:True");
}

#[test]
fn fragmentation_is_told_with_its_bytes() {
    let report = explain_json(&recording("models", "gpt2_varlen"), &[]);
    assert_eq!(report["verdict"]["kind"], "fragmentation");
    let headline = report["verdict"]["headline"].as_str().unwrap();
    assert!(headline.contains("36.5 GiB reserved for 25.3 GiB"), "{headline}");
    assert_eq!(report["findings"][0]["bytes"], 39_151_730_688_u64 - 27_129_146_368);
}

#[test]
fn pools_and_streams_stand_in_the_ledger_by_name() {
    let report = explain_json(&recording("models", "streams_graphs"), &["--at", "end"]);
    let parts: Vec<&str> =
        report["ledger"].as_array().unwrap().iter().map(|part| part["part"].as_str().unwrap()).collect();
    for part in ["private pool (1, 0)", "private pool (0, 1)", "free, default stream", "free, stream 0x3520bc20"] {
        assert!(parts.contains(&part), "{parts:?}");
    }
}

#[test]
fn a_limit_closes_the_ledger() {
    let path = recording("models", "bert_large");
    let output =
        TestContext::new().command().arg("explain").arg(&path).args(["--json", "--limit", "24GiB"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sum: u64 = report["ledger"].as_array().unwrap().iter().map(|part| bytes(&part["bytes"])).sum();
    assert_eq!(sum, 24 << 30);
}

/// The name of the verdict stands once at the head of every form, whatever it is about.
#[test]
fn the_first_line_begins_with_the_name_of_the_verdict() {
    for (folder, name, verdict) in [
        ("models", "bert_large", "Healthy"),
        ("loops", "loss_accumulate", "Leak"),
        ("loops", "gc_sawtooth", "Sawtooth"),
        ("models", "gpt2_varlen", "Fragmentation"),
        ("loops", "side_stream", "Stranded memory"),
        ("models", "llama_oom", "Out of memory"),
    ] {
        let path = recording(folder, name);
        let report = explain_json(&path, &[]);
        let headline = report["verdict"]["headline"].as_str().unwrap();
        let rest = headline.strip_prefix(&format!("{verdict}: ")).unwrap_or_else(|| panic!("{headline}"));
        assert!(!rest.to_lowercase().starts_with(&verdict.to_lowercase()[..4]), "{headline}");
        let show = |form: &[&str]| stdout_of(TestContext::new().command().arg("explain").arg(&path).args(form), 0);
        let start = rest.split(' ').take(5).collect::<Vec<_>>().join(" ");
        assert!(show(&[]).starts_with(&format!("{verdict}: {start}")), "{headline}");
        assert!(show(&["--md"]).starts_with(&format!("### {verdict}: ")), "{headline}");
    }
}

/// GPT-2 was run under several settings: from the stock run alone the others are told, and from the expandable one the
/// stock run.
#[test]
fn runs_under_other_settings_are_predicted_to_the_byte() {
    let truth = labels("models/truth.json");
    let gib = |count: u64| (count << 30).to_string();
    let runs = [
        ("gpt2_varlen", "", None),
        ("gpt2_cap30", "", Some(gib(30))),
        ("gpt2_maxsplit128", "max_split_size_mb:128", None),
        ("gpt2_gc", "garbage_collection_threshold:0.6", Some(gib(40))),
        ("gpt2_expandable", "expandable_segments:True", None),
    ];
    for from in ["gpt2_varlen", "gpt2_expandable", "gpt2_maxsplit128"] {
        for (name, conf, limit) in &runs {
            let context = TestContext::new();
            let mut command = context.command();
            command.arg("whatif").arg(recording("models", from)).args(["--json", "--conf", conf]);
            if let Some(limit) = limit {
                command.args(["--limit", limit]);
            }
            let report: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
            let row = report["whatif"].as_array().unwrap().iter().rfind(|row| row["conf"] == *conf).unwrap();
            let told =
                ["peak_reserved_bytes", "peak_allocated_bytes", "segments", "retries"].map(|key| bytes(&row[key]));
            let truth = ["peak_reserved_bytes", "peak_allocated_bytes", "segments_allocated", "alloc_retries"]
                .map(|key| bytes(&truth[*name][key]));
            assert_eq!(told, truth, "{name} from {from}");
            assert_eq!(row["oom"], false, "{name} from {from}");
        }
    }
}

#[test]
fn the_recommended_setting_is_the_one_that_reserves_least() {
    let context = TestContext::new();
    let mut command = context.command();
    command.arg("whatif").arg(recording("models", "gpt2_varlen")).arg("--json");
    let report: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(report["best"], "expandable_segments:True");
    let rows = report["whatif"].as_array().unwrap();
    assert_eq!(rows[0]["role"], "recorded");
    let best = rows.iter().find(|row| row["conf"] == report["best"]).unwrap();
    assert_eq!(best["peak_reserved_bytes"], 28_290_580_480_u64);
    assert_eq!(bytes(&report["saves_bytes"]), bytes(&rows[0]["peak_reserved_bytes"]) - 28_290_580_480);
}
