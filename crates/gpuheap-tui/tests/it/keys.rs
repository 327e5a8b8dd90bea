//! What keys do.

use gpuheap_tui::{App, View};

use crate::samples::{self, PLAIN, empty, leak, press, screen};

const SIZE: (u16, u16) = (100, 30);

fn app() -> App {
    let mut app = samples::app(leak("step", "train.py"), &PLAIN);
    app.resize(SIZE.0, SIZE.1);
    app
}

fn after(keys: &str) -> (App, String) {
    let mut app = app();
    press(&mut app, keys);
    let text = screen(&mut app, SIZE);
    (app, text)
}

#[test]
fn tabs_lead_around() {
    let mut app = app();
    assert_eq!(app.view(), View::Findings);
    for (keys, view) in [
        ("3", View::Timeline),
        ("<tab>", View::Map),
        ("<tab>", View::Findings),
        ("<backtab>", View::Map),
        ("2", View::Sites),
    ] {
        press(&mut app, keys);
        assert_eq!(app.view(), view, "{keys}");
    }
}

#[test]
fn two_keys_quit_from_every_view() {
    for view in ["1", "2", "2t", "3", "4"] {
        for key in ["q", "<ctrl-c>"] {
            let (app, _) = after(&format!("{view}{key}"));
            assert!(app.is_done(), "{view}{key}");
        }
        assert!(!after(&format!("{view}<esc><esc>")).0.is_done(), "{view}");
        // What is being typed, the help and a filter come first.
        for (keys, done) in [("?<esc>", false), ("?q", false), ("?<esc>q", true), ("?<ctrl-c>", true)] {
            assert_eq!(after(&format!("{view}{keys}")).0.is_done(), done, "{view}{keys}");
        }
    }
    assert!(!after("2/q").0.is_done());
    assert!(after("2/q<ctrl-c>").0.is_done());
    assert!(!after("2/step<enter><esc>").0.is_done());
    assert!(!after("2/step<enter><esc><esc>").0.is_done());
    assert!(!after("4/<esc>").0.is_done());
}

#[test]
fn escape_closes_what_is_open() {
    let (_, zoomed) = after("3p++<esc>");
    assert!(zoomed.contains("Memory over 201 events"), "{zoomed}");
    let (_, map) = after("e4");
    assert_eq!(after("e4++<esc>").1, map);
    assert_eq!(after("e4/1<enter><esc>").1, map);
    let (_, text) = after("2/model<enter><esc>");
    assert!(text.contains("train.py:12"), "{text}");
}

#[test]
fn moments_that_never_were_are_said_to_be_none() {
    let mut app = samples::app(empty(), &PLAIN);
    for view in ["1", "2", "3", "4"] {
        press(&mut app, &format!("{view}o"));
        let text = screen(&mut app, SIZE);
        assert!(text.contains("no allocation failed"), "{text}");
        press(&mut app, "<esc>");
        assert!(!screen(&mut app, SIZE).contains("no allocation failed"));
        press(&mut app, "n");
        let text = screen(&mut app, SIZE);
        assert!(text.contains("no steps are known"), "{text}");
    }
}

#[test]
fn the_ledger_is_of_the_chosen_moment() {
    let ledger = |keys: &str| after(&format!("{keys}1<end><up>")).1;
    let text = ledger("");
    assert!(text.contains("at the OOM"), "{text}");
    let text = ledger("3<home>+++++++<right><right><enter>");
    assert!(text.contains("20.0 MiB after event 1"), "{text}");
    assert!(text.contains("11.0 MiB") && text.contains("reserved, not allocated"), "{text}");
    let text = ledger("3<home><enter>");
    assert!(text.contains("0 B before the first event"), "{text}");
}

#[test]
fn the_moment_is_the_same_in_all_views() {
    let (app, text) = after("2e");
    assert_eq!(app.moment(), 201);
    assert!(text.contains("after event 200") && !text.contains("201"), "{text}");
    let (app, text) = after("3<home><enter>2");
    assert_eq!(app.moment(), 0);
    assert!(text.contains("Nothing is held at this moment"), "{text}");
    assert!(text.contains("before the first event"), "{text}");
    let (_, text) = after("3<home><enter>4");
    assert!(text.contains("No memory is reserved at this moment"), "{text}");
    // Where the cursor goes is not chosen yet.
    let (app, _) = after("e3<home>");
    assert_eq!(app.moment(), 201);
    let (app, _) = after("o");
    assert_eq!(app.moment(), 201, "the last event is the failed allocation");
}

#[test]
fn the_tree_opens_and_closes() {
    let (_, text) = after("2");
    assert!(text.contains("train.py:40 in <module>") && text.contains("▾"), "{text}");
    assert!(text.contains("train.py:12 in step") && !text.contains("functional.py"), "{text}");
    let (_, text) = after("2<home><left>");
    assert!(!text.contains("train.py:12"), "{text}");
    let (_, text) = after("2<home><left><right>");
    assert!(text.contains("train.py:12"), "{text}");
    let (_, text) = after("2<home><enter><enter>");
    assert!(text.contains("train.py:12"), "{text}");
    let (_, text) = after("2l");
    assert!(text.contains("functional.py:7 in linear"), "{text}");
    let (_, text) = after("2ll");
    assert!(!text.contains("functional.py:7"), "{text}");
}

#[test]
fn filters_keep_what_leads_to_a_name() {
    let (_, text) = after("2l<home><left>/LINEAR<enter>");
    assert!(text.contains("functional.py:7 in linear") && text.contains("<module>"), "{text}");
    let (_, text) = after("2/nowhere");
    assert!(text.contains("No frame has this name") && text.contains("Filter: nowhere"), "{text}");
    let (_, text) = after("2/nowhere<esc>");
    assert!(text.contains("train.py:12"), "{text}");
    let (_, text) = after("2t/model<enter>");
    assert!(text.contains("model.py:3") && !text.contains("train.py:12"), "{text}");
    let (_, text) = after("2t/modelx<back>");
    assert!(text.contains("model.py:3"), "{text}");
}

#[test]
fn the_table_is_sorted_by_any_column() {
    let first = |text: &str| text.lines().nth(3).unwrap_or_default().to_owned();
    let (_, text) = after("2t");
    assert!(first(&text).contains("train.py:12"), "{text}");
    for (keys, title) in [("s", "the most"), ("ss", "blocks made"), ("S", "growth"), ("sS", "bytes at")] {
        let (_, text) = after(&format!("2t{keys}"));
        assert!(text.contains(&format!("by {title}")), "{keys}: {text}");
    }
}

#[test]
fn the_timeline_zooms_around_the_cursor() {
    let (_, text) = after("3");
    assert!(text.contains("Memory over 201 events"), "{text}");
    let (_, text) = after("3p++");
    assert!(text.contains("Memory, after events"), "{text}");
    let (_, text) = after("3p++0");
    assert!(text.contains("Memory over 201 events"), "{text}");
    // In the deepest zoom, each key is an event.
    let (app, text) = after("3<home>+++++++<right><right><enter>");
    assert_eq!(app.moment(), 2);
    assert!(text.contains("Last event: alloc 11.0 MiB at train.py:12 in step"), "{text}");
    let (app, _) = after("3<home>+++++++<left><enter>");
    assert_eq!(app.moment(), 0);
    let (app, _) = after("3<end>+++++++<right><right><enter>");
    assert_eq!(app.moment(), 201);
}

#[test]
fn every_tick_can_be_reached_by_moving() {
    let mut app = app();
    press(&mut app, "3<home>+++++++");
    for tick in 1..=201 {
        press(&mut app, "<right><enter>");
        assert_eq!(app.moment(), tick);
    }
    for tick in (0..201).rev() {
        press(&mut app, "<left><enter>");
        assert_eq!(app.moment(), tick);
    }
}

#[test]
fn the_map_goes_from_range_to_range() {
    let (_, text) = after("e4");
    assert!(text.contains("40 segments, 800 MiB, in use 440 MiB"), "{text}");
    assert!(text.contains("0x7f0000000000  11.0 MiB  "), "{text}");
    let (_, text) = after("e4<right>");
    assert!(text.contains("0x7f0000b00000  9.00 MiB free"), "{text}");
    let (_, text) = after("e4<right><right>");
    assert!(text.contains("0x7f0001400000  11.0 MiB  "), "{text}");
    let (_, text) = after("e4<right><right><left><left>");
    assert!(text.contains("0x7f0000000000  11.0 MiB  "), "{text}");
    let (_, text) = after("e4f");
    assert!(text.contains("0x7f0000b00000  9.00 MiB free"), "{text}");
    let (_, text) = after("e4<end><right>f");
    assert!(text.contains("no free range"), "{text}");
}

#[test]
fn the_map_finds_addresses() {
    let (_, text) = after("e4/0x7f0001500000<enter>");
    assert!(text.contains("0x7f0001400000  11.0 MiB  "), "{text}");
    let (_, text) = after("e4/7f0001400000x<back><enter>");
    assert!(text.contains("0x7f0001400000  11.0 MiB  "), "{text}");
    let (_, text) = after("e4/1<enter>");
    assert!(text.contains("no segment has 0x1 at this moment"), "{text}");
    let (_, text) = after("e4/zz<enter>");
    assert!(text.contains("`zz` is not an address"), "{text}");
}

#[test]
fn findings_lead_to_their_moment() {
    let (app, text) = after("1<enter>");
    assert_eq!(app.moment(), 201);
    assert!(text.contains("Out of memory:"), "{text}");
    let (_, text) = after("1<end>");
    assert!(text.contains("Replay"), "{text}");
}

#[test]
fn a_recording_without_anything_has_all_views() {
    let mut app = samples::app(empty(), &PLAIN);
    for keys in [
        "1",
        "<end>",
        "<enter>",
        "2",
        "t",
        "t<right><left><enter>",
        "3",
        "+-<left><right><enter>n",
        "4",
        "<right>f+",
        "?",
    ] {
        press(&mut app, keys);
        for size in [(80, 24), (40, 12)] {
            assert!(!screen(&mut app, size).trim().is_empty(), "{keys}");
        }
    }
}
