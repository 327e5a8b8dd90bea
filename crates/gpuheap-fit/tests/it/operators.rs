//! Times of single operators against what was measured on an H200 (`gpu/fit_times.py`), and what calls cost a program.

use gpuheap_fit::cost::{CostModel, StepTime};
use gpuheap_fit::device::Device;
use gpuheap_fit::{Program, Trace};

/// A call: operator, what it computes, and how many numbers its inputs and outputs have.
struct Operator<'a> {
    name: &'a str,
    dtype: &'a str,
    flops: u64,
    inputs: &'a [u64],
    outputs: &'a [u64],
    backward: bool,
}

/// A step that is that call.
fn step_of(operator: &Operator<'_>) -> StepTime {
    let size = if operator.dtype == "float32" { 4 } else { 2 };
    let bytes: Vec<u64> = operator.inputs.iter().chain(operator.outputs).map(|numbers| numbers * size).collect();
    let (read, written) = bytes.split_at(operator.inputs.len());
    let ids = |from: usize, to: usize| (from..to).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let (inputs, all) = (operator.inputs.len(), bytes.len());
    let allocs = (0..all).map(|id| format!(r#"["alloc",{id}]"#)).collect::<Vec<_>>().join(",");
    let thread = u8::from(operator.backward);
    let phase = if operator.backward { "backward" } else { "forward" };
    let call = format!(
        r#"["op",0,-1,{thread},{},{},{},[{}],[{}]]"#,
        operator.flops,
        read.iter().sum::<u64>(),
        written.iter().sum::<u64>(),
        ids(0, inputs),
        ids(inputs, all),
    );
    let text = format!(
        r#"{{"schema":"gpuheap.fit.trace/1","ops":["aten.{}"],"storages":{{"bytes":{bytes:?},"class":{:?},"dtype":{:?}}},
            "events":[["step",1],["phase","{phase}"],{allocs},{call}]}}"#,
        operator.name,
        vec!["activation"; all],
        vec![operator.dtype; all],
    );
    timed(&parsed(&text))
}

fn parsed(text: &str) -> Trace {
    gpuheap_fit::trace::parse(text.as_bytes()).unwrap()
}

fn timed(trace: &Trace) -> StepTime {
    CostModel::new(trace, &Device::find("H200", None).unwrap(), None).step(&Program::new(trace))
}

fn product(rows: u64, columns: u64, sum: u64, dtype: &str, backward: bool) -> f64 {
    let (inputs, outputs) = ([rows * sum, sum * columns], [rows * columns]);
    let flops = 2 * rows * columns * sum;
    step_of(&Operator { name: "mm.default", dtype, flops, inputs: &inputs, outputs: &outputs, backward }).device_us
}

#[test]
fn convolutions_of_one_filter_a_channel_take_what_was_measured() {
    // Pictures, channels, pixels a side, filter, stride; microseconds of the convolution and of its gradients.
    for (pictures, channels, side, filter, stride, forward, backward) in [
        (32, 96, 56, 7, 1, 321.1, 1067.3),
        (32, 384, 14, 7, 1, 86.1, 345.3),
        (64, 32, 112, 3, 1, 245.0, 971.5),
        (64, 144, 56, 3, 2, 82.8, 572.7),
        (64, 480, 14, 5, 1, 102.7, 396.2),
    ] {
        let picture = pictures * channels * side * side;
        let (result, filters) = (picture / (stride * stride), channels * filter * filter);
        let flops = 2 * result * filter * filter;
        for dtype in ["float32", "bfloat16"] {
            let us = |name, flops, inputs: &[u64], outputs: &[u64], backward| {
                step_of(&Operator { name, dtype, flops, inputs, outputs, backward }).device_us
            };
            let once = us("convolution.default", flops, &[picture, filters], &[result], false);
            let gradients =
                us("convolution_backward.default", 2 * flops, &[result, picture, filters], &[picture, filters], true);
            for (predicted, measured) in [(once, forward), (gradients, backward)] {
                let error: f64 = predicted / measured - 1.0;
                assert!(error.abs() < 0.2, "{channels} x {filter} x {filter}, {dtype}: {predicted:.0} for {measured}");
            }
        }
    }
}

#[test]
fn other_convolutions_are_not_taken_for_those() {
    // Three channels become sixteen: nine times as many products for a result as with one filter a channel.
    let (picture, result, filters) = (64 * 3 * 224 * 224, 64 * 16 * 112 * 112, 16 * 27);
    let flops = 2 * result * 27;
    let (inputs, outputs) = ([picture, filters], [result]);
    let of = |flops| {
        let name = "convolution.default";
        let operator = Operator { name, dtype: "float32", flops, inputs: &inputs, outputs: &outputs, backward: false };
        step_of(&operator).device_us
    };
    // Its traffic bounds it, not its products.
    assert!(of(flops) < 1.5 * of(flops / 2), "{} {}", of(flops), of(flops / 2));
}

#[test]
fn rows_of_an_odd_number_of_halves_are_slow_to_multiply() {
    let (odd, even) = (product(128, 50_257, 1024, "bfloat16", false), product(128, 50_264, 1024, "bfloat16", false));
    assert!(odd > 3.0 * even, "{odd} {even}");
    // 167, 115 and 134 us were measured, where the shape lets expect 31 to 35.
    for us in [odd, product(128, 1024, 50_257, "bfloat16", true), product(50_257, 1024, 128, "bfloat16", true)] {
        assert!((90.0..190.0).contains(&us), "{us}");
    }
    // The batch can have any number, and 32-bit numbers are loaded one by one anyway.
    let [odd, even] = [1001, 1000].map(|rows| product(rows, 1024, 1024, "bfloat16", false));
    assert!((odd / even - 1.0).abs() < 0.05, "{odd} {even}");
    let [odd, even] = [50_257, 50_264].map(|columns| product(128, columns, 1024, "float32", false));
    assert!((odd / even - 1.0).abs() < 0.05, "{odd} {even}");
}

#[test]
fn products_of_groups_wait_but_for_those_of_16_bits() {
    let inputs = [4096 * 768, 8 * 768 * 4096];
    let of = |dtype| {
        step_of(&Operator {
            name: "_grouped_mm.default",
            dtype,
            flops: 2 * 4096 * 768 * 4096,
            inputs: &inputs,
            outputs: &[4096 * 4096],
            backward: false,
        })
    };
    assert!(of("float32").launch_us > of("bfloat16").launch_us + 100.0);
}

#[test]
fn a_program_that_checkpoints_by_itself_pays_for_its_hooks() {
    // A block whose one part runs twice; `pass` says how the second time is entered.
    let of = |pass: u8| {
        let calls = |thread: u8| format!(r#"["op",0,2,{thread},0,64,64,[0],[1]],"#).repeat(12);
        let text = format!(
            r#"{{"schema":"gpuheap.fit.trace/1","ops":["aten.gelu.default"],
                "modules":[{{"name":"","class":"M","parent":-1}},{{"name":"block","class":"B","parent":0}},
                           {{"name":"block.inner","class":"I","parent":1}}],
                "storages":{{"bytes":[64,64],"class":["activation","activation"],"dtype":["float32","float32"]}},
                "events":[["step",1],["phase","forward"],["alloc",0],["alloc",1],["enter",0,0],["enter",1,0],
                    ["enter",2,0],{first}["leave",2,0],["leave",1,0],["leave",0,0],["phase","backward"],
                    ["enter",2,{pass}],{second}["leave",2,{pass}]]}}"#,
            first = calls(0),
            second = calls(1),
        );
        timed(&parsed(&text)).launch_us
    };
    let (plain, again) = (of(1), of(2));
    // Of a block with as many calls: 459 us more in the first pass, 1352 in the second.
    assert!((0.6..1.4).contains(&((again - plain) / (459.0 + 1352.0))), "{plain} {again}");
}
