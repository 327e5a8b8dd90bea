//! Plans keep to their budget, and no better ones exist.

use gpuheap_fit::device::Device;
use gpuheap_fit::levers::checkpoint::Treatment;
use gpuheap_fit::plan::{Chain, Choice, Limits, Link, Variant, variants};
use gpuheap_fit::scale::Family;
use gpuheap_fit::{Error, Fit, FitOptions, Lever, Verdict, fit};
use proptest::prelude::*;

use crate::model::{Model, trace};

const MIB: u64 = 1 << 20;

fn options(budget: Option<u64>) -> FitOptions {
    FitOptions {
        device: Device::find("H200", None).unwrap(),
        calibration: None,
        budget,
        limits: Limits { gpus: 1, ..Limits::default() },
        front: false,
        timelines: false,
    }
}

fn model(batches: &[u64]) -> Vec<Variant> {
    variants(batches.iter().map(|&batch| trace(Model { batch, ..Model::default() })).collect()).unwrap()
}

fn answer(variants: &[Variant], options: &FitOptions) -> Fit {
    fit(variants, options, &mut |_, _| {}).unwrap()
}

#[test]
fn what_fits_needs_no_plan() {
    let fit = answer(&model(&[8]), &options(None));
    assert_eq!((fit.verdict, fit.plan.len()), (Verdict::Fits, 0));
    assert_eq!(fit.baseline, fit.peak);
    assert!(fit.peak.low < fit.peak.device_bytes && fit.peak.device_bytes < fit.peak.high);
}

#[test]
fn plans_keep_to_every_budget_that_is_large_enough() {
    let variants = model(&[4, 8]);
    let whole = answer(&variants, &FitOptions { front: true, ..options(None) });
    let least = whole.smallest_budget_bytes.unwrap();
    assert!(least < whole.baseline.high);
    let mut slower = f64::INFINITY;
    for part in 0..=6 {
        let budget = least + (whole.baseline.high - least) * part / 6;
        let fit = answer(&variants, &options(Some(budget)));
        assert_eq!(fit.verdict, Verdict::Fits, "{budget}");
        assert!(fit.peak.high <= budget, "{} > {budget}", fit.peak.high);
        // More memory is never slower, but for what a thousandth of the time is worth.
        assert!(fit.step_us <= slower * 1.002, "{part}: {} > {slower}", fit.step_us);
        slower = fit.step_us;
    }
    let fit = answer(&variants, &options(Some(least - 64 * MIB)));
    assert_ne!(fit.verdict, Verdict::Fits);
    assert!(whole.front.windows(2).all(|pair| pair[0].budget_bytes > pair[1].budget_bytes));
    assert!(whole.front.windows(2).all(|pair| pair[0].step_us <= pair[1].step_us * 1.002));
}

#[test]
fn what_lies_below_the_weights_is_told() {
    let mut low = options(Some(700 * MIB));
    low.limits.without = vec!["spill".to_owned()];
    let fit = answer(&model(&[4, 8]), &low);
    assert_eq!(fit.verdict, Verdict::DoesNotFit);
    assert!(fit.notes.iter().any(|note| note.contains("the parameters alone take")), "{:?}", fit.notes);
}

#[test]
fn levers_that_are_asked_for_are_there_and_conflicts_are_told() {
    let variants = model(&[4, 8]);
    let with = |set: &[&str]| {
        let mut options = options(None);
        options.limits.set = set.iter().map(|lever| lever.parse().unwrap()).collect();
        options.limits.without = vec!["all".to_owned()];
        fit(&variants, &options, &mut |_, _| {})
    };
    let fit = with(&["accumulate=2", "checkpoint=layers.1,layers.4"]).unwrap();
    let levers: Vec<&Lever> = fit.plan.iter().map(|planned| &planned.lever).collect();
    let modules = vec!["layers.1".to_owned(), "layers.4".to_owned()];
    assert_eq!(levers, [&Lever::Accumulate { factor: 2 }, &Lever::Checkpoint { modules }]);
    for (set, part) in [
        (&["accumulate=2", "optimizer=in_backward"][..], "gradients cannot add up"),
        (&["autocast=bfloat16"], "no trace was made with it"),
        (&["accumulate=3"], "no such parts"),
        (&["checkpoint=nowhere"], "there is no block called `nowhere`"),
        (&["offload_optimizer", "optimizer_state=bfloat16"], "cannot be on the host"),
    ] {
        let error = with(set).unwrap_err();
        assert!(matches!(error, Error::Lever { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn one_trace_says_nothing_about_other_batches() {
    let mut other = options(None);
    other.limits.batch = Some(16);
    let error = fit(&model(&[8]), &other, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.to_string(), "One trace at batch 8 says nothing about batch 16");
    let scaled = answer(&model(&[4, 8]), &other);
    let traced = answer(&model(&[16]), &options(None));
    assert_eq!(scaled.baseline.allocated_bytes, traced.baseline.allocated_bytes);
}

#[test]
fn sizes_follow_lines_and_squares() {
    let at = |batch| trace(Model { batch, ..Model::default() });
    let lines = Family::new(vec![at(2), at(4)]).unwrap();
    for batch in [1, 3, 4, 16] {
        assert_eq!(lines.at(batch).unwrap().storages, at(batch).storages, "{batch}");
    }
    let of = |sequence| (sequence, trace(Model { sequence, ..Model::default() }));
    let squares = Family::over(vec![of(64), of(128), of(256)]).unwrap();
    assert_eq!(squares.at(512).unwrap().storages, of(512).1.storages);
    let other = trace(Model { layers: 5, ..Model::default() });
    assert!(Family::over(vec![(1, at(1)), (2, other)]).unwrap_err().to_string().contains("storages and"));
}

/// Chains in which all sums can be anything.
fn chains() -> impl Strategy<Value = Chain> {
    let choice = (1_u64..40, 0_u32..50, 0_u64..80).prop_map(|(spares, costs, within)| Choice {
        treatment: Treatment::Recompute,
        spares,
        costs_us: f64::from(costs),
        within,
    });
    let link = (0_u64..80, 0_u64..80, prop::collection::vec(choice, 0..3)).prop_map(|(before, within, more)| {
        let nothing = Choice { treatment: Treatment::Keep, spares: 0, costs_us: 0.0, within };
        Link { before, choices: std::iter::once(nothing).chain(more).collect() }
    });
    (prop::collection::vec(link, 1..6), 0_u64..120, 0_u64..60).prop_map(|(links, waiting, outside)| Chain {
        links,
        waiting,
        outside,
    })
}

/// The least cost over all choices, one by one.
fn brute_force(chain: &Chain, budget: u64) -> Option<f64> {
    fn go(chain: &Chain, budget: u64, at: usize, spared: u64) -> Option<f64> {
        let Some(link) = chain.links.get(at) else {
            return (chain.waiting.saturating_sub(spared) <= budget).then_some(0.0);
        };
        if link.before.saturating_sub(spared) > budget {
            return None;
        }
        let fits = link.choices.iter().filter(|choice| choice.within.saturating_sub(spared) <= budget);
        let costs =
            fits.filter_map(|choice| Some(choice.costs_us + go(chain, budget, at + 1, spared + choice.spares)?));
        costs.min_by(f64::total_cmp)
    }
    if chain.outside > budget { None } else { go(chain, budget, 0, 0) }
}

proptest! {
    #[test]
    fn chains_are_solved_as_by_trying_everything(chain in chains(), budget in 0_u64..120) {
        let solved = chain.solve(budget, 1.0);
        prop_assert_eq!(solved.as_ref().map(|solved| solved.costs_us), brute_force(&chain, budget));
        prop_assert!(solved.is_none_or(|solved| solved.optimal && solved.treatments.len() == chain.links.len()));
    }
}

#[test]
fn what_contradicts_itself_is_told() {
    let variants = model(&[3, 6]);
    let why = |set: &[&str], change: &dyn Fn(&mut Limits)| {
        let mut options = options(None);
        options.limits.set = set.iter().map(|lever| lever.parse().unwrap()).collect();
        change(&mut options.limits);
        fit(&variants, &options, &mut |_, _| {}).unwrap_err().to_string()
    };
    let none: &dyn Fn(&mut Limits) = &|_| {};
    let without = |name: &'static str| move |limits: &mut Limits| limits.without = vec![name.to_owned()];
    for (told, part) in [
        (why(&["optimizer=fused", "optimizer=foreach"], none), "`optimizer` cannot be used: it is given twice"),
        (why(&["checkpoint=all"], &without("checkpoint")), "must have it, and may not have it"),
        (why(&[], &without("checkpiont")), "`checkpiont` cannot be used: there is none of this name"),
        (why(&[], &|limits| limits.allow = vec!["all".to_owned()]), "only these need to be allowed: autocast"),
        (why(&[r#"{"lever":"spill","bytes":18446744073709551615}"#], none), "follows from the budget"),
        (why(&[r#"{"lever":"shard","form":"data","gpus":8}"#], none), "over 8 devices, and the plan is for 1"),
        (
            why(&["allocator=expandable_segments:True"], &|limits| limits.conf = Some(String::new())),
            "other settings of the allocator",
        ),
        (why(&[], &|limits| limits.gpus = 4), "a batch of 6 has no 4 equal parts"),
    ] {
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn parts_that_are_asked_for_need_not_be_powers_of_two() {
    let mut options = options(None);
    options.limits.set = vec![Lever::Accumulate { factor: 3 }];
    let fit = answer(&model(&[3, 6]), &options);
    assert!(fit.plan.iter().any(|planned| planned.lever == Lever::Accumulate { factor: 3 }), "{:?}", fit.plan);
}

/// Levers of a plan, by name.
fn names(fit: &Fit) -> Vec<&str> {
    fit.plan.iter().map(|planned| planned.lever.name()).collect()
}

#[test]
fn a_plan_has_no_lever_that_it_fits_without() {
    let variants = model(&[4, 8]);
    let whole = answer(&variants, &options(None));
    let least = whole.smallest_budget_bytes.unwrap_or(whole.baseline.high / 3);
    for part in 0..=8 {
        let budget = least + (whole.baseline.high - least) * part / 8;
        let fit = answer(&variants, &options(Some(budget)));
        for planned in &fit.plan {
            let mut without = options(Some(budget));
            // The same levers but this one, as they are.
            let left = fit.plan.iter().map(|other| &other.lever).filter(|&other| *other != planned.lever);
            without.limits.set = left.cloned().collect();
            without.limits.without = vec!["all".to_owned()];
            without.limits.conf = without.limits.set.iter().all(|lever| lever.name() != "allocator").then(String::new);
            let less = answer(&variants, &without);
            let needless = less.peak.high <= budget && less.step_us <= fit.step_us;
            assert!(!needless, "{part}/8: {:?} without `{}`", names(&fit), planned.lever.name());
        }
    }
}

#[test]
fn no_plan_is_better_than_the_front_at_its_budget() {
    let variants = model(&[4, 8]);
    let whole = answer(&variants, &FitOptions { front: true, ..options(None) });
    let least = whole.front.last().unwrap().budget_bytes;
    assert_eq!(whole.smallest_budget_bytes, Some(least));
    // Budgets within its range, above it, and just at and below its points.
    let points = whole.front.iter().flat_map(|point| [point.budget_bytes, point.budget_bytes - 1]);
    let between = (0..12).map(|part| least + (2 * whole.baseline.high - least) / 12 * part);
    for budget in points.chain(between).filter(|&budget| budget >= least).step_by(2) {
        // Levers are asked for one by one, so that a budget that the model keeps to as it is has a plan as well.
        let plan = answer(&variants, &FitOptions { front: true, ..options(Some(budget)) });
        assert_eq!(plan.verdict, Verdict::Fits);
        let front = whole.front.iter().filter(|point| point.budget_bytes <= budget);
        let best = front.map(|point| point.step_us).fold(f64::INFINITY, f64::min);
        assert!(plan.step_us >= best * 0.999, "{budget}: {} is faster than {best}", plan.step_us);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    /// What fits a budget fits every larger one, and is no slower there; the smallest budget is where that begins.
    #[test]
    fn verdicts_and_times_follow_the_budget(
        layers in 1_usize..6,
        batch in 1_u64..5,
        words in 100_u64..4000,
        without in prop::sample::subsequence(vec!["checkpoint", "accumulate", "optimizer", "offload_optimizer", "loss"], 0..3),
    ) {
        let sizes = [batch, 2 * batch].map(|batch| {
            trace(Model { layers, batch, words, sequence: 64, width: 128 })
        });
        let variants = variants(sizes.to_vec()).unwrap();
        let at = |budget: Option<u64>| {
            let mut options = options(budget);
            options.limits.without = without.iter().map(|&name| name.to_owned()).chain(["spill".to_owned()]).collect();
            answer(&variants, &options)
        };
        let whole = at(Some(1 << 20));
        prop_assert_eq!(whole.verdict, Verdict::DoesNotFit);
        let least = whole.smallest_budget_bytes.unwrap();
        prop_assert_ne!(at(Some(least - 1)).verdict, Verdict::Fits);
        let most = whole.baseline.high.max(least) + (64 << 20);
        let (mut slowest, mut plans) = (f64::INFINITY, Vec::new());
        for part in 0..=7 {
            let budget = least + (most - least) * part / 7;
            let fit = at(Some(budget));
            prop_assert_eq!(fit.verdict, Verdict::Fits, "{} of {}..{}", budget, least, most);
            prop_assert!(fit.peak.high <= budget);
            plans.push((budget, fit.peak.high, fit.step_us, fit.plan.iter().map(|one| one.what.clone()).collect::<Vec<_>>()));
            // What fits as it is is left as it is, though changes would make it faster.
            if fit.plan.is_empty() {
                break;
            }
            // A thousandth of the time is not worth a lever; and what is chosen by sums may be off by as much again.
            prop_assert!(fit.step_us <= slowest * 1.002, "{part}: {} > {slowest}: {:?}", fit.step_us, plans);
            slowest = slowest.min(fit.step_us);
        }
    }
}
