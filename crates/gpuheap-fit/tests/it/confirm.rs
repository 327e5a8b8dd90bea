//! Plans are traced before they are believed.

use gpuheap_fit::device::Device;
use gpuheap_fit::plan::Limits;
use gpuheap_fit::{Basis, Error, FitOptions, Lever, Trace, Tracer, Verdict, fit_traced};

use crate::model::{Model, trace};

/// Traces the model as it is, and with a plan whatever the test says.
struct Fake<F> {
    planned: F,
    asked: Vec<(Vec<Lever>, Option<u64>)>,
}

impl<F: FnMut(&[Lever]) -> Result<Trace, Error>> Tracer for Fake<F> {
    type Error = Error;

    fn trace(&mut self, levers: &[Lever], batch: Option<u64>) -> Result<Trace, Error> {
        self.asked.push((levers.to_vec(), batch));
        if levers.is_empty() {
            return Ok(trace(Model { batch: batch.unwrap_or(8), ..Model::default() }));
        }
        (self.planned)(levers)
    }

    fn ends(&self, error: &Error) -> bool {
        matches!(error, Error::NoSuchDevice { .. })
    }
}

fn options(budget: u64, without: &[&str]) -> FitOptions {
    let without = without.iter().map(|&name| name.to_owned()).collect();
    let device = Device::find("H200", None).unwrap();
    FitOptions {
        device,
        calibration: None,
        budget: Some(budget),
        limits: Limits { gpus: 1, without, ..Limits::default() },
        front: false,
        timelines: false,
    }
}

/// What the model takes as it is, and the least that is possible, in bytes.
fn sizes() -> (u64, u64) {
    let mut fake = Fake { planned: |_: &[Lever]| Ok(trace(Model { batch: 1, ..Model::default() })), asked: Vec::new() };
    let whole = fit_traced(&mut fake, &options(1 << 30, &[])).unwrap();
    (whole.baseline.high, whole.smallest_budget_bytes.unwrap())
}

#[test]
fn the_peak_is_that_of_the_trace_with_the_plan() {
    let (whole, least) = sizes();
    let small = || Ok(trace(Model { batch: 1, layers: 2, ..Model::default() }));
    let mut fake = Fake { planned: |_: &[Lever]| small(), asked: Vec::new() };
    let fit = fit_traced(&mut fake, &options(u64::midpoint(whole, least), &[])).unwrap();
    let alone =
        fit_traced(&mut Fake { planned: |_: &[Lever]| small(), asked: Vec::new() }, &options(1 << 40, &["all"]));
    assert_eq!(fit.verdict, Verdict::Fits);
    assert!(fit.peak.device_bytes < alone.unwrap().peak.device_bytes);
    assert!(fit.notes.iter().any(|note| note.contains("trace with the plan applied")), "{:?}", fit.notes);
    // The model, half of its batch, then plans: each at the batch that was asked for.
    let batches: Vec<Option<u64>> = fake.asked.iter().map(|(_, batch)| *batch).collect();
    assert_eq!((&batches[..2], fake.asked[2].0.is_empty()), (&[None, Some(4)][..], false));
    assert!(batches[2..].iter().all(Option::is_none) && batches.len() <= 7, "{batches:?}");
    // No plan is traced twice.
    for (at, (levers, _)) in fake.asked.iter().enumerate().skip(2) {
        assert!(fake.asked[2..at].iter().all(|(other, _)| other != levers));
    }
}

#[test]
fn a_plan_that_takes_too_much_gives_way_to_one_that_does_not() {
    let (whole, _) = sizes();
    let others = [
        "accumulate",
        "allocator",
        "optimizer",
        "offload_optimizer",
        "loss",
        "selective_checkpoint",
        "offload_activations",
        "spill",
    ];
    // By rules one block less would do: a checkpointed block spares less than they say.
    let planned = |levers: &[Lever]| {
        let count =
            levers.iter().map(|lever| if let Lever::Checkpoint { modules } = lever { modules.len() } else { 0 });
        let batch = 8 - u64::try_from(count.sum::<usize>()).unwrap() / 2;
        Ok(trace(Model { batch, ..Model::default() }))
    };
    let mut fake = Fake { planned, asked: Vec::new() };
    let budget = whole - (whole >> 4);
    let fit = fit_traced(&mut fake, &options(budget, &others)).unwrap();
    let traced = fake.asked.iter().filter(|(levers, _)| !levers.is_empty()).count();
    assert!(traced >= 2, "the first plan should have been too large");
    assert_eq!(fit.verdict, Verdict::Fits, "{:?}", fit.notes);
    assert!(fit.peak.high <= budget);
}

#[test]
fn what_no_trace_confirms_is_not_said_to_fit() {
    let (whole, least) = sizes();
    let mut fake = Fake { planned: |_: &[Lever]| Ok(trace(Model::default())), asked: Vec::new() };
    let fit = fit_traced(&mut fake, &options(u64::midpoint(whole, least), &["spill"])).unwrap();
    assert_eq!(fit.verdict, Verdict::DoesNotFit, "{:?}", fit.notes);
    assert!(fake.asked.len() <= 10, "{}", fake.asked.len());
}

/// A model for which plans with levers of some names take as much as none, in all combinations. Of the others parts of the
/// batch and whole blocks made again spare about what rules say.
struct Wrong {
    names: &'static [&'static str],
    traced: usize,
}

impl Tracer for Wrong {
    type Error = Error;

    fn trace(&mut self, levers: &[Lever], batch: Option<u64>) -> Result<Trace, Error> {
        let model = Model::default();
        let mut size = batch.unwrap_or(model.batch);
        self.traced += usize::from(!levers.is_empty());
        if levers.iter().any(|lever| self.names.contains(&lever.name())) {
            return Ok(trace(model));
        }
        for lever in levers {
            match lever {
                Lever::Accumulate { factor } => size /= u64::from(*factor),
                Lever::Checkpoint { modules } => {
                    size -= size * modules.len() as u64 * 3 / (model.layers as u64 * 4);
                }
                _ => {}
            }
        }
        Ok(trace(Model { batch: size.max(1), ..model }))
    }
}

#[test]
fn what_fits_a_smaller_budget_fits_a_larger_one_though_rules_are_wrong_for_a_lever() {
    let (whole, least) = sizes();
    let wrong =
        [&["offload_activations"][..], &["checkpoint"], &["loss"], &["selective_checkpoint", "offload_activations"]];
    for names in wrong {
        let mut fits = false;
        for sixteenth in [3, 5, 6, 8, 11, 14] {
            let budget = least + (whole - least) / 16 * sixteenth;
            let mut tracer = Wrong { names, traced: 0 };
            let fit = fit_traced(&mut tracer, &options(budget, &["spill"])).unwrap();
            assert!(tracer.traced <= 8, "{} plans were traced", tracer.traced);
            assert!(!fits || fit.verdict == Verdict::Fits, "{names:?} within {sixteenth}/16: {:?}", fit.notes);
            if fit.verdict == Verdict::Fits {
                assert!(fit.peak.high <= budget);
                assert!(fit.notes.iter().any(|note| note.contains("trace with the plan applied")), "{:?}", fit.notes);
                fits = true;
            }
        }
        assert!(fits, "{names:?}: parts of the batch would do");
    }
}

#[test]
fn a_plan_that_cannot_be_traced_is_by_rules_and_an_end_is_an_end() {
    let (whole, least) = sizes();
    let options = options(u64::midpoint(whole, least), &[]);
    let refuse = |_: &[Lever]| Err(Error::OneBatch { traced: 1, wanted: 2 });
    let fit = fit_traced(&mut Fake { planned: refuse, asked: Vec::new() }, &options).unwrap();
    assert_eq!((fit.verdict, fit.peak_from), (Verdict::Fits, Basis::Rules));
    assert!(fit.notes.iter().any(|note| note.contains("worked out by rules")), "{:?}", fit.notes);
    let end = |_: &[Lever]| Err(Error::NoSuchDevice { name: String::new(), known: String::new() });
    let ended = fit_traced(&mut Fake { planned: end, asked: Vec::new() }, &options);
    assert!(matches!(ended, Err(Error::NoSuchDevice { .. })));
}

#[test]
fn a_lever_that_cannot_be_traced_is_left_out_and_another_plan_is_found() {
    let (whole, least) = sizes();
    // The words name the lever, or nothing does.
    for names_it in [true, false] {
        for name in ["checkpoint", "selective_checkpoint", "loss", "accumulate", "offload_activations", "optimizer"] {
            let mut refused = 0;
            let planned = |levers: &[Lever]| {
                if levers.iter().any(|lever| lever.name() == name) {
                    refused += 1;
                    let lever = if names_it { name } else { "model" };
                    return Err(Error::Lever { lever: lever.to_owned(), why: format!("the lever `{lever}` fails") });
                }
                Ok(trace(Model { batch: 1, ..Model::default() }))
            };
            let fit =
                fit_traced(&mut Fake { planned, asked: Vec::new() }, &options(u64::midpoint(whole, least), &["spill"]))
                    .unwrap();
            assert_eq!((fit.verdict, fit.peak_from), (Verdict::Fits, Basis::Trace), "without {name}: {:?}", fit.notes);
            assert!(fit.plan.iter().all(|planned| planned.lever.name() != name), "{name}");
            assert!(refused <= 6, "{name} was tried {refused} times");
            if refused > 0 {
                let told = |note: &String| note.starts_with("not considered: ") && note.ends_with("fails");
                assert!(fit.notes.iter().any(told), "{:?}", fit.notes);
            }
        }
    }
}

#[test]
fn a_lever_that_was_asked_for_and_cannot_be_traced_is_an_error() {
    let mut options = options(1 << 40, &["all"]);
    options.limits.set = vec!["optimizer=fused".parse().unwrap()];
    let refuse =
        |_: &[Lever]| Err(Error::Lever { lever: "optimizer".to_owned(), why: "it has no such form".to_owned() });
    let error = fit_traced(&mut Fake { planned: refuse, asked: Vec::new() }, &options).unwrap_err();
    assert!(error.to_string().contains("it has no such form"), "{error}");
}

#[test]
fn what_a_peak_is_of_is_said_of_plans_that_spill_too() {
    let without = ["accumulate", "loss", "optimizer", "allocator"];
    let planned = |_: &[Lever]| Ok(trace(Model { layers: 5, ..Model::default() }));
    let at = |budget| fit_traced(&mut Fake { planned, asked: Vec::new() }, &options(budget, &without)).unwrap();
    let least = at(1 << 30).smallest_budget_bytes.unwrap();
    let budget = least - (64 << 20);
    let fit = at(budget);
    assert_eq!(fit.verdict, Verdict::FitsWithSpill, "{:?}", fit.notes);
    // Nothing spills by itself: the line to type has both sizes, and contexts are not counted there.
    let spill = fit.plan.last().unwrap();
    let counted = budget - (fit.peak.device_bytes - fit.peak.reserved_bytes);
    let line = format!("gpuheap run --budget {counted} --spill {} -- python train.py", spill.saves_bytes);
    assert_eq!(spill.code, line);
    let says = |part: &str| fit.notes.iter().any(|note| note.contains(part));
    match fit.peak_from {
        Basis::Trace => assert!(says("of a trace with the plan applied, before anything lies on the host")),
        Basis::Rules => assert!(says("worked out by rules") && !says("of a trace with the plan")),
    }
}
