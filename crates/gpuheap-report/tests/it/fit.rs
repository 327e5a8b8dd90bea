//! Plans as pages, pictures and on narrow terminals: whatever their names are.

use gpuheap_fit::timeline::PhaseSpan;
use gpuheap_fit::trace::{Class, Phase};
use gpuheap_fit::{Fit, Timeline, Timelines};
use gpuheap_report::{Changes, Style, fit_to_html, front_to_svg, render, to_markdown};
use serde_json::json;
use unicode_width::UnicodeWidthStr;

const MIB: u64 = 1 << 20;
const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\u{1b}[2J\u{202e}&\"'";

/// A plan in which everything that has a name is called `name`.
fn plan(name: &str) -> Fit {
    let peak = |bytes: u64, step_us: f64| {
        json!({
            "allocated_bytes": bytes - 900 * MIB, "reserved_bytes": bytes - 800 * MIB, "device_bytes": bytes,
            "low": bytes - 100 * MIB, "high": bytes + 100 * MIB, "phase": "backward", "step": 2, "module": name,
            "event": 40, "holders": [{"class": "activation", "module": name, "bytes": 512 * MIB}], "step_us": step_us,
        })
    };
    let point = |bytes: u64, step_us: f64| json!({"budget_bytes": bytes, "step_us": step_us, "plan": [{"lever": "checkpoint", "modules": [name]}]});
    serde_json::from_value(json!({
        "schema": "gpuheap.fit/1",
        "source": {"make": format!("{name}:make"), "torch": name, "python": "3.12", "how": name, "notes": []},
        "batch": {"size": 16}, "device": "H200", "gpus": 1, "verdict": "fits", "budget_bytes": 3072 * MIB,
        "context_bytes": 800 * MIB, "conf": "", "baseline": peak(4096 * MIB, 1e5), "peak": peak(2900 * MIB, 1.2e5),
        "phases": [{"step": 2, "phase": "backward", "allocated_bytes": 2000 * MIB, "reserved_bytes": 2100 * MIB}],
        "plan": [{
            "lever": "checkpoint", "modules": [name], "saves_bytes": 1196 * MIB, "costs_us": 2e4, "what": name,
            "why": name, "code": name,
        }],
        "step_us": 1.2e5, "optimality": {"kind": "optimal", "over": "all choices for 24 blocks"},
        "smallest_budget_bytes": 2000 * MIB,
        "front": [point(4096 * MIB, 1e5), point(3000 * MIB, 1.2e5), point(2000 * MIB, 1.5e5)],
        "unknown": [{"what": name, "where": name, "bound_bytes": null}], "notes": [name],
    }))
    .unwrap()
}

/// A timeline of so many points, none like another.
fn timeline(points: usize, name: &str) -> Timeline {
    let noise = |point: usize| (point as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 34;
    let classes = vec![Class::Parameter, Class::Gradient, Class::Activation, Class::Temporary];
    Timeline {
        events: points * 3,
        at: (0..points).map(|point| point * 3).collect(),
        us: (0..points as u64).map(|point| point * 7).collect(),
        bytes: classes
            .iter()
            .enumerate()
            .map(|(at, _)| (0..points).map(|point| noise(point * 5 + at)).collect())
            .collect(),
        classes,
        reserved: (0..points).map(|point| 4 * noise(point)).collect(),
        module: (0..points).map(|point| u32::try_from(point % 50).ok()).collect(),
        modules: (0..50).map(|module| format!("{name}.{module}")).collect(),
        phases: vec![PhaseSpan {
            step: 2,
            phase: Phase::Forward,
            start: 0,
            end: points * 3,
            start_us: 0,
            end_us: points as u64 * 7,
            allocated_bytes: 1,
            reserved_bytes: 1,
            event: 3,
            module: name.to_owned(),
            holders: Vec::new(),
        }],
        peak: 3,
    }
}

#[test]
fn a_page_has_nothing_of_a_program_as_markup() {
    let mut fit = plan(HOSTILE);
    fit.timelines = Some(Timelines { baseline: timeline(200, HOSTILE), planned: Some(timeline(200, HOSTILE)) });
    let changes = Changes { diff: HOSTILE.to_owned(), start: HOSTILE.to_owned() };
    let page = fit_to_html(&fit, Some(&changes)).unwrap();
    assert!(!page.contains("<img") && !page.contains('\u{1b}') && !page.contains('\u{202e}'));
    // The data and the script, and nothing else.
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script").count(), 2);
}

#[test]
fn a_page_of_a_long_step_stays_small() {
    let mut fit = plan("encoder.layer.0");
    fit.timelines = Some(Timelines { baseline: timeline(100_000, "a"), planned: Some(timeline(100_000, "b")) });
    let page = fit_to_html(&fit, None).unwrap();
    assert!(page.len() <= 1_000_000, "{}", page.len());
    assert!(page.len() > 500_000, "no more was left out than had to be: {}", page.len());
}

#[test]
fn pictures_are_xml_with_a_mark_for_each_point() {
    for name in [HOSTILE, "train.py"] {
        let svg = front_to_svg(&plan(name));
        let mut reader = quick_xml::Reader::from_str(&svg);
        let (mut points, mut titles) = (0, 0);
        loop {
            match reader.read_event().unwrap() {
                quick_xml::events::Event::Start(tag) => {
                    points += usize::from(tag.name().as_ref() == "circle");
                    titles += usize::from(tag.name().as_ref() == "title");
                    assert_ne!(tag.name().as_ref(), "img");
                }
                quick_xml::events::Event::Eof => break,
                _ => {}
            }
        }
        assert_eq!((points, titles), (3, 4), "{svg}");
    }
    let svg = front_to_svg(&plan("train.py"));
    assert!(svg.contains("budget 3.00 GiB") && svg.contains("this plan"), "{svg}");
    let none = front_to_svg(&Fit { front: Vec::new(), ..plan("train.py") });
    assert!(none.contains("No plan was found"), "{none}");
}

#[test]
fn every_place_of_a_picture_is_a_number() {
    let mut fit = plan("train.py");
    // One point, at no time and no memory.
    fit.front.truncate(1);
    fit.front[0].budget_bytes = 0;
    fit.front[0].step_us = 0.0;
    fit.step_us = 0.0;
    fit.peak.high = 0;
    let svg = front_to_svg(&fit);
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn terminals_show_time_against_memory() {
    insta::assert_snapshot!("fit_front_80", render(&plan("encoder.layer.0"), &Style::default()));
    let ascii = render(&plan("encoder.layer.0"), &Style { unicode: false, ..Style::default() });
    assert!(ascii.is_ascii(), "{ascii}");
    for name in ["encoder.layer.0", HOSTILE] {
        for width in [40, 57, 120] {
            let text = render(&plan(name), &Style { width, ..Style::default() });
            assert!(text.lines().all(|line| line.width() <= width), "{text}");
            assert!(!text.contains('\u{1b}'), "{text}");
        }
        assert!(to_markdown(&plan(name)).contains("| 1.95 GiB |"));
    }
}

#[test]
fn long_titles_of_changes_go_on_in_the_next_line() {
    let title = "checkpoint all but products of bert.encoder.layer.[0-11]";
    let text = render(&plan(title), &Style::default());
    for word in title.split(' ') {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains('…'), "{text}");
}

/// Every place of a JSON value, as paths.
fn places(value: &serde_json::Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        serde_json::Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| places(item, &format!("{at}/{index}"), all));
        }
        serde_json::Value::Object(fields) => {
            fields.iter().for_each(|(name, item)| places(item, &format!("{at}/{name}"), all));
        }
        _ => {}
    }
}

#[test]
fn plans_that_were_tampered_with_are_refused_or_shown() {
    let mut fit = plan("encoder.layer.0");
    fit.timelines = Some(Timelines { baseline: timeline(4, HOSTILE), planned: Some(timeline(3, "b")) });
    let whole = serde_json::to_value(&fit).unwrap();
    let mut all = Vec::new();
    places(&whole, "", &mut all);
    let mut shown = 0;
    for place in &all {
        for other in [
            json!(0),
            json!(-1),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(1e308),
            json!(-1e308),
            json!([]),
            json!(null),
            json!(""),
        ] {
            let mut changed = whole.clone();
            *changed.pointer_mut(place).unwrap() = other;
            let text = serde_json::to_vec(&changed).unwrap();
            let Ok(fit) = Fit::from_json(&text, std::path::Path::new("plan.json")) else { continue };
            shown += 1;
            for width in [1, 80] {
                assert!(!render(&fit, &Style { width, details: true, ..Style::default() }).is_empty(), "{place}");
            }
            assert!(!to_markdown(&fit).is_empty(), "{place}");
            let svg = front_to_svg(&fit);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{place}: {svg}");
            if let Some(timelines) = &fit.timelines {
                for points in [0, 1, 2] {
                    let reduced = timelines.baseline.reduced(points);
                    assert!(reduced.at.len() <= timelines.baseline.at.len(), "{place}");
                }
            }
            let page = fit_to_html(&fit, None).unwrap();
            assert_eq!(page.matches("</script").count(), 2, "{place}");
        }
    }
    assert!(shown > 300, "{shown}");
}
