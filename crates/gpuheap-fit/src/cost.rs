//! How long a step takes: a roofline for every call of an operator.
//!
//! A call takes as long as its arithmetic or its traffic, whichever is longer. The program starts kernels one after
//! another while the device works, so a step takes as long as the device's sum or the program's, whichever is longer.

use crate::clock::Clocks;
use crate::device::{Calibration, Device};
use crate::exchange;
use crate::program::Program;
use crate::trace::{Event, Phase, Trace};

/// What a copy costs that runs beside other work, in parts of its time: both use the memory.
pub const HIDDEN: f64 = 0.05;
/// The part of a step beside which copies can run: not before the first result, nor after the last.
const COVERED: f64 = 0.9;

/// Times of all calls of a trace on one device.
#[derive(Clone, Debug)]
pub struct CostModel {
    /// Microseconds on the device, by call.
    call_us: Vec<f64>,
    /// Whether a call starts a kernel, by call.
    launches: Vec<bool>,
    launch_us: f64,
    factor: f64,
}

/// How much longer kernels take than reading and writing their operands once: they go over them several times, or in
/// small pieces. Measured on an H200 over whole training steps.
fn passes(op: &str) -> f64 {
    const SLOW: [(&str, f64); 6] = [
        ("group_norm", 5.5),
        ("batch_norm", 2.8),
        ("layer_norm", 2.5),
        ("dropout", 1.8),
        ("log_softmax", 1.3),
        ("softmax", 1.6),
    ];
    SLOW.iter().find(|(part, _)| op.contains(part)).map_or(1.0, |&(_, times)| times)
}

/// The time of one step, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StepTime {
    /// What the device works.
    pub device_us: f64,
    /// What the program needs to start all of it.
    pub launch_us: f64,
    /// The step.
    pub total_us: f64,
}

impl CostModel {
    /// Times of the calls of `trace` on `device`.
    #[must_use]
    pub fn new(trace: &Trace, device: &Device, calibration: Option<&Calibration>) -> Self {
        let speeds: Vec<f64> = trace.dtypes.iter().map(|dtype| device.speed(dtype)).collect();
        let bandwidth = device.bandwidth();
        let is_float: Vec<bool> = trace.dtypes.iter().map(|dtype| dtype.contains("float")).collect();
        let times = trace.calls.iter().map(|call| {
            let float = |list: &[u32]| {
                let dtypes = list.iter().map(|&storage| trace.storages[storage as usize].dtype as usize);
                dtypes.filter(|&dtype| is_float[dtype]).min_by_key(|&dtype| trace.dtypes[dtype].len())
            };
            let dtype = float(trace.inputs(call)).or_else(|| float(trace.outputs(call)));
            let speed = dtype.map_or_else(|| device.speed("float32"), |dtype| speeds[dtype]);
            // cuDNN may round 32-bit numbers to TF32, unless the program forbids it; products may not, unless it allows it.
            let rounds = dtype.is_none_or(|dtype| trace.dtypes[dtype] == "float32");
            let name = trace.op_name(call);
            if exchange::is(name) {
                return exchange::us(call, device);
            }
            let (speed, times) = if name.contains("convolution") {
                let speed = if rounds { device.speed("tf32").max(speed) } else { speed };
                (speed * device.convolution_efficiency.value, device.convolution_copies.value)
            } else if name.contains("attention") {
                (speed * device.attention_efficiency.value, 1.0)
            } else {
                (speed, passes(name))
            };
            let arithmetic = call.flops / speed * 1e6;
            let traffic = times * (call.read.saturating_add(call.written)) as f64 / bandwidth * 1e6;
            let works = call.flops > 0.0 || call.written > 0;
            arithmetic.max(traffic) + if works { device.kernel_us.value } else { 0.0 }
        });
        let call_us: Vec<f64> = times.collect();
        let launches = trace.calls.iter().map(|call| call.flops > 0.0 || call.written > 0).collect();
        let factor =
            calibration.filter(|calibration| calibration.is_for(device)).map_or(1.0, |known| known.time_factor);
        Self { call_us, launches, launch_us: device.launch_us.value, factor }
    }

    /// The time of the last step of a program.
    #[must_use]
    pub fn step(&self, program: &Program<'_>) -> StepTime {
        let start = program.steps().last().map_or(0, |step| step.start);
        self.of(program, start, program.events.len())
    }

    /// The time of the events from `start` to `end`, as one piece of work.
    #[must_use]
    pub fn of(&self, program: &Program<'_>, start: usize, end: usize) -> StepTime {
        let (mut clocks, mut launch_us, mut times) = (Clocks::default(), 0.0, 1.0);
        for event in &program.events[start..end] {
            match *event {
                Event::Op(call) => {
                    let call = call as usize;
                    clocks.run(program.trace.calls[call].stream, self.call_us[call] * times);
                    if self.launches[call] {
                        launch_us += self.launch_us * times;
                    }
                }
                Event::Repeat(count) => times = f64::from(count),
                Event::Record(event, stream) => clocks.record(event, stream),
                Event::Wait(stream, event) => clocks.wait(stream, event),
                _ => {}
            }
        }
        let mut device_us = clocks.end();
        launch_us += program.extra_launches * self.launch_us;
        device_us += program.extra_us;
        let busy = f64::max(device_us, launch_us).max(0.0);
        let hidden = program.link_us.min(COVERED * busy);
        let total = busy + program.link_us - (1.0 - HIDDEN) * hidden;
        StepTime { device_us, launch_us, total_us: total * self.factor }
    }

    /// The device's time for those calls from event `start` to event `end` whose operator `runs` says so, in microseconds.
    #[must_use]
    pub fn run_us(&self, program: &Program<'_>, start: usize, end: usize, runs: impl Fn(&str) -> bool) -> f64 {
        let calls = program.events[start..=end].iter().filter_map(|event| match event {
            Event::Op(call) => Some(*call),
            _ => None,
        });
        let counted = calls.filter(|&call| runs(program.trace.op_name(&program.trace.calls[call as usize])));
        counted.map(|call| self.call_us(call)).sum::<f64>() * self.factor
    }

    /// The time of a single call on the device, in microseconds.
    #[must_use]
    pub fn call_us(&self, call: u32) -> f64 {
        self.call_us.get(call as usize).copied().unwrap_or(0.0)
    }

    /// The microseconds of the last step that the device spends in each phase, as far as it spends any.
    #[must_use]
    pub fn phases(&self, program: &Program<'_>) -> Vec<(Phase, f64)> {
        let start = program.steps().last().map_or(0, |step| step.start);
        let mut sums: Vec<(Phase, f64)> = Vec::new();
        let (mut phase, mut times) = (Phase::Other, 1.0);
        for event in &program.events[start..] {
            match *event {
                Event::Phase(next) => phase = next,
                Event::Repeat(count) => times = f64::from(count),
                Event::Op(call) => {
                    let us = self.call_us(call) * times;
                    match sums.iter_mut().find(|(known, _)| *known == phase) {
                        Some((_, sum)) => *sum += us,
                        None => sums.push((phase, us)),
                    }
                }
                _ => {}
            }
        }
        sums
    }
}
