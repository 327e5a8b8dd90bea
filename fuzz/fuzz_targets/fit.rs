//! Reads any bytes as a trace, and fits whatever can be read: an error or a sound answer, never a panic.
#![no_main]

use gpuheap_fit::device::Device;
use gpuheap_fit::plan::{Limits, variants};
use gpuheap_fit::{FitOptions, Program, fit, trace};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let trace = match trace::parse(bytes) {
        Ok(trace) => trace,
        // Every error can be shown.
        Err(error) => return drop(error.to_string()),
    };
    assert_eq!(Program::new(&trace).first_fault(), None);
    let variants = variants(vec![trace]).expect("one trace is like itself");
    for gpus in [1, 2] {
        let options = FitOptions {
            device: Device::find("generic", None).expect("it is in the table"),
            calibration: None,
            budget: Some(1 << 30),
            limits: Limits { gpus, ..Limits::default() },
            front: true,
            timelines: true,
        };
        if let Ok(answer) = fit(&variants, &options, &mut |_, _| {}) {
            assert!(answer.peak.low <= answer.peak.high);
            assert!(answer.step_us.is_finite());
        }
    }
});
