use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A step with so many MiB in so many blocks; reserved stays.
fn sample(step: u64, mib: u64, blocks: u64) -> Sample {
    Sample {
        step,
        seconds: step as f64 * 0.025,
        allocated: mib * MIB,
        blocks: Some(blocks),
        reserved: 20 * GIB,
        ..Sample::default()
    }
}

fn run(steps: u64, level: impl Fn(u64) -> (u64, u64)) -> Health {
    let mut monitor = Monitor::new("step");
    for step in 1..=steps {
        let (mib, blocks) = level(step);
        monitor.push(&sample(step, mib, blocks));
    }
    monitor.health(&Surroundings::default()).expect("steps")
}

#[test]
fn nothing_is_said_before_the_first_step_and_little_before_the_eighth() {
    assert_eq!(Monitor::new("step").health(&Surroundings::default()), None);
    let health = run(4, |_| (100, 40));
    assert_eq!(health.kind, HealthKind::WarmingUp);
    assert_eq!(health.sentence, "Warming up: 4 steps seen, 8 needed: too short to judge leaks");
}

#[test]
fn controls_that_are_no_leak() {
    type Level = fn(u64) -> (u64, u64);
    let quiet: [(&str, Level); 13] = [
        ("parameters, gradients, lazy state in the first steps", |step| (100 * step.min(3), 10 * step.min(3))),
        ("workspaces at first use", |step| if step < 4 { (100, 40) } else { (133, 43) }),
        ("an averaged copy of the weights after twenty steps", |step| if step < 20 { (100, 40) } else { (120, 48) }),
        ("a queue that fills", |step| (100 + step.min(30), 40 + step.min(30))),
        ("a cache of keys and values up to its limit, then anew", |step| (100 + step % 40, 40 + step % 40)),
        ("gradient accumulation, a step at a time", |step| (100 + step % 4, 40 + step % 4)),
        ("batches that grow by plan", |step| (100 + step, 40)),
        ("a ring of twenty", |step| (100 + 2 * step.min(20), 40 + step.min(20))),
        ("evaluation every tenth step", |step| if step % 10 == 0 { (300, 90) } else { (100, 40) }),
        ("variable shapes", |step| (100 + step * 7919 % 97, 40 + step * 31 % 7)),
        ("a second model", |step| if step < 60 { (100, 40) } else { (900, 160) }),
        ("a model that goes", |step| if step < 60 { (900, 160) } else { (100, 40) }),
        ("two more models, each for some time", |step| (100 + 500 * (step / 33).min(2), 40 + 60 * (step / 33).min(2))),
    ];
    for (name, level) in quiet {
        for steps in [120, 400, 3000] {
            let health = run(steps, level);
            assert!(!health.kind.is_sick(), "{name}, {steps} steps: {}", health.sentence);
        }
    }
}

#[test]
fn a_leak_has_a_rate_a_range_and_a_sentence() {
    let mut monitor = Monitor::new("optimizer step");
    for step in 1..=100 {
        monitor.push(&sample(step, 4096 + 7 * step, 40 + 2 * step));
    }
    let around = Surroundings { free: Some(14 * GIB), total: Some(40 * GIB), others: Some(2 * GIB), limit: None };
    let health = monitor.health(&around).expect("steps");
    assert_eq!((health.kind, health.confidence), (HealthKind::Leak, Confidence::High));
    assert!((health.growth_per_step - 7.0 * MIB as f64).abs() < 1.0);
    assert_eq!(health.outside, Some(4 * GIB));
    // 14 GiB that the driver has, and 20 GiB less 4096 + 700 MiB that lie free in the cache.
    assert_eq!(health.steps_left, Some((2048, 2048 + (20 * 1024 - 4796) / 7)));
    let (fewest, _) = health.seconds_left.expect("a pace");
    assert!((fewest - 2048.0 * 0.025).abs() < 0.1, "{fewest}");
    assert_eq!(
        health.sentence,
        "Leak: +7.00 MiB per optimizer step (71 of 100 steps judged); live blocks grew from 82 to 224, as they would in a \
         buffer for more than 100 steps; 2,048 to 4,288 more steps until 40.0 GiB are full (not before 51 s)"
    );
    // A cap on the process is nearer than the card's end.
    let capped = Surroundings { limit: Some(21 * GIB), ..around };
    assert_eq!(monitor.health(&capped).and_then(|health| health.steps_left).map(|left| left.0), Some(1024 / 7));
}

#[test]
fn a_leak_is_found_again_after_the_program_changed() {
    let level = |step: u64| if step < 300 { (100, 40) } else { (2000 + step, 500 + step) };
    let health = run(303, level);
    assert_eq!((health.kind, health.since), (HealthKind::WarmingUp, Some(300)));
    assert!(health.sentence.contains("since the level moved"), "{}", health.sentence);
    let health = run(400, level);
    assert_eq!((health.kind, health.since), (HealthKind::Leak, Some(300)));
    assert!((health.growth_per_step - MIB as f64).abs() < 1.0);
    assert!(
        health.sentence.ends_with("judged anew since step 300, where the level moved at once"),
        "{}",
        health.sentence
    );
}

#[test]
fn allocators_without_a_count_of_blocks_grow_but_do_not_leak() {
    let mut monitor = Monitor::new("step");
    for step in 1..=100 {
        monitor.push(&Sample { blocks: None, ..sample(step, 100 + step, 0) });
    }
    let health = monitor.health(&Surroundings::default()).expect("steps");
    assert_eq!(health.kind, HealthKind::Growing);
    assert!(health.sentence.contains("does not count its blocks"), "{}", health.sentence);
}

#[test]
fn garbage_is_told_from_lists_that_are_cleared_by_what_the_collector_gave_back() {
    let with = |collector: bool| {
        let mut monitor = Monitor::new("step");
        for step in 1..=120 {
            let collected = collector.then_some(step / 15 * 15 * 4 * MIB);
            monitor.push(&Sample { collected, ..sample(step, 100 + step % 15 * 4, 40 + step % 15) });
        }
        monitor.health(&Surroundings::default()).expect("steps")
    };
    assert_eq!(with(false).kind, HealthKind::Steady);
    let sick = with(true);
    assert_eq!(sick.kind, HealthKind::Sawtooth);
    assert!(
        sick.sentence.ends_with("of garbage per step until the collector runs, up to 60.0 MiB"),
        "{}",
        sick.sentence
    );
    // A leak under the teeth is the leak.
    let mut monitor = Monitor::new("step");
    for step in 1..=120 {
        let level = sample(step, 100 + step % 15 * 4 + step, 40 + step % 15 + step);
        monitor.push(&Sample { collected: Some(step / 15 * 60 * MIB), ..level });
    }
    let health = monitor.health(&Surroundings::default()).expect("steps");
    assert_eq!(health.kind, HealthKind::Leak);
    assert!((health.growth_per_step - MIB as f64).abs() < 0.1 * MIB as f64, "{}", health.growth_per_step);
}

#[test]
fn reserved_memory_that_climbs_alone_is_fragmentation() {
    let mut monitor = Monitor::new("step");
    for step in 1..=100 {
        let reserved = GIB + step / 4 * 40 * MIB;
        monitor.push(&Sample { reserved, ..sample(step, 200, 40) });
    }
    let around = Surroundings { free: Some(10 * GIB), total: Some(20 * GIB), ..Surroundings::default() };
    let health = monitor.health(&around).expect("steps");
    assert_eq!(health.kind, HealthKind::ReservedGrowth);
    assert!((health.growth_per_step - 10.0 * MIB as f64).abs() < 0.2 * MIB as f64, "{}", health.growth_per_step);
    assert!(
        health.sentence.starts_with(
            "Fragmentation: reserved memory grew from 1.00 GiB to 1.98 GiB while 200 MiB are allocated: not a leak; "
        ),
        "{}",
        health.sentence
    );
}

#[test]
fn what_grows_outside_the_allocator_is_told_unless_others_hold_it() {
    let with = |others: fn(u64) -> Option<u64>| {
        let mut monitor = Monitor::new("step");
        let mut last = None;
        for step in 1..=2000 {
            monitor.push(&sample(step, 200, 40));
            if step % 100 == 0 {
                let (free, total) = (Some(40 * GIB - step * MIB), Some(80 * GIB));
                last = monitor.health(&Surroundings { free, total, others: others(step), limit: None });
            }
        }
        last.expect("steps")
    };
    let health = with(|_| None);
    assert_eq!(health.kind, HealthKind::OutsideGrowth);
    assert!((health.growth_per_step - MIB as f64).abs() < 1.0);
    assert_eq!(health.steps_left, Some((40 * 1024 - 2000, 40 * 1024 - 2000)));
    assert!(health.sentence.contains("libraries, other allocators or other processes"), "{}", health.sentence);
    assert_eq!(with(|step| Some(step * MIB)).kind, HealthKind::Steady);
}

#[test]
fn millions_of_steps_are_a_few_hundred_points() {
    // Lists of 10,000 entries that are cleared, for a long time; then a leak of one block a step.
    let mut monitor = Monitor::new("step");
    let level = |step: u64| {
        let leaked = step.saturating_sub(1_000_000);
        sample(step, 100 + step % 10_000 + leaked, 40 + step % 10_000 + leaked)
    };
    for step in 1..=1_000_000 {
        monitor.push(&level(step));
        assert!(monitor.kept() <= 512 + 256 + 512);
    }
    assert_eq!(monitor.health(&Surroundings::default()).map(|health| health.kind), Some(HealthKind::Steady));
    for step in 1_000_001..=1_200_000 {
        monitor.push(&level(step));
    }
    let health = monitor.health(&Surroundings::default()).expect("steps");
    assert_eq!(health.kind, HealthKind::Leak, "{}", health.sentence);
}

#[test]
fn a_load_that_comes_back_is_no_leak_and_one_that_goes_beyond_is() {
    // A server by day and night: up for 3,000 steps, down for 3,000.
    let load = |step: u64| if (step / 3000).is_multiple_of(2) { step % 3000 / 10 } else { 300 - step % 3000 / 10 };
    for steps in (6200..=20_000).step_by(100) {
        let health = run(steps, |step| (1000 + load(step), 300 + load(step) + step % 3));
        assert!(health.kind != HealthKind::Leak, "{steps}: {}", health.sentence);
    }
    let leaking = |step: u64| load(step.min(6000)) + step.saturating_sub(6000);
    let health = run(7000, |step| (1000 + leaking(step), 300 + leaking(step)));
    assert_eq!((health.kind, health.growth_per_step.round()), (HealthKind::Leak, MIB as f64), "{}", health.sentence);
}

#[test]
fn a_late_leak_of_a_long_run_is_told_by_its_last_steps() {
    let mut monitor = Monitor::new("step");
    let level = |step: u64| sample(step, 100 + step.saturating_sub(100_000), 40 + step.saturating_sub(100_000));
    for step in 1..=100_300 {
        monitor.push(&level(step));
    }
    let health = monitor.health(&Surroundings::default()).expect("steps");
    assert_eq!(health.kind, HealthKind::Leak, "{}", health.sentence);
    assert!((health.growth_per_step - MIB as f64).abs() < 1.0);
    assert!(health.sentence.ends_with("in a buffer for more than 256 steps"), "{}", health.sentence);
}

#[test]
fn samples_that_leave_out_steps_have_the_same_slope() {
    let mut monitor = Monitor::new("step");
    for step in (1..4000).filter(|step| step % 7 == 0 || step % 11 == 0) {
        monitor.push(&sample(step, 100 + step, 40 + step));
    }
    let health = monitor.health(&Surroundings::default()).expect("steps");
    assert_eq!(health.kind, HealthKind::Leak);
    assert!((health.growth_per_step - MIB as f64).abs() < 0.01 * MIB as f64, "{}", health.growth_per_step);
}

#[test]
fn failures_are_counted_in_the_sentence() {
    let mut monitor = Monitor::new("step");
    for step in 1..=20 {
        monitor.push(&Sample { ooms: 1, retries: 2, ..sample(step, 100, 40) });
    }
    let health = monitor.health(&Surroundings::default()).expect("steps");
    assert!(health.sentence.ends_with("; 1 allocation failed; the cache was emptied 2 times to serve a request"));
}

proptest! {
    #[test]
    fn any_counters_are_judged(
        rows in prop::collection::vec((any::<u64>(), any::<u64>(), prop::option::of(any::<u64>()), any::<u64>()), 0..600),
        around in (prop::option::of(any::<u64>()), prop::option::of(any::<u64>()), prop::option::of(any::<u64>())),
    ) {
        let mut monitor = Monitor::new("step");
        let (free, total, others) = around;
        for (step, allocated, blocks, reserved) in rows {
            monitor.push(&Sample { step, allocated, blocks, reserved, collected: Some(reserved), ..Sample::default() });
            if let Some(health) = monitor.health(&Surroundings { free, total, others, limit: total }) {
                prop_assert!(health.growth_per_step.is_finite());
                prop_assert!(!health.sentence.is_empty());
            }
        }
    }

    #[test]
    fn what_stays_within_bounds_for_long_is_no_leak(
        levels in prop::collection::vec(0_u64..50, 40),
        seed in any::<u64>(),
    ) {
        // A pattern that comes again and again, whatever it is.
        let health = run(400, |step| {
            let level = levels[usize::try_from((step + seed % 40) % 40).unwrap()];
            (100 + level, 40 + level)
        });
        prop_assert!(health.kind != HealthKind::Leak, "{}", health.sentence);
    }

    #[test]
    fn a_leak_under_noise_is_found(noise in prop::collection::vec(0_u64..20, 200), each in 1_u64..5) {
        let health = run(200, |step| {
            let noise = noise[usize::try_from(step).unwrap() - 1];
            (1000 + each * step + noise, 40 + step + noise / 4)
        });
        prop_assert_eq!(health.kind, HealthKind::Leak);
        prop_assert!((health.growth_per_step / MIB as f64 - each as f64).abs() < 0.15 * each as f64);
    }
}
