//! Whatever keys come, on whatever screen.

use gpuheap_tui::{Key, Options};
use proptest::prelude::*;

use crate::samples::{app, empty, leak, painted};

fn key() -> impl Strategy<Value = Key> {
    let named = [
        Key::Up,
        Key::Down,
        Key::Left,
        Key::Right,
        Key::PageUp,
        Key::PageDown,
        Key::Home,
        Key::End,
        Key::Enter,
        Key::Tab,
        Key::BackTab,
        Key::Backspace,
        Key::Esc,
        Key::Interrupt,
    ];
    let letters: Vec<char> = "1234qproenNltsSf/+-0?az7_= é\u{1b}".chars().collect();
    prop_oneof![
        3 => prop::sample::select(named.to_vec()),
        1 => Just(Key::Right),
        4 => prop::sample::select(letters).prop_map(Key::Char),
    ]
}

fn size() -> impl Strategy<Value = (u16, u16)> {
    prop_oneof![Just((80, 24)), Just((40, 12)), (0_u16..60, 0_u16..20), (0_u16..300, 0_u16..100),]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_key_and_no_size_harms(
        is_empty: bool,
        color: bool,
        unicode: bool,
        limit in prop::option::of(any::<u64>()),
        steps in prop::collection::vec((key(), prop::option::weighted(0.2, size())), 1..60),
    ) {
        let recording = if is_empty { empty() } else { leak("step", "train.py") };
        let mut app = app(recording, &Options { color, unicode, limit: limit.map(Into::into) });
        let mut screen = (80, 24);
        for (key, size) in steps {
            app.update(key);
            screen = size.unwrap_or(screen);
            let buffer = painted(&mut app, screen);
            prop_assert!(unicode || buffer.content.iter().all(|cell| cell.symbol().is_ascii()));
        }
    }
}
