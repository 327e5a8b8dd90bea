//! What each view shows of real recordings, on screens of three sizes.

use gpuheap_tui::{App, Options};

use crate::samples::{PLAIN, app, example, leak, press, recorded, screen};

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (40, 12)];

/// The screen after some keys, in every size.
fn shown(app: &mut App, keys: &str) -> String {
    press(app, keys);
    SIZES.map(|size| format!("{} × {}\n{}", size.0, size.1, screen(app, size))).join("\n")
}

fn all_views(name: &str) {
    let mut app = example(&format!("{name}.pickle.gz"));
    insta::assert_snapshot!(format!("{name}_findings"), shown(&mut app, "1"));
    insta::assert_snapshot!(format!("{name}_sites"), shown(&mut app, "2<right>"));
    insta::assert_snapshot!(format!("{name}_table"), shown(&mut app, "t"));
    insta::assert_snapshot!(format!("{name}_timeline"), shown(&mut app, "3"));
    insta::assert_snapshot!(format!("{name}_map"), shown(&mut app, "4"));
}

#[test]
fn a_fragmented_run() {
    all_views("gpt2_varlen");
}

#[test]
fn a_run_out_of_memory() {
    all_views("llama_oom");
}

#[test]
fn a_leak() {
    all_views("loss_accumulate");
}

#[test]
fn a_healthy_run() {
    let mut app = example("bert_large.pickle.gz");
    insta::assert_snapshot!("bert_large_ledger", shown(&mut app, "1"));
    insta::assert_snapshot!("bert_large_source", shown(&mut app, "<end>"));
    insta::assert_snapshot!("bert_large_zoomed", shown(&mut app, "3+++++<left>"));
    insta::assert_snapshot!("help", shown(&mut app, "?"));
}

#[test]
fn without_more_than_ascii() {
    let options = Options { unicode: false, ..PLAIN };
    let mut hostile = app(leak("step", "träin.py"), &options);
    let mut real = app(recorded("gpt2_varlen.pickle.gz"), &options);
    for keys in ["1", "2", "t", "3", "+", "4", "?"] {
        press(&mut hostile, keys);
        assert!(screen(&mut hostile, (80, 24)).is_ascii(), "{keys}");
        press(&mut real, keys);
        let text = screen(&mut real, (80, 24));
        assert!(text.is_ascii(), "{keys}");
        // Every sign of ours has one in ASCII: only the key of the help is a question mark.
        assert!(text.matches('?').count() <= 2, "{text}");
        if keys == "3" {
            insta::assert_snapshot!("ascii_timeline", text);
        }
    }
}

#[test]
fn a_screen_that_is_too_small_says_so() {
    let mut app = example("loss_accumulate.pickle.gz");
    insta::assert_snapshot!(screen(&mut app, (20, 5)), @r"
    too small: 32 × 8
    needed
    ");
    for size in [(0, 0), (1, 1), (200, 1), (1, 200), (31, 8), (32, 7)] {
        let _ = screen(&mut app, size);
    }
}

/// Streams that wait, private pools, native frames, a lost start, two devices.
#[test]
fn unusual_recordings_have_all_views() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings/edge");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "gz") {
            continue;
        }
        let mut app = app(gpuheap_import::read(&path, gpuheap_import::Options::default()).unwrap(), &PLAIN);
        for keys in [
            "<down><pgdn>l",
            "2<right><down><right>l",
            "t<down>sss",
            "e",
            "3p+++<left>n<enter>",
            "4<right><down>f+t<left>",
        ] {
            press(&mut app, keys);
            for size in SIZES {
                assert!(!screen(&mut app, size).is_empty());
            }
            press(&mut app, "<tab>");
        }
        count += 1;
    }
    assert!(count >= 7, "{count}");
}
