//! Memory through time adds up to what the replay says, and loses no peak.

use std::collections::BTreeMap;

use gpuheap_fit::cost::CostModel;
use gpuheap_fit::device::{Device, add_workspaces};
use gpuheap_fit::holders::holders;
use gpuheap_fit::plan::{Limits, variants};
use gpuheap_fit::replay::{Replayed, config, replay};
use gpuheap_fit::{FitOptions, Program, Timeline, Trace, fit};
use proptest::prelude::*;

use crate::model::{Model, trace};

const CONFS: [&str; 2] = ["", "expandable_segments:True"];

fn timeline(trace: &Trace, conf: &str) -> (Timeline, Replayed) {
    let device = Device::find("H200", None).unwrap();
    let mut program = Program::new(trace);
    add_workspaces(&mut program, &device, None);
    let conf = config(conf).unwrap();
    let timeline = Timeline::new(&program, &conf, &CostModel::new(trace, &device, None));
    (timeline, replay(&program, &conf, None))
}

fn peaks(timeline: &Timeline) -> (u64, u64) {
    let allocated = (0..timeline.at.len()).map(|point| timeline.allocated(point)).max().unwrap();
    (allocated, timeline.reserved.iter().copied().max().unwrap())
}

#[test]
fn a_timeline_adds_up_to_the_replay() {
    for conf in CONFS {
        let (timeline, replayed) = timeline(&trace(Model::default()), conf);
        assert_eq!(peaks(&timeline), (replayed.allocated, replayed.reserved), "{conf}");
        let point = timeline.at.binary_search(&timeline.peak).unwrap();
        assert_eq!(timeline.allocated(point), replayed.allocated);
        assert!(timeline.at.is_sorted() && timeline.us.is_sorted() && timeline.us.last() > Some(&0));
        for column in &timeline.bytes {
            assert_eq!(column.len(), timeline.at.len());
        }
        // Each phase comes to what the replay says of it; one of its phases is the peak's.
        for span in &timeline.phases {
            let same = |known: &&gpuheap_fit::replay::PhasePeak| (known.step, known.phase) == (span.step, span.phase);
            let most = replayed.phases.iter().filter(same).map(|known| (known.allocated, known.reserved));
            assert!(most.clone().any(|(allocated, _)| allocated == span.allocated_bytes), "{span:?}");
            assert!(most.clone().any(|(_, reserved)| reserved == span.reserved_bytes), "{span:?}");
            assert!(span.start <= span.event && span.event < span.end, "{span:?}");
            let held: u64 = span.holders.iter().map(|holder| holder.bytes).sum();
            assert!(held > 0 && held <= span.allocated_bytes, "{span:?}");
        }
        let binds = |span: &&gpuheap_fit::timeline::PhaseSpan| span.event == timeline.peak;
        assert_eq!(timeline.phases.iter().find(binds).unwrap().allocated_bytes, replayed.allocated);
    }
}

#[test]
fn steps_take_the_predicted_time() {
    let trace = trace(Model::default());
    let device = Device::find("H200", None).unwrap();
    let mut program = Program::new(&trace);
    add_workspaces(&mut program, &device, None);
    let cost = CostModel::new(&trace, &device, None);
    let (timeline, _) = timeline(&trace, "");
    let of = |number: u32| timeline.phases.iter().filter(move |span| span.step == number);
    let begin = of(2).map(|span| span.start_us).min().unwrap();
    let end = of(2).map(|span| span.end_us).max().unwrap();
    let total = cost.step(&program).total_us;
    assert!(((end - begin) as f64 - total).abs() <= 0.02 * total, "{begin} {end} {total}");
}

#[test]
fn numbers_of_modules_are_told() {
    let trace = trace(Model { layers: 3, ..Model::default() });
    let mut program = Program::new(&trace);
    add_workspaces(&mut program, &Device::find("H200", None).unwrap(), None);
    let found = holders(&program, program.most_alive().1, 20);
    let modules: Vec<&str> = found.iter().map(|holder| holder.module.as_str()).collect();
    assert!(modules.contains(&"layers.[0-2]") || modules.contains(&"layers.[0-2].mlp"), "{modules:?}");
    assert!(modules.iter().all(|module| !module.contains('*')), "{modules:?}");
}

#[test]
fn they_are_there_when_they_are_asked_for() {
    let variants = variants(vec![trace(Model::default())]).unwrap();
    let answer = |budget, timelines| {
        let options = FitOptions {
            device: Device::find("H200", None).unwrap(),
            calibration: None,
            budget,
            limits: Limits { gpus: 1, ..Limits::default() },
            front: false,
            timelines,
        };
        fit(&variants, &options, &mut |_, _| {}).unwrap()
    };
    assert_eq!(answer(None, false).timelines, None);
    let whole = answer(None, true);
    let timelines = whole.timelines.unwrap();
    assert_eq!(timelines.planned, None);
    assert_eq!(peaks(&timelines.baseline).0, whole.baseline.allocated_bytes);
    let planned = answer(Some(whole.baseline.device_bytes * 4 / 5), true);
    assert!(!planned.plan.is_empty());
    let timeline = planned.timelines.unwrap().planned.unwrap();
    assert_eq!(peaks(&timeline), (planned.peak.allocated_bytes, planned.peak.reserved_bytes));
    assert_eq!(timeline.peak, planned.peak.event);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn fewer_points_have_the_same_peaks(most in 1_usize..600, layers in 1_usize..8) {
        let (whole, _) = timeline(&trace(Model { layers, ..Model::default() }), "");
        let fewer = whole.reduced(most);
        prop_assert_eq!(peaks(&fewer), peaks(&whole));
        let kept = fewer.classes.len() + 4 * fewer.phases.len() + 4;
        prop_assert!(fewer.at.len() <= most.max(3) + kept, "{} points", fewer.at.len());
        for (column, before) in fewer.bytes.iter().zip(&whole.bytes) {
            prop_assert_eq!(column.iter().max(), before.iter().max());
        }
        // Every point is one of those that were there, with all that it had.
        let points: BTreeMap<usize, usize> = whole.at.iter().copied().zip(0..).collect();
        for (point, at) in fewer.at.iter().enumerate() {
            let before = points[at];
            prop_assert_eq!(fewer.allocated(point), whole.allocated(before));
            let name = |timeline: &Timeline, point: usize| {
                timeline.module[point].map(|module| timeline.modules[module as usize].clone())
            };
            prop_assert_eq!(name(&fewer, point), name(&whole, before));
        }
        for phase in &fewer.phases {
            prop_assert!(fewer.at.binary_search(&phase.event).is_ok() || phase.event == phase.start);
        }
    }
}
