//! Stacks hidden from recordings of real programs, and told again.

use std::path::Path;

use gpuheap_explain::{FilledGaps, Options, explain, fill_gaps};
use gpuheap_record::{EventKind, Recording, StackTable};

fn read(path: &str) -> Recording {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    gpuheap_import::read(&path, gpuheap_import::Options::default()).expect("a recording of the repository")
}

/// Takes the stacks of allocations away, but for `on` milliseconds of every `period`, after `whole` percent of the time.
fn hide(recording: &mut Recording, on: u64, period: u64, whole: u64) -> Vec<(u64, u64)> {
    let events = &mut recording.devices[0].events;
    let times_us = events.times_us();
    let (first, last) = (times_us[0], times_us[times_us.len() - 1]);
    let mut from = first + (last - first) * whole / 100;
    let mut gaps = Vec::new();
    while from < last {
        gaps.push((from + on * 1000, from + period * 1000));
        from += period * 1000;
    }
    for id in events.ids() {
        let mut event = events.get(id);
        if event.kind == EventKind::Alloc && gaps.iter().any(|gap| (gap.0..=gap.1).contains(&event.time_us)) {
            event.stack = StackTable::EMPTY;
            events.set(id, event);
        }
    }
    gaps
}

fn wrong(was: &Recording, is: &Recording) -> u64 {
    let (was, told) = (&was.devices[0].events, &is.devices[0].events);
    let is_known = |stack| !is.frames_of(stack).any(|frame| is.file(frame) == "<stack not recorded>");
    let differs = |&id: &gpuheap_record::EventId| {
        was.kind(id) == EventKind::Alloc && was.stack(id) != told.stack(id) && is_known(told.stack(id))
    };
    was.ids().filter(differs).count() as u64
}

#[test]
fn stacks_of_real_loops_are_told_from_a_fifth_of_them() {
    for (path, least_told) in [
        ("examples/gpt2_varlen.pickle.gz", 0.95),
        ("recordings/models/gpt2_expandable.pickle.gz", 0.95),
        ("recordings/models/llama_generate.pickle.gz", 0.95),
    ] {
        let whole = read(path);
        let mut recording = whole.clone();
        let gaps = hide(&mut recording, 60, 300, 10);
        let filled = fill_gaps(&mut recording, &gaps);
        let all = filled.recorded + filled.told + filled.unknown;
        assert!(filled.recorded * 2 < all, "{path}: {filled:?}");
        assert!(filled.told as f64 >= least_told * (filled.told + filled.unknown) as f64, "{path}: {filled:?}");
        assert!(filled.checked > 500 && filled.right * 1000 >= filled.checked * 999, "{path}: {filled:?}");
        let wrong = wrong(&whole, &recording);
        assert!(wrong * 1000 <= filled.told, "{path}: {wrong} wrong, {filled:?}");
    }
}

#[test]
fn the_verdict_is_the_one_of_the_whole_recording() {
    for path in ["examples/loss_accumulate.pickle.gz", "recordings/loops/generate_kept.pickle.gz"] {
        let whole = read(path);
        let mut recording = whole.clone();
        let gaps = hide(&mut recording, 50, 100, 20);
        let filled = fill_gaps(&mut recording, &gaps);
        assert!(filled.told > 0, "{path}: {filled:?}");
        let (was, is) =
            (explain(&whole, &Options::default()).unwrap(), explain(&recording, &Options::default()).unwrap());
        assert_eq!(was.verdict.kind, is.verdict.kind, "{path}: {} / {}", was.verdict.headline, is.verdict.headline);
        assert_eq!(was.verdict.site.map(|site| site.line), is.verdict.site.map(|site| site.line), "{path}");
    }
}

#[test]
fn what_stays_unknown_is_no_place_and_no_backward_pass() {
    let mut recording = read("examples/loss_accumulate.pickle.gz");
    hide(&mut recording, 0, 1000, 0);
    let filled = fill_gaps(&mut recording, &[(0, u64::MAX)]);
    assert!(filled.told == 0 && filled.unknown > 1000, "{filled:?}");
    let report = explain(&recording, &Options::default()).unwrap();
    let holder = &report.holders[0];
    assert_eq!((holder.site.as_ref(), holder.label.as_str()), (None, "no frames recorded"));
}

#[test]
fn without_gaps_nothing_changes_and_with_nothing_else_nothing_is_told() {
    let whole = read("examples/loss_accumulate.pickle.gz");
    let mut recording = whole.clone();
    assert_eq!(fill_gaps(&mut recording, &[]), FilledGaps::default());
    assert_eq!(recording.devices[0].events.stacks(), whole.devices[0].events.stacks());
    // A gap of all time, given badly: twice, reversed, at the ends of the clock.
    for gaps in [vec![(0, u64::MAX)], vec![(0, 0), (0, u64::MAX)], vec![(u64::MAX, 0), (u64::MAX, u64::MAX)]] {
        let mut recording = whole.clone();
        hide(&mut recording, 0, 1000, 0);
        let filled = fill_gaps(&mut recording, &gaps);
        assert_eq!(filled.told, 0, "{gaps:?}: {filled:?}");
        explain(&recording, &Options::default()).unwrap();
    }
}
