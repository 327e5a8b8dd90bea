//! Levers keep programs whole, and do what they say.

use gpuheap_fit::blocks::{Uses, blocks};
use gpuheap_fit::device::{Device, add_workspaces};
use gpuheap_fit::levers::checkpoint::{Treatment, treat};
use gpuheap_fit::levers::{OptimizerForm, accumulate, loss, optimizer};
use gpuheap_fit::trace::Event;
use gpuheap_fit::{Program, Trace};

use proptest::prelude::*;

use crate::model::{Model, trace};

fn h200() -> Device {
    Device::find("H200", None).unwrap()
}

fn program(trace: &Trace) -> Program<'_> {
    let mut program = Program::new(trace);
    add_workspaces(&mut program, &h200(), None);
    program
}

fn whole(program: &Program<'_>, what: &str) {
    assert_eq!(program.first_fault(), None, "{what}");
}

#[test]
fn blocks_are_found_and_alike() {
    let trace = trace(Model::default());
    let program = program(&trace);
    let blocks = blocks(&program, &Uses::new(&program));
    let names: Vec<&str> = blocks.iter().map(|block| trace.module_name(block.module)).collect();
    assert_eq!(names, ["layers.0", "layers.1", "layers.2", "layers.3", "layers.4", "layers.5"]);
    assert!(blocks.windows(2).all(|pair| pair[0].signature == pair[1].signature));
    assert!(blocks.iter().all(|block| block.passages.len() == 2));
}

#[test]
fn treated_blocks_spare_what_they_keep() {
    // Large enough for what is on its way to the host to be a small part of it.
    let model = Model { sequence: 8192, ..Model::default() };
    let trace = trace(model);
    let program = program(&trace);
    let uses = Uses::new(&program);
    let blocks = blocks(&program, &uses);
    let hidden = model.batch * model.sequence * model.width * 4;
    let before = program.most_alive().0;
    for (treatment, least) in [(Treatment::Recompute, 8), (Treatment::Selective, 2), (Treatment::Offload, 8)] {
        let treated = treat(&program, &uses, &blocks, &[treatment; 6], &h200()).program;
        whole(&treated, "treated");
        let after = treated.most_alive().0;
        assert!(before - after >= least * hidden, "{treatment:?}: {before} {after}");
    }
}

#[test]
fn all_levers_keep_programs_whole() {
    let trace = trace(Model::default());
    let program = program(&trace);
    let before = program.most_alive().0;
    for form in [
        OptimizerForm::Fused,
        OptimizerForm::ForLoop,
        OptimizerForm::InBackward,
        OptimizerForm::EightBit,
        OptimizerForm::FourBit,
    ] {
        let changed = optimizer::optimizer(&program, form, &h200()).unwrap();
        whole(&changed, "optimizer");
        assert!(changed.most_alive().0 <= before, "{form:?}");
    }
    whole(&optimizer::offload(&program, &h200()).unwrap(), "offload");
    let chunked = loss::chunked(&program, 8, &h200()).unwrap();
    whole(&chunked, "loss");
    assert!(chunked.most_alive().0 < before);
    let accumulated = accumulate::accumulate(&program, 4, &h200()).unwrap();
    whole(&accumulated, "accumulate");
    // While the second micro-batch runs, all gradients are there.
    assert!(accumulated.most_alive().0 > before);
    let uses = Uses::new(&accumulated);
    let found = blocks(&accumulated, &uses);
    assert_eq!((found.len(), found[0].passages.len()), (6, 4));
    for treatment in [Treatment::Recompute, Treatment::Selective] {
        let treated = treat(&accumulated, &uses, &found, &[treatment; 6], &h200()).program;
        whole(&treated, "accumulated and treated");
        assert!(treated.most_alive().0 < accumulated.most_alive().0);
    }
}

#[test]
fn the_layer_that_makes_the_scores_is_named() {
    let mut trace = trace(Model { words: 4 * 512, ..Model::default() });
    assert_eq!(loss::unusual(&Program::new(&trace)).as_deref(), Some("head"));
    let head = trace.modules.iter().position(|module| module.name == "head").unwrap();
    trace.modules[head].name = "decoder.lm_head".to_owned();
    assert_eq!(loss::unusual(&Program::new(&trace)), None);
    assert!(loss::chunked(&program(&trace), 8, &h200()).is_some());
    // The model itself makes them, of the words' vectors: no layer can hand on its input.
    trace.modules[head].name = String::new();
    assert!(loss::chunked(&program(&trace), 8, &h200()).is_none());
}

#[test]
fn only_copies_of_the_scores_are_cut() {
    // Activations of blocks have the size of the scores, and the scores belong to the whole model.
    let mut trace = trace(Model { words: 4 * 512, ..Model::default() });
    let scores = loss::scores(&Program::new(&trace)).unwrap();
    trace.storages[scores as usize].module = 0;
    let before = program(&trace);
    let after = loss::chunked(&before, 8, &h200()).unwrap();
    let size = before.slots[scores as usize].bytes;
    let cut = before.slots.iter().zip(&after.slots).filter(|(old, new)| old.bytes != new.bytes);
    let cut: Vec<_> = cut.map(|(old, new)| (old.bytes / size, new.bytes * 8 / size)).collect();
    // Scores, their logarithms and the gradients of both, in each of two steps.
    assert_eq!(cut, [(1, 1); 8]);
    let same = before.slots.iter().filter(|slot| slot.bytes == size).count();
    assert!(same > 8 + 2 * 6 * 2, "{same}");
    // Each backward pass makes the scores once more, and does what chunks cost beside that.
    let count = |program: &Program<'_>, is: fn(&Event) -> bool| program.events.iter().filter(|event| is(event)).count();
    let is_op = |event: &Event| matches!(event, Event::Op(_));
    assert_eq!(count(&after, is_op), count(&before, is_op) + 2);
    assert_eq!(after.events.len(), before.events.len() + 4);
}

const ALL: [Treatment; 4] = [Treatment::Keep, Treatment::Recompute, Treatment::Selective, Treatment::Offload];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_treatment_of_any_blocks_keeps_a_program_whole(
        layers in 2_usize..6,
        batch in 1_u64..5,
        factor in 1_u32..4,
        kinds in prop::collection::vec(0_usize..4, 6),
    ) {
        let trace = trace(Model { layers, batch, sequence: 64, width: 128, words: 1000 });
        let program = accumulate::accumulate(&program(&trace), factor, &h200()).unwrap();
        let uses = Uses::new(&program);
        let blocks = blocks(&program, &uses);
        prop_assert_eq!(blocks.len(), layers);
        let treatments: Vec<Treatment> = kinds.iter().take(layers).map(|&kind| ALL[kind]).collect();
        let treated = treat(&program, &uses, &blocks, &treatments, &h200()).program;
        prop_assert_eq!(treated.first_fault(), None);
        // All that is alive at the end was so before.
        let last = program.events.len();
        prop_assert_eq!(treated.alive_after(treated.events.len()), program.alive_after(last));
        // A second forward pass of one block is the most that any treatment can add: the block's own results.
        let again: u64 = blocks.iter().map(|block| block.kept_bytes).max().unwrap_or(0);
        prop_assert!(treated.most_alive().0 <= program.most_alive().0 + again + (512 << 20));
    }

    #[test]
    fn more_treated_blocks_never_take_more_outside_of_them(layers in 2_usize..8) {
        let trace = trace(Model { layers, batch: 2, sequence: 64, width: 128, words: 1000 });
        let program = program(&trace);
        let uses = Uses::new(&program);
        let blocks = blocks(&program, &uses);
        let peak = |count: usize| {
            let treatments: Vec<Treatment> =
                (0..layers).map(|at| if at < count { Treatment::Recompute } else { Treatment::Keep }).collect();
            treat(&program, &uses, &blocks, &treatments, &h200()).program.most_alive().0
        };
        let again = blocks[0].kept_bytes;
        for count in 1..=layers {
            prop_assert!(peak(count) <= peak(count - 1) + again);
        }
    }
}
