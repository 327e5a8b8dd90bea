//! Prints what a step takes by the cost model, in microseconds: all of it, the device's work, the program's.
//!
//! `times TRACE...` for the programs as they were traced; `times plan BATCH LEVERS TRACE...` for one program, traced at two
//! batch sizes, with the levers of a file, as a plan that has just these.
#![expect(clippy::print_stdout, reason = "what it is for")]
#![expect(clippy::unwrap_used, reason = "an example that cannot go on has failed")]

use std::path::Path;

use gpuheap_fit::cost::CostModel;
use gpuheap_fit::device::Device;
use gpuheap_fit::plan::{Limits, variants};
use gpuheap_fit::{FitOptions, Lever, Program, fit, trace};

fn main() {
    let device = Device::find("H200", None).unwrap();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let read = |path: &String| trace::read(Path::new(path)).unwrap();
    if let [plan, batch, levers, traces @ ..] = arguments.as_slice()
        && plan == "plan"
    {
        let set: Vec<Lever> = serde_json::from_slice(&std::fs::read(levers).unwrap()).unwrap();
        let limits =
            Limits { gpus: 1, batch: batch.parse().ok(), set, without: vec!["all".to_owned()], ..Limits::default() };
        let options =
            FitOptions { device, calibration: None, budget: Some(1 << 50), limits, front: false, timelines: false };
        let found = fit(&variants(traces.iter().map(read).collect()).unwrap(), &options, &mut |_, _| ()).unwrap();
        println!("{:.0} {:.0}", found.step_us, found.baseline.step_us);
        return;
    }
    for path in &arguments {
        let trace = read(path);
        let time = CostModel::new(&trace, &device, None).step(&Program::new(&trace));
        println!("{path} {:.0} {:.0} {:.0}", time.total_us, time.device_us, time.launch_us);
    }
}
