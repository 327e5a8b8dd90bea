//! Reports with whatever a file may hold in its names.

use gpuheap_explain::{Class, Confidence, Named, Report, Site};
use gpuheap_record::Bytes;
use gpuheap_report::{Style, render, to_json, to_markdown};
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr;

use crate::samples;

fn foreign() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z_]{1,12}",
        "(/[a-z0-9.-]{1,24}){1,12}/[a-z]{1,40}\\.py",
        "\\PC{0,60}",
        any::<String>(),
        Just("\u{1b}[2J\u{9b}31m\u{7}\u{202e}evil\r\n`|<img src=x>".to_owned()),
        Just("模型/训练/很长的路径名称很长的路径名称很长的路径名称.py".to_owned()),
        "x{0,300}",
    ]
}

fn places() -> impl Strategy<Value = Site> {
    (foreign(), any::<u32>(), foreign()).prop_map(|(file, line, function)| Site { file, line, function })
}

fn reports() -> impl Strategy<Value = Report> {
    let texts = prop::collection::vec(foreign(), 8);
    let places = prop::collection::vec(places(), 4);
    let sizes = prop::collection::vec(prop_oneof![any::<u64>(), 0..1u64 << 40, Just(0)], 8);
    (0..6usize, texts, places, sizes, any::<bool>()).prop_map(|(which, texts, places, sizes, more)| {
        let [(_, mut report), ..] = rotated(which);
        report.source.path.clone_from(&texts[0]);
        report.source.notes.push(texts[1].clone());
        report.verdict.headline.clone_from(&texts[2]);
        report.verdict.site = Some(places[0].clone());
        report.verdict.confidence = Confidence::Low;
        report.steps.unit.clone_from(&texts[3]);
        report.replay.first_mismatch = Some(texts[4].clone());
        for (part, size) in report.ledger.iter_mut().zip(&sizes) {
            part.part.clone_from(&texts[5]);
            part.detail.clone_from(&texts[6]);
            part.bytes = Bytes::new(*size);
        }
        for (holder, size) in report.holders.iter_mut().zip(&sizes) {
            holder.site = more.then(|| places[1].clone());
            holder.label.clone_from(&texts[7]);
            holder.bytes = Bytes::new(*size);
        }
        if more {
            report.source.facts = texts.iter().zip(&texts).map(|(name, value)| (name.clone(), value.clone())).collect();
            report.named = texts
                .iter()
                .zip(&sizes)
                .map(|(name, &bytes)| Named {
                    name: name.clone(),
                    class: Class::Unknown,
                    bytes: Bytes::new(bytes),
                    blocks: bytes,
                })
                .collect();
        }
        for finding in &mut report.findings {
            finding.title.clone_from(&texts[5]);
            finding.site = Some(places[2].clone());
            finding.stack.clone_from(&places);
            finding.evidence.clone_from(&texts);
            finding.remedy.text.clone_from(&texts[6]);
            finding.remedy.conf = more.then(|| texts[7].clone());
        }
        for (point, size) in report.timeline.iter_mut().zip(&sizes) {
            point.allocated_bytes = Bytes::new(*size);
        }
        report
    })
}

fn rotated(by: usize) -> [(&'static str, Report); 6] {
    let mut all = samples::all();
    all.rotate_left(by);
    all
}

fn harmless(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || !(c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c)))
}

/// What a reader of Markdown does not take for code: code ends at as many backticks as it started with.
fn outside_code(markdown: &str) -> String {
    let mut outside = String::new();
    let mut rest = markdown;
    while let Some(start) = rest.find(['`', '\\']) {
        outside.push_str(&rest[..start]);
        rest = &rest[start..];
        if rest.starts_with('\\') {
            let escaped = rest.chars().nth(1).map_or(0, char::len_utf8);
            rest = &rest[1 + escaped..];
            continue;
        }
        let length = rest.len() - rest.trim_start_matches('`').len();
        let (fence, after) = rest.split_at(length);
        let end = after
            .match_indices(fence)
            .map(|(at, _)| at)
            .find(|&at| !after[..at].ends_with('`') && !after[at + length..].starts_with('`'));
        rest = end.map_or(after, |end| &after[end + length..]);
    }
    outside + rest
}

proptest! {
    #[test]
    fn no_line_is_wider_than_the_page(report in reports(), width in 40usize..200, unicode: bool, details: bool) {
        let text = render(&report, &Style { width, color: false, unicode, details });
        prop_assert!(harmless(&text));
        prop_assert!(unicode || text.is_ascii());
        for line in text.lines() {
            prop_assert!(line.width() <= width, "{} > {width}: {line}", line.width());
        }
    }

    #[test]
    fn no_form_carries_control_characters(report in reports()) {
        let json = to_json(&report).unwrap();
        prop_assert!(harmless(&json));
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(read["verdict"]["headline"].as_str(), Some(report.verdict.headline.as_str()));
        let markdown = to_markdown(&report);
        prop_assert!(harmless(&markdown));
        // In code a tag is only text.
        prop_assert!(!outside_code(&markdown).contains("<img"));
    }
}
