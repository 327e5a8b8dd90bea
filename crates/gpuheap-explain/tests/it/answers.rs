//! Programs whose story is known: a leak of so many bytes, its healthy twins, a failure, streams.

use gpuheap_explain::{FindingKind, Options, Report, VerdictKind, explain};
use gpuheap_record::{Bytes, StackId};

use crate::maker::Maker;

const MIB: u64 = 1 << 20;

struct Stacks {
    parameter: StackId,
    forward: StackId,
    keep: StackId,
}

fn stacks(maker: &mut Maker) -> Stacks {
    let torch = "/v/lib/python3.12/site-packages/torch/nn/modules/module.py";
    let convert = format!("convert@{torch}:1370");
    let call = format!("_call_impl@{torch}:1790");
    Stacks {
        parameter: maker.stack(&[&convert, "main@train.py:5", "<module>@train.py:50"]),
        forward: maker.stack(&["forward@model.py:9", &call, "train@train.py:20", "<module>@train.py:50"]),
        keep: maker.stack(&["log@train.py:31", "train@train.py:22", "<module>@train.py:50"]),
    }
}

fn run(maker: &Maker, options: &Options) -> Report {
    let report = explain(&maker.recording(), options).expect("a device and its peak are there");
    assert!(report.replay.exact, "{:?}", report.replay);
    for (name, parts) in &report.ledgers {
        let sum: Bytes = parts.iter().map(|part| part.bytes).sum();
        let reserved = match name.key() {
            "peak" => report.peak.reserved_bytes,
            "peak_reserved" => report.peak_reserved.reserved_bytes,
            "end" => report.end.reserved_bytes,
            _ => report.oom.as_ref().map(|oom| oom.moment.reserved_bytes).unwrap_or_default(),
        };
        assert_eq!(sum, reserved, "ledger at {name:?}");
    }
    let (allocated, reserved) = maker.totals();
    assert_eq!((report.end.allocated_bytes.get(), report.end.reserved_bytes.get()), (allocated, reserved));
    report
}

/// A loop of 40 steps; `each` gets the step and may keep blocks.
fn training(mut each: impl FnMut(&mut Maker, &Stacks, usize)) -> Maker {
    let mut maker = Maker::new();
    let stacks = stacks(&mut maker);
    for _ in 0..8 {
        maker.allocate(3 * MIB, stacks.parameter);
    }
    for step in 0..40 {
        let forward: Vec<u32> = (0..6).map(|_| maker.allocate(5 * MIB, stacks.forward)).collect();
        each(&mut maker, &stacks, step);
        maker.free_all(forward);
        maker.optimizer_step();
    }
    maker
}

#[test]
fn a_leak_is_told_with_its_place_and_rate() {
    let maker = training(|maker, stacks, _| {
        maker.allocate(64 * 1024, stacks.keep);
    });
    let report = run(&maker, &Options::default());
    assert_eq!(report.verdict.kind, VerdictKind::Leak);
    let leak = &report.findings[0];
    assert_eq!(leak.bytes_per_step, Some(Bytes::new(64 * 1024)));
    assert_eq!(leak.bytes, Bytes::new(40 * 64 * 1024));
    let site = leak.site.as_ref().expect("it has a place");
    assert_eq!((site.function.as_str(), site.line), ("log", 31));
    assert_eq!(report.steps.count, 40);
}

#[test]
fn every_fourth_step_is_a_quarter_of_the_rate() {
    let maker = training(|maker, stacks, step| {
        if step % 4 == 3 {
            maker.allocate(MIB, stacks.keep);
        }
    });
    let report = run(&maker, &Options::default());
    assert_eq!(report.verdict.kind, VerdictKind::Leak);
    assert_eq!(report.findings[0].bytes_per_step, Some(Bytes::new(MIB / 4)));
}

#[test]
fn a_buffer_that_lets_its_oldest_go_is_no_leak() {
    let mut buffer = Vec::new();
    let maker = training(|maker, stacks, _| {
        buffer.push(maker.allocate(MIB, stacks.keep));
        if buffer.len() > 10 {
            maker.free(buffer.remove(0));
        }
    });
    let report = run(&maker, &Options::default());
    assert_eq!(report.verdict.kind, VerdictKind::Healthy, "{}", report.verdict.headline);
}

#[test]
fn what_is_made_once_is_no_leak() {
    let maker = training(|maker, stacks, step| {
        if step == 0 {
            maker.allocate(100 * MIB, stacks.keep);
        }
    });
    let report = run(&maker, &Options::default());
    assert_eq!(report.verdict.kind, VerdictKind::Healthy, "{}", report.verdict.headline);
}

#[test]
fn garbage_that_dies_oldest_first_is_a_sawtooth_and_a_cleared_list_is_not() {
    let bursts = |newest_first: bool| {
        let mut kept = Vec::new();
        training(move |maker, stacks, step| {
            kept.push(maker.allocate(8 * MIB, stacks.keep));
            if step % 8 == 7 {
                if newest_first {
                    kept.reverse();
                }
                maker.free_all(kept.drain(..));
            }
        })
    };
    assert_eq!(run(&bursts(false), &Options::default()).verdict.kind, VerdictKind::Sawtooth);
    assert_eq!(run(&bursts(true), &Options::default()).verdict.kind, VerdictKind::Healthy);
}

#[test]
fn a_stream_that_stopped_allocating_strands_its_cache() {
    let maker = training(|maker, stacks, step| {
        if step == 2 {
            let blocks: Vec<u32> = (0..4).filter_map(|_| maker.allocate_on(40 * MIB, 0xbeef, stacks.forward)).collect();
            maker.free_all(blocks);
        }
    });
    let report = run(&maker, &Options::default());
    assert_eq!(report.verdict.kind, VerdictKind::Stranded);
    let finding = &report.findings[0];
    assert_eq!(finding.bytes, Bytes::new(160 * MIB));
    assert_eq!(finding.remedy.saves_bytes, Some(Bytes::new(160 * MIB)));
    assert!(finding.evidence[0].contains("stream 0xbeef"), "{:?}", finding.evidence);
}

#[test]
fn a_failure_in_pieces_is_told_with_the_largest_piece() {
    let mut maker = Maker::under(Some(200 * MIB));
    let stacks = stacks(&mut maker);
    // Four segments of 40 MiB, each cut in two, one half of each free: 80 MiB free, 20 MiB in a piece.
    let whole: Vec<u32> = (0..4).map(|_| maker.allocate(40 * MIB, stacks.keep)).collect();
    maker.free_all(whole);
    let halves: Vec<u32> = (0..8).map(|_| maker.allocate(20 * MIB, stacks.keep)).collect();
    maker.free_all(halves.into_iter().step_by(2));
    assert_eq!(maker.allocate_on(60 * MIB, 0, stacks.forward), None);
    let report = run(&maker, &Options::default());
    assert_eq!(report.verdict.kind, VerdictKind::Oom);
    let oom = report.oom.as_ref().expect("an allocation failed");
    assert_eq!(oom.asked_bytes.get(), 60 * MIB);
    assert_eq!((oom.cached_bytes.get(), oom.largest_free_bytes.get()), (80 * MIB, 20 * MIB));
    assert_eq!(oom.ideal_bytes.get(), 140 * MIB);
    assert_eq!(oom.limit_at_least_bytes.get(), 160 * MIB);
    assert_eq!(oom.limit_below_bytes.map(Bytes::get), Some(220 * MIB));
    assert!(report.verdict.headline.contains("fragmentation"), "{}", report.verdict.headline);
    // Under the cap that is known to have been there, expandable segments need no more than what was in use.
    assert_eq!(report.findings[0].remedy.conf.as_deref(), Some("expandable_segments:True"));
}

#[test]
fn fragmentation_is_the_waste_over_what_was_in_use() {
    let mut maker = Maker::new();
    let stacks = stacks(&mut maker);
    // Each step needs one block a little larger than all that are cached: none of them serves.
    for step in 0..30 {
        let block = maker.allocate((40 + step) * MIB, stacks.forward);
        maker.free(block);
        maker.optimizer_step();
    }
    let report = run(&maker, &Options::default());
    assert_eq!(report.verdict.kind, VerdictKind::Fragmentation);
    let finding =
        report.findings.iter().find(|finding| finding.kind == FindingKind::Fragmentation).expect("it is there");
    assert_eq!(finding.bytes, report.peaks.reserved_bytes - report.peaks.active_bytes);
    let saved = finding.remedy.saves_bytes.expect("expandable segments help here");
    let row = report.whatif.iter().find(|row| row.conf == "expandable_segments:True").expect("it was tried");
    assert_eq!(saved, report.peaks.reserved_bytes - row.peak_reserved_bytes);
}

#[test]
fn loading_a_model_layer_by_layer_is_no_loop() {
    let mut maker = Maker::new();
    let stacks = stacks(&mut maker);
    for _ in 0..60 {
        maker.allocate(20 * MIB, stacks.parameter);
    }
    let report = run(&maker, &Options::default());
    assert_eq!(report.verdict.kind, VerdictKind::Healthy, "{}", report.verdict.headline);
    assert_eq!(report.steps.count, 0);
}

#[test]
fn a_loop_after_a_long_load_is_found() {
    let mut maker = Maker::new();
    let stacks = stacks(&mut maker);
    for _ in 0..200 {
        maker.allocate(MIB, stacks.parameter);
    }
    let input = maker.stack(&["batch@data.py:4", "serve@serve.py:8", "<module>@serve.py:20"]);
    for _ in 0..12 {
        let batch = maker.allocate(2 * MIB, input);
        let results = [1, 2, 3].map(|mib| maker.allocate(mib * MIB, stacks.forward));
        maker.free_all(results);
        maker.free(batch);
    }
    let report = run(&maker, &Options::default());
    assert_eq!((report.steps.count, report.verdict.kind), (12, VerdictKind::Healthy));
}

#[test]
fn a_buffer_that_filled_late_is_no_leak() {
    for size in [20, 24, 28] {
        let mut buffer = Vec::new();
        let maker = training(|maker, stacks, _| {
            buffer.push(maker.allocate(2 * MIB, stacks.keep));
            if buffer.len() > size {
                maker.free(buffer.remove(0));
            }
        });
        let report = run(&maker, &Options::default());
        assert_eq!(report.verdict.kind, VerdictKind::Healthy, "{size}: {}", report.verdict.headline);
        assert!(report.findings.is_empty(), "{size}: {:?}", report.findings);
    }
}

#[test]
fn a_request_that_is_too_large_is_not_blamed_on_a_leak() {
    let mut maker = Maker::under(Some(2000 * MIB));
    let stacks = stacks(&mut maker);
    for _ in 0..40 {
        let forward = maker.allocate(5 * MIB, stacks.forward);
        maker.allocate(MIB, stacks.keep);
        maker.free(forward);
        maker.optimizer_step();
    }
    assert_eq!(maker.allocate_on(10_000 * MIB, 0, stacks.forward), None);
    let report = run(&maker, &Options::default());
    assert_eq!(report.verdict.kind, VerdictKind::Oom);
    assert!(!report.verdict.headline.contains("leak"), "{}", report.verdict.headline);
    assert!(report.findings[0].remedy.text.contains("more than everything else"), "{}", report.findings[0].remedy.text);
    assert!(report.findings.iter().any(|finding| finding.kind == FindingKind::Leak), "the leak is told beside it");
}
