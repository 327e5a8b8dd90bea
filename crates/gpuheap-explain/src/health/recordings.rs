//! What levels at step ends tell of the labelled loops.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use super::{Health, HealthKind, Monitor, Sample, Surroundings};
use crate::explain::{Basis, phase_after};
use crate::lifetimes::Tick;
use crate::sawtooth;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// What a watch of the recorded program would have seen. What the collector gave back is measured there; here it is told
/// by the order in which the blocks of a burst died.
fn samples(path: &Path) -> Vec<Sample> {
    let recording = gpuheap_import::read(path, gpuheap_import::Options::default()).expect("a recording");
    let basis = Basis::of(&recording, None).expect("a device");
    let rows = basis.replay.allocations.rows();
    let allocated = &basis.replay.allocated;
    let after = phase_after(&recording, &basis.replay, &basis.phases, &basis.marks, &basis.steps);
    let bursts = sawtooth::find(rows, allocated, &basis.phases, &basis.steps).map_or(Vec::new(), |found| found.bursts);
    let mut ticks = basis.steps.ticks.clone();
    ticks.extend(after.iter().flat_map(|after| after.ticks.iter().copied()));
    let so_far = |levels: &[u64], tick: Tick| levels[..=tick.index()].iter().copied().max();
    let one = |(step, &tick): (usize, &Tick)| {
        let alive = rows.iter().filter(|row| row.born <= tick && tick < row.freed);
        let collected = bursts.iter().filter(|burst| burst.step <= step).map(|burst| burst.bytes).sum();
        Sample {
            step: step as u64 + 1,
            seconds: step as f64 * 0.1,
            allocated: allocated[tick.index()],
            blocks: Some(alive.count() as u64),
            reserved: basis.replay.reserved[tick.index()],
            peak_active: so_far(allocated, tick),
            peak_reserved: so_far(&basis.replay.reserved, tick),
            collected: Some(collected),
            retries: 0,
            ooms: 0,
        }
    };
    ticks.iter().enumerate().map(one).collect()
}

fn watched(samples: &[Sample]) -> Option<Health> {
    let mut monitor = Monitor::new("step");
    for sample in samples {
        monitor.push(sample);
    }
    monitor.health(&Surroundings::default())
}

/// A loop with its label, and what a watch of it says.
struct Loop {
    name: String,
    label: String,
    rate: Option<f64>,
    samples: Vec<Sample>,
    health: Health,
}

fn loops() -> Vec<Loop> {
    let text = std::fs::read_to_string(repository("recordings/loops/labels.json")).expect("labels");
    let labels: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let labels = labels.as_object().expect("an object");
    let one = |(name, label): (&String, &serde_json::Value)| {
        let folder = if name == "loss_accumulate" { "examples" } else { "recordings/loops" };
        let samples = samples(&repository(&format!("{folder}/{name}.pickle.gz")));
        let health = watched(&samples).expect("steps");
        let rate = label["bytes_per_step"].as_f64().filter(|_| label["steady"].as_bool() != Some(false));
        Loop { name: name.clone(), label: label["verdict"].as_str().expect("text").to_owned(), rate, samples, health }
    };
    labels.iter().map(one).collect()
}

/// What is labelled otherwise than it is told, and why.
const OTHERWISE: [(&str, HealthKind); 4] = [
    // A history that is joined with new data every step is one block: no count of blocks grows. `explain` says the same.
    ("cat_history", HealthKind::Growing),
    // Five steps are too short, as for `explain`.
    ("few_steps_leak", HealthKind::WarmingUp),
    ("few_steps", HealthKind::WarmingUp),
    // What a side stream holds was there before the first step and never moves: levels do not show whose it is.
    ("side_stream", HealthKind::Steady),
];

#[test]
fn levels_tell_what_labels_say() {
    let loops = loops();
    assert_eq!(loops.len(), 92);
    let mut agree = 0;
    for Loop { name, label, health, .. } in &loops {
        let expected: &[HealthKind] = match label.as_str() {
            "leak" => &[HealthKind::Leak],
            // Batches that grow by plan are told, and not as a fault.
            "healthy" => &[HealthKind::Steady, HealthKind::Growing],
            "sawtooth" => &[HealthKind::Sawtooth],
            "fragmentation" => &[HealthKind::ReservedGrowth],
            "stranded" => &[],
            other => panic!("{name}: {other}"),
        };
        match OTHERWISE.iter().find(|(other, _)| other == name) {
            Some((_, kind)) => assert_eq!(health.kind, *kind, "{name}: {}", health.sentence),
            None => {
                assert!(expected.contains(&health.kind), "{name} is {label}: {}", health.sentence);
                agree += 1;
            }
        }
        assert!(label != "healthy" || !health.kind.is_sick(), "false alarm: {name}: {}", health.sentence);
    }
    assert_eq!(agree, 88, "of 92; the others are listed above");
}

#[test]
fn growth_is_that_of_the_labels() {
    // Steps of a recording that are not the label's: micro-batches, calls that are several boundaries.
    let per_label: HashMap<&str, f64> =
        [("accum_outputs", 4.0), ("generate_kept", 1.0 / 16.0), ("server_threads_leak", 1.0 / 3.0)].into();
    let mut compared = 0;
    for Loop { name, rate, health, .. } in loops().iter().filter(|one| one.health.kind == HealthKind::Leak) {
        let Some(rate) = rate else { continue };
        let expected = rate * per_label.get(name.as_str()).copied().unwrap_or(1.0);
        let off = (health.growth_per_step - expected).abs() / expected;
        assert!(off < 0.06, "{name}: {} instead of {expected}", health.growth_per_step);
        compared += 1;
    }
    assert_eq!(compared, 38);
}

/// Healthy loops that fill something and look like a leak until it is full, with the last step of it. Nothing tells a
/// buffer that fills from a leak; the sentence says so.
const FILLS: [(&str, usize); 8] = [
    ("epoch_outputs", 15),
    ("gc_sawtooth", 15),
    ("generate_loop", 16),
    ("kv_cache_reset", 40),
    ("lbfgs", 19),
    ("random_pool", 25),
    ("ring_buffer", 25),
    ("slow_fill", 35),
];

#[test]
fn no_alarm_on_the_way_but_while_a_buffer_fills() {
    for Loop { name, label, samples, .. } in loops().iter().filter(|one| one.label != "leak") {
        let fills = FILLS.iter().find(|(other, _)| other == name).map_or(0, |&(_, last)| last);
        for count in fills + 1..=samples.len() {
            let health = watched(&samples[..count]).expect("steps");
            assert!(health.kind != HealthKind::Leak, "{name} ({label}) after {count} steps: {}", health.sentence);
        }
    }
}

#[test]
fn most_leaks_are_told_after_eight_steps() {
    let first = |one: &Loop| {
        (1..=one.samples.len())
            .find(|&count| watched(&one.samples[..count]).is_some_and(|health| health.kind == HealthKind::Leak))
    };
    let told: BTreeMap<String, usize> = loops()
        .iter()
        .filter(|one| one.label == "leak")
        .filter_map(|one| Some((one.name.clone(), first(one)?)))
        .collect();
    let later: Vec<(&str, usize)> =
        told.iter().map(|(name, &count)| (name.as_str(), count)).filter(|&(_, count)| count > 10).collect();
    // Those that leave something every few steps, begin late, or fall back each second step.
    let expected = [
        ("best_models", 36),
        ("errors_kept", 11),
        ("eval_graph", 26),
        ("every_tenth", 45),
        ("late_leak", 58),
        ("model_sweep_leak", 35),
        ("replay_unbounded", 23),
        ("server_threads_leak", 15),
    ];
    assert_eq!(later, expected);
    assert_eq!(told.len(), 40);
}

#[test]
fn without_the_collector_a_sawtooth_is_no_leak() {
    for name in ["gc_auto", "gc_sawtooth", "epoch_outputs", "kv_cache_reset"] {
        let mut samples = samples(&repository(&format!("recordings/loops/{name}.pickle.gz")));
        for sample in &mut samples {
            sample.collected = None;
        }
        let health = watched(&samples).expect("steps");
        assert_eq!(health.kind, HealthKind::Steady, "{name}: {}", health.sentence);
    }
}
