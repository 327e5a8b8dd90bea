//! The comparison in every form.

use gpuheap_explain::{Class, ClassChange, DIFF_SCHEMA, Diff, Report, Side, Site, SiteChange};
use gpuheap_record::Bytes;
use gpuheap_report::{Style, render, to_markdown};
use unicode_width::UnicodeWidthStr;

use crate::samples::{self, mib, site};

fn side(report: Report) -> Side {
    Side {
        leak_bytes_per_step: report.findings.iter().find_map(|finding| finding.bytes_per_step).unwrap_or_default(),
        source: report.source,
        verdict: report.verdict,
        peaks: report.peaks,
        steps: report.steps.count,
    }
}

fn change(before: Bytes, after: Bytes) -> i64 {
    i64::try_from(after.get()).unwrap() - i64::try_from(before.get()).unwrap()
}

fn class(class: Class, before_bytes: Bytes, after_bytes: Bytes) -> ClassChange {
    ClassChange { class, before_bytes, after_bytes, change_bytes: change(before_bytes, after_bytes) }
}

fn place(before_site: Option<Site>, after_site: Option<Site>, before_bytes: Bytes, after_bytes: Bytes) -> SiteChange {
    SiteChange {
        before_site,
        after_site,
        label: "backward pass started at train.py".to_owned(),
        class: Class::Activations,
        before_bytes,
        after_bytes,
        change_bytes: change(before_bytes, after_bytes),
    }
}

/// A leak was mended, and a line moved.
fn mended() -> Diff {
    let train = |line| Some(site("/home/ada/project/train.py", line, "loss_accumulate"));
    let mut after = samples::healthy();
    after.peaks.allocated_bytes = mib(127);
    after.peaks.reserved_bytes = mib(478);
    let mut sites = vec![
        place(train(16), train(18), mib(336), Bytes::new(10_240)),
        place(None, None, mib(31), mib(30)),
        place(train(40), None, mib(1), Bytes::ZERO),
        place(None, train(41), Bytes::ZERO, Bytes::new(512)),
    ];
    sites.extend((0..20).map(|line| place(train(50 + line), train(52 + line), mib(2), mib(2) + Bytes::new(256))));
    sites.push(place(train(90), train(92), mib(5), mib(5)));
    Diff {
        schema: DIFF_SCHEMA,
        before: side(samples::leak()),
        after: side(after),
        classes: vec![
            class(Class::Activations, mib(367), mib(31)),
            class(Class::Cache, Bytes::ZERO, Bytes::new(512)),
            class(Class::Parameters, mib(31), mib(31)),
        ],
        sites,
        growth: vec![place(train(16), None, mib(7), Bytes::ZERO)],
    }
}

/// Twice the same.
fn same() -> Diff {
    let report = samples::leak();
    let mut diff = mended();
    diff.after = side(report);
    diff.sites.retain(|row| row.change_bytes == 0);
    diff.classes.clear();
    diff.growth.clear();
    diff
}

#[test]
fn every_kind_follows_the_schema() {
    for (name, diff) in [("mended", mended()), ("same", same())] {
        crate::json::follows(gpuheap_report::DIFF_JSON_SCHEMA, &diff, name);
    }
}

#[test]
fn screens() {
    let style = Style::default();
    insta::assert_snapshot!("80_diff_mended", render(&mended(), &style));
    insta::assert_snapshot!("80_diff_same", render(&same(), &style));
    insta::assert_snapshot!("40_diff_mended", render(&mended(), &Style { width: 40, ..style }));
    insta::assert_snapshot!("120_diff_details", render(&mended(), &Style { width: 120, details: true, ..style }));
    insta::assert_snapshot!("markdown_diff_mended", to_markdown(&mended()));
}

#[test]
fn no_line_is_wider_than_the_page() {
    for width in 40..130 {
        for unicode in [true, false] {
            let text = render(&mended(), &Style { width, unicode, details: true, ..Style::default() });
            assert!(unicode || text.is_ascii());
            for line in text.lines() {
                assert!(line.width() <= width, "{} > {width}: {line}", line.width());
            }
        }
    }
}
