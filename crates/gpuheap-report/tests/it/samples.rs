//! Reports made by hand, one of each kind of verdict. Their figures are like those of real recordings.

use gpuheap_explain::{
    Class, ClassRule, Confidence, Finding, FindingKind, Holder, LedgerPart, Moment, MomentName, OutOfMemory, PartKind,
    Peaks, Remedy, ReplayCheck, Report, SCHEMA, Site, SourceInfo, StepSource, Steps, TimelinePoint, Verdict,
    VerdictKind, WhatIf, WhatIfRole,
};
use gpuheap_record::Bytes;

const START: u64 = 1_760_000_000_000_000;
const TORCH: &str = "/opt/venv/lib/python3.12/site-packages/torch";

pub(crate) fn mib(mebibytes: u64) -> Bytes {
    Bytes::new(mebibytes << 20)
}

pub(crate) fn site(file: &str, line: u32, function: &str) -> Site {
    Site { file: file.to_owned(), line, function: function.to_owned() }
}

fn linear() -> Site {
    site(&format!("{TORCH}/nn/modules/linear.py"), 134, "forward")
}

fn train() -> Site {
    site("/home/ada/project/train.py", 16, "loss_accumulate")
}

fn class(class: Class, bytes: Bytes, detail: &str) -> LedgerPart {
    LedgerPart {
        part: class.title().to_owned(),
        kind: PartKind::Class,
        class: Some(class),
        bytes,
        detail: detail.to_owned(),
    }
}

fn part(part: &str, kind: PartKind, bytes: Bytes, detail: &str) -> LedgerPart {
    LedgerPart { part: part.to_owned(), kind, class: None, bytes, detail: detail.to_owned() }
}

fn holder(site: Option<Site>, class: Class, bytes: Bytes, blocks: u64, label: &str) -> Holder {
    Holder { site, class, bytes, blocks, label: label.to_owned() }
}

fn moment(event: u64, allocated: Bytes, reserved: Bytes, by_class: &[(Class, Bytes)]) -> Moment {
    Moment {
        event: Some(event),
        time_us: Some(START + event * 40),
        allocated_bytes: allocated,
        reserved_bytes: reserved,
        by_class: by_class.to_vec(),
    }
}

/// `waves` steps of equal height over a base that grows by `growth` each; reserved memory never shrinks.
fn waves(events: u64, waves: u64, base: u64, height: u64, growth: u64, slack: u64) -> Vec<TimelinePoint> {
    let points = 240;
    let mut reserved = 0;
    (0..points)
        .map(|at| {
            let (step, phase) = (at * waves / points, (at * waves * 100 / points) % 100);
            let wave = if phase < 55 { phase * 100 / 55 } else { (100 - phase) * 100 / 45 };
            let allocated = base.min(base * (at + 1) / 12) + height * wave / 100 + growth * step;
            reserved = reserved.max(allocated + slack * (step + 1) / waves);
            TimelinePoint {
                event: at * events / points,
                time_us: START + at * events / points * 40,
                allocated_bytes: mib(allocated),
                reserved_bytes: mib(reserved),
            }
        })
        .collect()
}

/// A healthy training run: everything that other samples change.
fn source() -> SourceInfo {
    SourceInfo {
        path: "bert_large.pickle.gz".to_owned(),
        format: "torch-snapshot-pickle+gzip".to_owned(),
        bytes: Bytes::new(1_204_311),
        events: 23_519,
        devices: 1,
        device: 0,
        device_events: 23_519,
        complete: true,
        reserved_before: Bytes::ZERO,
        duration_us: 940_720,
        conf: String::new(),
        device_bytes: None,
        facts: std::collections::BTreeMap::new(),
        notes: Vec::new(),
    }
}

pub(crate) fn healthy() -> Report {
    let by_class = [
        (Class::Activations, mib(14_400)),
        (Class::OptimizerState, mib(2_557)),
        (Class::Parameters, mib(1_279)),
        (Class::Gradients, mib(1_279)),
        (Class::Unknown, mib(106)),
    ];
    Report {
        schema: SCHEMA,
        source: source(),
        verdict: Verdict {
            kind: VerdictKind::Healthy,
            headline: "Healthy: no leak in 10 steps, and 98 % of the reserved memory is in use at the peak".to_owned(),
            site: None,
            remedy: "Nothing: this recording shows no fault.".to_owned(),
            confidence: Confidence::High,
        },
        peaks: Peaks {
            allocated_bytes: mib(19_621),
            requested_bytes: mib(19_617),
            active_bytes: mib(19_621),
            reserved_bytes: mib(19_994),
        },
        peak: moment(20_114, mib(19_621), mib(19_994), &by_class),
        peak_reserved: moment(4_023, mib(19_580), mib(19_994), &by_class),
        oom: None,
        end: moment(23_518, mib(5_221), mib(19_994), &by_class[1..]),
        ledger_at: MomentName::Peak,
        ledger: vec![
            class(Class::Activations, mib(14_400), "saved by the forward pass for the backward pass"),
            class(Class::OptimizerState, mib(2_557), "two tensors for each parameter"),
            class(Class::Parameters, mib(1_279), "allocated before the first step and never freed"),
            class(Class::Gradients, mib(1_279), "freed and allocated again every step"),
            class(Class::Unknown, mib(102), ""),
            part("rounding", PartKind::Rounding, mib(4), "blocks are multiples of 512 B"),
            part("free, default stream", PartKind::Free, mib(373), "in 24 segments"),
        ],
        ledgers: vec![
            (MomentName::Peak, vec![class(Class::Activations, mib(14_400), "")]),
            (MomentName::PeakReserved, Vec::new()),
        ],
        holders: vec![
            holder(Some(linear()), Class::Activations, mib(9_216), 193, ""),
            holder(
                Some(site(&format!("{TORCH}/nn/functional.py"), 1724, "gelu")),
                Class::Activations,
                mib(3_072),
                24,
                "",
            ),
            holder(
                Some(site(&format!("{TORCH}/optim/adamw.py"), 128, "_init_group")),
                Class::OptimizerState,
                mib(2_557),
                788,
                "",
            ),
            holder(None, Class::Gradients, mib(1_279), 394, "backward pass started at train.py:41"),
        ],
        named: Vec::new(),
        steps: Steps { count: 10, how: StepSource::Annotation, unit: "optimizer step".to_owned() },
        findings: Vec::new(),
        replay: ReplayCheck {
            policy: "torch native".to_owned(),
            conf: String::new(),
            exact: true,
            segment_events: 355,
            matched: 355,
            first_mismatch: None,
        },
        whatif: Vec::new(),
        classes: vec![
            ClassRule {
                class: Class::Activations,
                rule: "allocated in the forward pass and freed in the backward pass of the same step",
                bytes: mib(14_400),
                blocks: 1_301,
            },
            ClassRule {
                class: Class::OptimizerState,
                rule: "allocated below Optimizer.step and never freed",
                bytes: mib(2_557),
                blocks: 788,
            },
        ],
        timeline: waves(23_519, 10, 5_221, 14_400, 0, 370),
    }
}

/// A running total that keeps the graph of every step.
pub(crate) fn leak() -> Report {
    let healthy = healthy();
    Report {
        source: SourceInfo {
            path: "runs/2026-11-28/loss_accumulate.pickle".to_owned(),
            format: "torch-snapshot-pickle".to_owned(),
            bytes: Bytes::new(3_310_002),
            complete: false,
            reserved_before: mib(134),
            notes: vec!["The recording starts after 134 MiB were reserved: steps before it are not seen".to_owned()],
            ..healthy.source
        },
        verdict: Verdict {
            kind: VerdictKind::Leak,
            headline: "Leak: 7.00 MiB more each optimizer step over 48 steps: graphs of the forward pass are kept"
                .to_owned(),
            site: Some(train()),
            remedy: "Keep a number instead of the tensor: `total += loss.item()` or `loss.detach()`".to_owned(),
            confidence: Confidence::High,
        },
        peaks: Peaks {
            allocated_bytes: mib(463),
            requested_bytes: mib(460),
            active_bytes: mib(463),
            reserved_bytes: mib(478),
        },
        peak: moment(23_001, mib(463), mib(478), &[(Class::Activations, mib(370)), (Class::Parameters, mib(93))]),
        peak_reserved: moment(22_990, mib(462), mib(478), &[]),
        end: moment(23_518, mib(463), mib(478), &[]),
        ledger: vec![
            class(Class::Activations, mib(367), "336 MiB of it older than one step"),
            class(Class::Parameters, mib(31), ""),
            class(Class::Gradients, mib(31), ""),
            class(Class::OptimizerState, mib(31), ""),
            part("rounding", PartKind::Rounding, mib(3), ""),
            part("free, default stream", PartKind::Free, mib(15), ""),
        ],
        steps: Steps { count: 50, how: StepSource::OptimizerFrames, unit: "optimizer step".to_owned() },
        findings: vec![Finding {
            id: "leak-1".to_owned(),
            kind: FindingKind::Leak,
            title: "7.00 MiB more each optimizer step: graphs of the forward pass are kept".to_owned(),
            site: Some(train()),
            stack: vec![linear(), site("/home/ada/project/model.py", 88, "forward"), train()],
            bytes: mib(336),
            bytes_per_step: Some(mib(7)),
            confidence: Confidence::High,
            evidence: vec![
                "In each of 48 steps 13 blocks stay that no later step frees".to_owned(),
                "86 % of the bytes were allocated at train.py:16 in `loss_accumulate`".to_owned(),
                "At this rate 40.0 GiB are full after about 5,800 more steps".to_owned(),
            ],
            remedy: Remedy {
                text: "Keep a number instead of the tensor: `total += loss.item()` or `loss.detach()`".to_owned(),
                conf: None,
                saves_bytes: Some(mib(336)),
            },
            growth: (0..48).map(|step| mib(120 + 7 * step)).collect(),
            event: None,
        }],
        timeline: waves(23_519, 48, 96, 31, 7, 15),
        ..healthy
    }
}

/// Batches of different lengths under stock settings.
pub(crate) fn fragmentation() -> Report {
    let healthy = healthy();
    Report {
        source: SourceInfo { path: "gpt2_varlen.pickle.gz".to_owned(), ..healthy.source },
        verdict: Verdict {
            kind: VerdictKind::Fragmentation,
            headline: "Fragmentation: 36.5 GiB reserved for 25.3 GiB of tensors: blocks of changing sizes leave gaps that no later \
                       request fits"
                .to_owned(),
            site: Some(linear()),
            remedy: "Let segments grow in place; set this before the program starts".to_owned(),
            confidence: Confidence::High,
        },
        peaks: Peaks {
            allocated_bytes: Bytes::new(27_130_227_712),
            requested_bytes: Bytes::new(27_105_552_624),
            active_bytes: Bytes::new(27_130_227_712),
            reserved_bytes: Bytes::new(39_151_730_688),
        },
        ledger_at: MomentName::PeakReserved,
        ledger: vec![
            class(Class::Activations, mib(16_100), ""),
            class(Class::OptimizerState, mib(2_707), ""),
            class(Class::Parameters, mib(1_353), ""),
            class(Class::Gradients, mib(1_353), ""),
            class(Class::Temporaries, mib(380), ""),
            part("rounding", PartKind::Rounding, mib(24), ""),
            part("pending frees", PartKind::Pending, mib(12), "waiting for another stream"),
            part("private pool (1, 0)", PartKind::PrivatePool, mib(60), "one CUDA graph"),
            part("free, default stream", PartKind::Free, mib(15_348), "in 311 gaps; the largest is 812 MiB"),
        ],
        findings: vec![
            Finding {
                id: "fragmentation-1".to_owned(),
                kind: FindingKind::Fragmentation,
                title: "11.2 GiB of the reserved memory cannot be used for what is asked".to_owned(),
                site: Some(linear()),
                stack: vec![linear()],
                bytes: mib(11_464),
                bytes_per_step: None,
                confidence: Confidence::High,
                evidence: vec!["311 gaps, the largest 812 MiB; 40 requests needed a new segment".to_owned()],
                remedy: Remedy {
                    text: "Let segments grow in place; set this before the program starts".to_owned(),
                    conf: Some("expandable_segments:True".to_owned()),
                    saves_bytes: Some(Bytes::new(10_861_150_208)),
                },
                growth: Vec::new(),
                event: None,
            },
            Finding {
                id: "growing-working-set-1".to_owned(),
                kind: FindingKind::GrowingWorkingSet,
                title: "Steps 3, 5 and 7 need more than all steps before them: batches differ in length".to_owned(),
                site: None,
                stack: Vec::new(),
                bytes: mib(3_100),
                bytes_per_step: None,
                confidence: Confidence::Medium,
                evidence: Vec::new(),
                remedy: Remedy { text: "Nothing to change".to_owned(), conf: None, saves_bytes: None },
                growth: vec![mib(18_000), mib(21_000), mib(19_500), mib(25_900)],
                event: None,
            },
        ],
        replay: ReplayCheck { segment_events: 428, matched: 428, ..healthy.replay },
        whatif: vec![
            whatif("", 39_151_730_688, 428),
            whatif("expandable_segments:True", 28_290_580_480, 0),
            whatif("max_split_size_mb:128", 79_012_298_752, 616),
        ],
        timeline: waves(104_448, 12, 5_400, 16_000, 180, 11_464),
        ..healthy
    }
}

fn whatif(conf: &str, reserved: u64, segments: u64) -> WhatIf {
    WhatIf {
        conf: conf.to_owned(),
        role: if conf.is_empty() { WhatIfRole::Recorded } else { WhatIfRole::Tried },
        limit_bytes: None,
        peak_allocated_bytes: Bytes::new(27_130_227_712),
        peak_active_bytes: Bytes::new(27_130_227_712),
        peak_reserved_bytes: Bytes::new(reserved),
        segments,
        driver_calls: segments + 12,
        retries: 0,
        oom: false,
        oom_event: None,
        oom_site: None,
        smallest_limit_bytes: None,
        exact: true,
    }
}

/// A model that is too large for its card.
pub(crate) fn oom() -> Report {
    let healthy = healthy();
    let generate = site("/home/ada/project/generate.py", 73, "decode");
    let at = moment(18_300, mib(37_104), mib(39_520), &[(Class::Parameters, mib(30_600)), (Class::Cache, mib(6_504))]);
    let holders = vec![
        holder(Some(site("/home/ada/project/model.py", 41, "__init__")), Class::Parameters, mib(30_600), 291, ""),
        holder(Some(generate.clone()), Class::Cache, mib(6_400), 64, ""),
        holder(None, Class::Unknown, mib(104), 3, "no frame recorded"),
    ];
    Report {
        source: SourceInfo {
            path: "llama_oom.pickle.gz".to_owned(),
            devices: 2,
            device: 1,
            events: 30_011,
            notes: vec!["The ring buffer lost its start: 1,024 frees have no allocation".to_owned()],
            ..healthy.source
        },
        verdict: Verdict {
            kind: VerdictKind::Oom,
            headline: "Out of memory: 2.00 GiB were asked for the cache of step 41; parameters hold 29.9 of 39.4 GiB"
                .to_owned(),
            site: Some(generate.clone()),
            remedy: "Let segments grow in place".to_owned(),
            confidence: Confidence::Medium,
        },
        peak: at.clone(),
        peak_reserved: at.clone(),
        oom: Some(OutOfMemory {
            moment: at.clone(),
            count: 2,
            asked_bytes: mib(2_048),
            cached_bytes: mib(2_416),
            largest_free_bytes: mib(512),
            pending_bytes: Bytes::ZERO,
            device_free_bytes: mib(301),
            ideal_bytes: mib(39_152),
            limit_at_least_bytes: mib(39_520),
            limit_below_bytes: Some(mib(41_568)),
            site: Some(generate.clone()),
            holders: holders.clone(),
        }),
        end: at,
        ledger_at: MomentName::Oom,
        ledger: vec![
            class(Class::Parameters, mib(30_600), ""),
            class(Class::Cache, mib(6_500), ""),
            part("rounding", PartKind::Rounding, mib(4), ""),
            part("free, default stream", PartKind::Free, mib(2_416), ""),
            part("not reserved by PyTorch", PartKind::Outside, mib(1_440), "the CUDA context, libraries, others"),
        ],
        holders,
        named: Vec::new(),
        steps: Steps { count: 0, how: StepSource::None, unit: String::new() },
        findings: vec![Finding {
            id: "oom-1".to_owned(),
            kind: FindingKind::Oom,
            title: "2.00 GiB did not fit in one piece, 2.36 GiB were cached in smaller ones".to_owned(),
            site: Some(generate.clone()),
            stack: vec![generate, site("/home/ada/project/generate.py", 120, "main")],
            bytes: mib(2_048),
            bytes_per_step: None,
            confidence: Confidence::Medium,
            evidence: vec!["Without any waste 38.2 GiB would have been enough".to_owned()],
            remedy: Remedy {
                text: "Let segments grow in place".to_owned(),
                conf: Some("expandable_segments:True".to_owned()),
                saves_bytes: Some(mib(1_900)),
            },
            growth: Vec::new(),
            event: None,
        }],
        replay: ReplayCheck {
            exact: false,
            segment_events: 290,
            matched: 281,
            first_mismatch: Some("event 1,204: 20.0 MiB predicted, 32.0 MiB recorded".to_owned()),
            ..healthy.replay
        },
        timeline: waves(18_301, 1, 30_600, 6_504, 0, 2_416),
        ..healthy
    }
}

/// Memory cached for a stream that no longer allocates.
pub(crate) fn stranded() -> Report {
    let healthy = healthy();
    Report {
        verdict: Verdict {
            kind: VerdictKind::Stranded,
            headline: "Stranded memory: 6.10 GiB stay cached for stream 0x7f31c40, which allocated last at event 2,004"
                .to_owned(),
            site: Some(site("/home/ada/project/prefetch.py", 52, "warm_up")),
            remedy: "Call `torch.cuda.empty_cache()` once after the warm-up, or allocate on the default stream"
                .to_owned(),
            confidence: Confidence::High,
        },
        ledger: vec![
            class(Class::Activations, mib(9_100), ""),
            class(Class::Parameters, mib(1_279), ""),
            part("free, default stream", PartKind::Free, mib(373), ""),
            part("stranded, stream 0x7f31c40", PartKind::Stranded, mib(6_246), "in 31 segments, idle for 6.60 s"),
        ],
        findings: vec![Finding {
            id: "stranded-1".to_owned(),
            kind: FindingKind::Stranded,
            title: "6.10 GiB are cached for an idle stream".to_owned(),
            site: Some(site("/home/ada/project/prefetch.py", 52, "warm_up")),
            stack: Vec::new(),
            bytes: mib(6_246),
            bytes_per_step: None,
            confidence: Confidence::High,
            evidence: vec!["No allocation on the stream in the last 90 % of the recording".to_owned()],
            remedy: Remedy {
                text: "Call `torch.cuda.empty_cache()` once after the warm-up, or allocate on the default stream"
                    .to_owned(),
                conf: None,
                saves_bytes: Some(mib(6_246)),
            },
            growth: Vec::new(),
            event: None,
        }],
        ..healthy
    }
}

/// Garbage that piles up until the collector runs.
pub(crate) fn sawtooth() -> Report {
    Report {
        verdict: Verdict {
            kind: VerdictKind::Sawtooth,
            headline: "Sawtooth: up to 3.10 GiB of garbage pile up until Python's collector runs".to_owned(),
            site: Some(train()),
            remedy: "Call `gc.collect()` every few steps, or break the cycle".to_owned(),
            confidence: Confidence::Low,
        },
        ..leak()
    }
}

/// One report of each kind of verdict, with a name.
pub(crate) fn all() -> [(&'static str, Report); 6] {
    [
        ("healthy", healthy()),
        ("leak", leak()),
        ("fragmentation", fragmentation()),
        ("oom", oom()),
        ("stranded", stranded()),
        ("sawtooth", sawtooth()),
    ]
}
