//! The result of a check in every form.

use gpuheap_explain::{Budget, check};
use gpuheap_record::Bytes;
use gpuheap_report::check::{to_github, to_json, to_junit, to_text};
use gpuheap_report::{CHECK_JSON_SCHEMA, CheckReport, CheckedRecording};
use serde_json::Value;

use crate::samples::{self, mib, site};

fn result() -> CheckReport {
    let budget =
        Budget { max_peak: Some(mib(400)), max_reserved: Some(mib(40_000)), no_leaks: true, max_waste: Some(25.0) };
    let mut oom = samples::oom();
    oom.source.path = String::from("-");
    let reports = [samples::leak(), oom];
    CheckReport::new(reports.iter().map(|report| CheckedRecording::new(report, check(report, &budget))).collect())
}

/// Names out of files that nobody vouches for.
fn hostile() -> CheckReport {
    let mut result = result();
    let recording = &mut result.recordings[0];
    recording.path = "a\"b<c>&'\u{1b}[2J,::error::\r\n%.pickle".into();
    recording.checks[0].message = "]]> <![CDATA[ \u{fffe}\u{ffff}\u{0} \u{202e}".into();
    recording.checks[0].site = Some(site("x,y:z\n::warning::\"/>", 3, "<f>"));
    result
}

fn all_hold() -> CheckReport {
    let mut result = result();
    for recording in &mut result.recordings {
        recording.checks.retain(|check| check.holds);
    }
    CheckReport::new(result.recordings)
}

#[test]
fn one_line_for_each_violation() {
    insta::assert_snapshot!("check_text", to_text(&result()));
    insta::assert_snapshot!("check_github", to_github(&result(), "/home/ada/project"));
    insta::assert_snapshot!("check_junit", to_junit(&result()));
    let violations = result().recordings.iter().flat_map(|recording| &recording.checks).filter(|c| !c.holds).count();
    assert_eq!(to_text(&result()).lines().count(), violations);
    assert_eq!(to_github(&result(), "").lines().count(), violations);
}

#[test]
fn where_all_hold_one_line_says_so() {
    assert_eq!(to_text(&all_hold()), "All 4 checks hold\n");
    assert_eq!(to_github(&all_hold(), ""), "All 4 checks hold\n");
    assert!(!to_junit(&all_hold()).contains("<failure"));
    assert!(all_hold().holds && !result().holds);
}

#[test]
fn hostile_names_are_only_text() {
    let text = to_text(&hostile());
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    for line in to_github(&hostile(), "").lines() {
        assert!(line.starts_with("::error "), "{line}");
        // What GitHub reads: properties up to the second `::`, each without `:` and `,` of its own.
        let properties = line.trim_start_matches("::error ").split_once("::").unwrap().0;
        assert!(properties.split(',').all(|pair| pair.contains('=')), "{properties}");
    }
    assert_eq!(to_text(&hostile()).lines().count(), to_text(&result()).lines().count());
}

/// Names and texts of all elements, if the document is well-formed XML.
fn read_xml(xml: &str) -> Vec<String> {
    use quick_xml::XmlVersion;
    use quick_xml::events::Event;

    let mut reader = quick_xml::Reader::from_str(xml);
    reader.config_mut().check_end_names = true;
    let mut seen = Vec::new();
    let mut open = 0;
    loop {
        match reader.read_event().unwrap() {
            Event::Start(element) => {
                open += 1;
                for attribute in element.attributes() {
                    let attribute = attribute.unwrap();
                    seen.push(attribute.normalized_value(XmlVersion::Implicit1_0).unwrap().into_owned());
                }
            }
            Event::End(_) => open -= 1,
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(open, 0);
    seen
}

#[test]
fn junit_is_well_formed_whatever_the_names() {
    for report in [result(), hostile(), all_hold()] {
        let xml = to_junit(&report);
        let values = read_xml(&xml);
        assert!(values.iter().any(|value| value == "max-reserved"), "{xml}");
        let allowed = |c: char| matches!(c, '\n' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
        assert!(xml.chars().all(allowed), "{xml:?}");
    }
    let values = read_xml(&to_junit(&hostile()));
    assert!(values.iter().any(|value| value.starts_with("a\"b<c>&'")), "{values:?}");
}

#[test]
fn json_follows_its_schema() {
    let schema: Value = serde_json::from_str(CHECK_JSON_SCHEMA).unwrap();
    for report in [result(), hostile(), all_hold()] {
        let json = to_json(&report).unwrap();
        crate::json::value_follows(&schema, &serde_json::from_str(&json).unwrap(), "check");
    }
}

#[test]
fn figures_at_the_limit_hold() {
    let report = samples::leak();
    let exactly = Budget { max_peak: Some(report.peaks.allocated_bytes), ..Budget::default() };
    let less = Budget { max_peak: Some(report.peaks.allocated_bytes - Bytes::new(1)), ..Budget::default() };
    assert!(check(&report, &exactly)[0].holds);
    assert!(!check(&report, &less)[0].holds);
}
