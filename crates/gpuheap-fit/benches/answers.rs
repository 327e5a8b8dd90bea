//! What an answer costs: reading a trace, one what-if, the exact replay, a plan over all levers. Prints names and figures.
#![expect(clippy::print_stdout, reason = "what it is for")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

#[path = "../tests/it/model.rs"]
mod model;

use std::hint::black_box;
use std::time::Instant;

use gpuheap_fit::device::{Device, add_workspaces};
use gpuheap_fit::plan::{Limits, variants};
use gpuheap_fit::{FitOptions, Program, fit, replay, trace};
use model::Model;

const RUNS: usize = 5;

/// 1.4 billion parameters in 24 layers, and as many layers as make more events than a large model of today has.
const MODELS: [(&str, Model); 2] = [
    ("1.4 B parameters", Model { layers: 24, batch: 8, sequence: 1024, width: 2600, words: 50_000 }),
    ("long", Model { layers: 420, batch: 8, sequence: 1024, width: 600, words: 50_000 }),
];

fn main() {
    for (name, model) in MODELS {
        measure(name, model);
    }
}

fn measure(name: &str, model: Model) {
    let (text, half) = (model::text(model), model::text(Model { batch: model.batch / 2, ..model }));
    say(name, "milliseconds to read a trace", best(|| drop(black_box(trace::parse(text.as_bytes())))) * 1e3);
    let read = || trace::parse(text.as_bytes()).unwrap();
    let one = read();
    let device = Device::find("H200", None).unwrap();
    let mut program = Program::new(&one);
    add_workspaces(&mut program, &device, None);
    say(name, "events", program.events.len() as f64);
    say(name, "milliseconds of a what-if: the most alive", best(|| _ = black_box(program.most_alive())) * 1e3);
    let config = replay::config("").unwrap();
    let exact = || drop(black_box(replay::replay(&program, &config, None)));
    say(name, "milliseconds of a what-if: the exact replay", best(exact) * 1e3);
    let variants = variants(vec![read(), trace::parse(half.as_bytes()).unwrap()]).unwrap();
    let options = |budget| FitOptions {
        device: device.clone(),
        calibration: None,
        budget,
        limits: Limits { gpus: 1, ..Limits::default() },
        front: false,
        timelines: false,
    };
    let whole = fit(&variants, &options(None), &mut |_, _| {}).unwrap();
    let budget = options(Some(whole.baseline.device_bytes / 2));
    let start = Instant::now();
    black_box(fit(&variants, &budget, &mut |_, _| {}).unwrap());
    say(name, "seconds of a plan within half of its need", start.elapsed().as_secs_f64());
}

fn best(work: impl Fn()) -> f64 {
    let run = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..RUNS).map(run).fold(f64::INFINITY, f64::min)
}

fn say(model: &str, name: &str, value: f64) {
    println!("{model}, {name}: {value:.3}");
}
