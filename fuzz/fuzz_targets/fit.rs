//! Reads any bytes as a trace, and fits whatever can be read: an error or a sound answer, never a panic.
#![no_main]

use gpuheap_fit::device::Device;
use gpuheap_fit::plan::{Limits, variants};
use gpuheap_fit::{FitOptions, Program, Verdict, fit, trace};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let trace = match trace::parse(bytes) {
        Ok(trace) => trace,
        // Every error can be shown.
        Err(error) => return drop(error.to_string()),
    };
    assert_eq!(Program::new(&trace).first_fault(), None);
    let variants = variants(vec![trace]).expect("one trace is like itself");
    for (gpus, budget) in [(1, 1 << 30), (1, 820 << 20), (2, 1 << 30)] {
        let options = FitOptions {
            device: Device::find("generic", None).expect("it is in the table"),
            calibration: None,
            budget: Some(budget),
            limits: Limits { gpus, ..Limits::default() },
            front: gpus == 1 && budget == 1 << 30,
            timelines: true,
        };
        if let Ok(answer) = fit(&variants, &options, &mut |_, _| {}) {
            assert!(answer.peak.low <= answer.peak.high);
            assert!(answer.step_us.is_finite());
            assert!(answer.verdict != Verdict::Fits || answer.peak.high <= budget);
            // The front falls on one side as it rises on the other.
            for pair in answer.front.windows(2) {
                assert!(pair[0].budget_bytes > pair[1].budget_bytes && pair[0].step_us < pair[1].step_us);
            }
        }
    }
});
