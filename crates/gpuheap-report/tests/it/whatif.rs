//! The what-if report in every form.

use gpuheap_explain::{SCHEMA, WhatIf, WhatIfReport, WhatIfRole};
use gpuheap_record::Bytes;
use gpuheap_report::{Style, render, to_markdown};
use unicode_width::UnicodeWidthStr;

use crate::samples::{self, mib, site};

fn row(conf: &str, role: WhatIfRole, reserved: u64, segments: u64) -> WhatIf {
    WhatIf {
        conf: conf.to_owned(),
        role,
        limit_bytes: None,
        peak_allocated_bytes: Bytes::new(27_130_227_712),
        peak_active_bytes: Bytes::new(27_130_227_712),
        peak_reserved_bytes: Bytes::new(reserved),
        segments,
        driver_calls: segments + 1_204,
        retries: 0,
        oom: false,
        oom_event: None,
        oom_site: None,
        smallest_limit_bytes: Some(Bytes::new(reserved) - mib(900)),
        exact: true,
    }
}

/// A search that found something.
pub(crate) fn found() -> WhatIfReport {
    let report = samples::fragmentation();
    WhatIfReport {
        schema: SCHEMA,
        source: report.source,
        replay: report.replay,
        whatif: vec![
            row("", WhatIfRole::Recorded, 39_151_730_688, 428),
            row("expandable_segments:True", WhatIfRole::Tried, 28_290_580_480, 0),
            row("max_split_size_mb:128", WhatIfRole::Tried, 79_012_298_752, 616),
            row(
                "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
                WhatIfRole::Found,
                27_290_580_480,
                0,
            ),
        ],
        best: Some("expandable_segments:True,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]".to_owned()),
        saves_bytes: Some(Bytes::new(11_861_150_208)),
    }
}

/// A limit under which only one setting gets through, in a recording that starts late.
pub(crate) fn limited() -> WhatIfReport {
    let mut report = found();
    report.whatif.truncate(2);
    report.source.complete = false;
    for row in &mut report.whatif {
        row.limit_bytes = Some(mib(27 << 10));
        row.exact = false;
    }
    let failed = &mut report.whatif[0];
    failed.oom = true;
    failed.oom_event = Some(88_204);
    failed.oom_site = Some(site("/home/ada/project/train.py", 56, "step"));
    failed.smallest_limit_bytes = None;
    report.best = Some("expandable_segments:True".to_owned());
    report.saves_bytes = None;
    report
}

/// Nothing helps.
pub(crate) fn nothing() -> WhatIfReport {
    let mut report = found();
    report.whatif.truncate(1);
    report.best = None;
    report.saves_bytes = None;
    report
}

/// Only the replay of the recorded settings.
pub(crate) fn verified(exact: bool) -> WhatIfReport {
    let report = if exact { samples::fragmentation() } else { samples::oom() };
    WhatIfReport {
        schema: SCHEMA,
        source: report.source,
        replay: report.replay,
        whatif: Vec::new(),
        best: None,
        saves_bytes: None,
    }
}

fn all() -> [(&'static str, WhatIfReport); 5] {
    [
        ("found", found()),
        ("limited", limited()),
        ("nothing", nothing()),
        ("exact", verified(true)),
        ("not_exact", verified(false)),
    ]
}

#[test]
fn every_kind_follows_the_schema() {
    for (name, report) in all() {
        crate::json::follows(gpuheap_report::WHATIF_JSON_SCHEMA, &report, name);
    }
}

#[test]
fn screens() {
    for (name, report) in all() {
        insta::assert_snapshot!(format!("80_whatif_{name}"), render(&report, &Style::default()));
    }
    insta::assert_snapshot!("40_whatif_found", render(&found(), &Style { width: 40, ..Style::default() }));
    insta::assert_snapshot!("120_whatif_limited", render(&limited(), &Style { width: 120, ..Style::default() }));
}

#[test]
fn no_line_is_wider_than_the_page() {
    for (name, report) in all() {
        for width in 40..130 {
            for unicode in [true, false] {
                let text = render(&report, &Style { width, unicode, ..Style::default() });
                assert!(unicode || text.is_ascii(), "{name}");
                for line in text.lines() {
                    assert!(line.width() <= width, "{name}: {} > {width}: {line}", line.width());
                }
            }
        }
    }
}

#[test]
fn the_last_line_is_the_one_to_copy() {
    let last = |report: &WhatIfReport| render(report, &Style::default()).lines().last().unwrap_or_default().to_owned();
    assert_eq!(last(&limited()), "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
    assert_eq!(last(&nothing()), "Nothing better was found");
    let mut stock = limited();
    stock.best = Some(String::new());
    assert_eq!(last(&stock), "unset PYTORCH_CUDA_ALLOC_CONF");
}

#[test]
fn markdown() {
    insta::assert_snapshot!("markdown_whatif_found", to_markdown(&found()));
    insta::assert_snapshot!("markdown_whatif_limited", to_markdown(&limited()));
    insta::assert_snapshot!("markdown_whatif_not_exact", to_markdown(&verified(false)));
}
