//! Times of steps: what makes them longer, and by how much.

use gpuheap_fit::blocks::{Uses, blocks};
use gpuheap_fit::cost::{CostModel, StepTime};
use gpuheap_fit::device::Device;
use gpuheap_fit::levers::checkpoint::{Treatment, treat};
use gpuheap_fit::levers::{OptimizerForm, accumulate, loss, optimizer};
use gpuheap_fit::{Program, Trace};

use crate::model::{Model, trace};

/// Its step is the device's work.
const LARGE: Model = Model { layers: 6, batch: 8, sequence: 1024, width: 2048, words: 8000 };
/// Its step is the program's.
const SMALL: Model = Model { layers: 6, batch: 1, sequence: 64, width: 128, words: 1000 };

fn h200() -> Device {
    Device::find("H200", None).unwrap()
}

fn time(trace: &Trace, program: &Program<'_>) -> StepTime {
    CostModel::new(trace, &h200(), None).step(program)
}

fn treated<'t>(program: &Program<'t>, treatment: Treatment) -> Program<'t> {
    let uses = Uses::new(program);
    let found = blocks(program, &uses);
    let treatments = vec![treatment; found.len()];
    treat(program, &uses, &found, &treatments, &h200()).program
}

#[test]
fn a_step_is_no_shorter_than_the_work_of_either_side() {
    for (model, is_devices) in [(LARGE, true), (SMALL, false)] {
        let trace = trace(model);
        let StepTime { device_us, launch_us, total_us } = time(&trace, &Program::new(&trace));
        assert!(total_us >= device_us.max(launch_us) - 1e-6 && total_us <= device_us + launch_us);
        assert_eq!(device_us > launch_us, is_devices, "{device_us} {launch_us}");
    }
}

#[test]
fn a_slow_processor_slows_down_what_it_is_the_limit_of() {
    let slow = Device { launch_us: gpuheap_fit::device::Figure { value: 20.7, ..h200().launch_us }, ..h200() };
    for (model, most, least) in [(LARGE, 1.2, 1.0), (SMALL, 3.1, 2.5)] {
        let trace = trace(model);
        let program = Program::new(&trace);
        let times = CostModel::new(&trace, &slow, None).step(&program).total_us / time(&trace, &program).total_us;
        assert!((least..=most).contains(&times), "{times}");
    }
}

#[test]
fn a_selective_checkpoint_saves_the_device_and_costs_the_program() {
    for (model, is_better) in [(LARGE, true), (SMALL, false)] {
        let trace = trace(model);
        let program = Program::new(&trace);
        let [plain, whole, selective] = [Treatment::Keep, Treatment::Recompute, Treatment::Selective]
            .map(|treatment| time(&trace, &treated(&program, treatment)));
        assert!(plain.total_us < whole.total_us.min(selective.total_us));
        assert!(plain.device_us < selective.device_us && selective.device_us < whole.device_us);
        assert!(selective.launch_us > whole.launch_us);
        // All calls of a small model go through Python for nothing.
        assert_eq!(selective.total_us < whole.total_us, is_better, "{selective:?} {whole:?}");
    }
}

#[test]
fn a_trace_with_a_checkpoint_applied_costs_what_its_treatment_does() {
    let mut applied = trace(SMALL);
    let plain = time(&applied, &Program::new(&applied)).launch_us;
    let modules = (0..6).map(|layer| format!("layers.{layer}")).collect();
    applied.applied = vec![gpuheap_fit::Lever::SelectiveCheckpoint { modules, keep: Vec::new() }];
    // The second pass is not in these events, but the first goes through Python.
    assert!(time(&applied, &Program::new(&applied)).launch_us > 2.0 * plain);
}

#[test]
fn parts_cost_what_the_program_and_small_products_do() {
    let whole = trace(LARGE);
    let before = time(&whole, &Program::new(&whole)).total_us;
    let part = trace(Model { batch: 1, ..LARGE });
    let program = Program::new(&part);
    let eighth = time(&part, &accumulate::accumulate(&program, 8, &h200()).unwrap()).total_us;
    assert!((1.0..1.4).contains(&(eighth / before)), "{eighth} {before}");
    let one = time(&part, &program).total_us;
    let times = |factor| time(&part, &accumulate::accumulate(&program, factor, &h200()).unwrap()).total_us;
    // Each part after the second costs the same, and none is free.
    let (second, third, ninth) = (times(2) - one, times(3) - times(2), (times(9) - times(3)) / 6.0);
    assert!(second > 0.5 * one && (third / ninth - 1.0).abs() < 0.01, "{second} {third} {ninth}");
}

#[test]
fn optimizers_cost_by_their_form() {
    let trace = trace(LARGE);
    let program = Program::new(&trace);
    let of = |form| time(&trace, &optimizer::optimizer(&program, form, &h200()).unwrap());
    let (plain, fused) = (time(&trace, &program), of(OptimizerForm::Fused));
    assert!(fused.total_us <= 1.05 * plain.total_us, "{fused:?} {plain:?}");
    assert!(of(OptimizerForm::ForLoop).launch_us > fused.launch_us);
    // State goes over the link and back, and the device waits.
    let state = trace.storages.iter().filter(|storage| storage.class == gpuheap_fit::trace::Class::Optimizer);
    let link = 2.0 * state.map(|storage| storage.bytes).sum::<u64>() as f64 / 55e9 * 1e6;
    let offloaded = time(&trace, &optimizer::offload(&program, &h200()).unwrap());
    assert!((0.9..1.3).contains(&((offloaded.total_us - plain.total_us) / link)), "{offloaded:?} {plain:?} {link}");
    let chunked = time(&trace, &loss::chunked(&program, 8, &h200()).unwrap());
    assert!(chunked.total_us > plain.total_us && chunked.total_us < 1.3 * plain.total_us);
}
