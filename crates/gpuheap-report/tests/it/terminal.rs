//! Whole screens.

use gpuheap_report::{Style, render};

use crate::samples;

fn plain(width: usize) -> Style {
    Style { width, color: false, unicode: true, details: false }
}

#[test]
fn first_screens_at_80_columns() {
    for (name, report) in samples::all() {
        insta::assert_snapshot!(format!("80_{name}"), render(&report, &plain(80)));
    }
}

#[test]
fn first_screens_on_narrow_and_wide_terminals() {
    for (name, report) in [("leak", samples::leak()), ("oom", samples::oom())] {
        for width in [40, 60, 120] {
            insta::assert_snapshot!(format!("{width}_{name}"), render(&report, &plain(width)));
        }
    }
}

#[test]
fn first_screens_fit_a_screen() {
    for (name, mut report) in samples::all() {
        report.whatif.clear();
        for width in [80, 100, 120] {
            let lines = render(&report, &plain(width)).lines().count();
            assert!(lines <= 35, "{name} at {width}: {lines} lines");
        }
    }
}

#[test]
fn colours_and_no_colours_say_the_same() {
    for (name, report) in samples::all() {
        let colored = render(&report, &Style { color: true, ..plain(80) });
        assert!(colored.contains("\u{1b}["), "{name}");
        assert_eq!(without_escapes(&colored), render(&report, &plain(80)), "{name}");
    }
    let colored = render(&samples::leak(), &Style { color: true, ..plain(80) });
    insta::assert_snapshot!("80_leak_colored", colored.replace('\u{1b}', "␛"));
}

#[test]
fn ascii_is_ascii() {
    for (name, report) in samples::all() {
        let text = render(&report, &Style { unicode: false, details: true, ..plain(80) });
        assert!(text.is_ascii(), "{name}");
    }
    insta::assert_snapshot!("80_oom_ascii", render(&samples::oom(), &Style { unicode: false, ..plain(80) }));
}

#[test]
fn details_show_everything() {
    for (name, report) in
        [("healthy", samples::healthy()), ("fragmentation", samples::fragmentation()), ("oom", samples::oom())]
    {
        insta::assert_snapshot!(format!("details_{name}"), render(&report, &Style { details: true, ..plain(100) }));
    }
}

#[test]
fn a_recording_of_our_own_says_more() {
    let mut report = samples::healthy();
    let part = |part: &str, mib: u64| gpuheap_explain::LedgerPart {
        part: part.to_owned(),
        kind: gpuheap_explain::PartKind::Outside,
        class: None,
        bytes: samples::mib(mib),
        detail: "by NVML".to_owned(),
    };
    report.ledger.extend([part("other processes", 300), part("free on the device", 60_000)]);
    let facts = [("PyTorch", "2.11.0"), ("driver", "580.1")];
    report.source.facts = facts.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    report.named = vec![gpuheap_explain::Named {
        name: "model.layers.3".to_owned(),
        class: gpuheap_explain::Class::Activations,
        bytes: samples::mib(96),
        blocks: 12,
    }];
    let text = render(&report, &Style { details: true, ..plain(100) });
    for line in ["= device", "other processes", "PyTorch 2.11.0, driver 580.1", "Memory with names", "model.layers.3"] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    assert!(!text.contains("= limit"), "{text}");
    assert!(gpuheap_report::to_markdown(&report).contains("**= device**"));
}

#[test]
fn an_empty_recording_is_no_trouble() {
    let mut report = samples::healthy();
    report.ledger.clear();
    report.holders.clear();
    report.timeline.clear();
    report.classes.clear();
    insta::assert_snapshot!("80_empty", render(&report, &plain(80)));
}

fn without_escapes(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain + rest
}
