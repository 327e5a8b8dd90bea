//! Names out of files that nobody vouches for.

use crate::samples::{PLAIN, app, leak, painted, press};

fn harmless_in_all_views(function: &str, file: &str) {
    let mut app = app(leak(function, file), &PLAIN);
    for keys in ["1", "<pgdn>", "l", "<end>", "2", "<right>", "l", "t", "3", "4", "<right>", "?"] {
        press(&mut app, keys);
        for size in [(80, 24), (40, 12)] {
            for cell in &painted(&mut app, size).content {
                let harms = |sign: char| {
                    sign.is_control()
                        || matches!(sign, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
                };
                assert!(!cell.symbol().contains(harms), "{keys}: {:?}", cell.symbol());
            }
        }
    }
}

#[test]
fn escape_sequences_stay_in_their_place() {
    harmless_in_all_views("\u{1b}[2J\u{1b}]0;title\u{7}", "\u{9b}31m/train\r\n.py");
}

#[test]
fn directions_are_not_turned() {
    harmless_in_all_views("\u{202e}pets\u{2066}", "/\u{200f}שלום/\u{202d}train.py");
}

#[test]
fn wide_and_combining_characters_fit() {
    harmless_in_all_views("日本語の関数".repeat(30).as_str(), "/家/🚀👩‍👩‍👧/e\u{301}\u{301}\u{301}.py");
}

#[test]
fn names_of_a_megabyte_are_cut() {
    harmless_in_all_views(&"x".repeat(1 << 20), &"/".repeat(1 << 20));
    harmless_in_all_views("", "");
}
