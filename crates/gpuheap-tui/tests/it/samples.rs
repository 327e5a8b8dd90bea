//! Recordings to look at, and the screen as text.

use std::path::Path;
use std::sync::Arc;

use gpuheap_explain::Analysis;
use gpuheap_record::{Event, EventKind, Frame, Recording, StackId};
use gpuheap_tui::{App, Key, Options, draw};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

pub(crate) const PLAIN: Options = Options { color: false, unicode: true, limit: None };

/// A recording of `examples/`.
pub(crate) fn example(name: &str) -> App {
    app(recorded(name), &PLAIN)
}

pub(crate) fn recorded(name: &str) -> Recording {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let mut recording = gpuheap_import::read(&path, gpuheap_import::Options::default()).unwrap();
    recording.source.path = name.into();
    recording
}

pub(crate) fn app(recording: Recording, options: &Options) -> App {
    let analysis = Analysis::new(Arc::new(recording), &gpuheap_explain::Options::default()).unwrap();
    App::new(analysis, options)
}

/// A device of which nothing is known.
pub(crate) fn empty() -> Recording {
    let mut recording = Recording::default();
    recording.device_mut(0);
    recording
}

/// A loop that keeps a block of each turn, with frames of these names, and a failed allocation at the end.
pub(crate) fn leak(function: &str, file: &str) -> Recording {
    let mut recording = Recording::default();
    let mut stack = |names: &[(&str, &str, u32)]| -> StackId {
        let frames: Vec<_> = names
            .iter()
            .map(|&(function, file, line)| {
                let (function, file) = (recording.strings.intern(function), recording.strings.intern(file));
                recording.frames.insert(Frame { function, file, line })
            })
            .collect();
        recording.stacks.intern(&frames)
    };
    let main = ("<module>", "train.py", 40);
    let library = ("linear", "/usr/lib/python3/site-packages/torch/nn/functional.py", 7);
    let kept = stack(&[library, (function, file, 12), main]);
    let dropped = stack(&[("forward", "model.py", 3), (function, file, 13), main]);
    let events = &mut recording.device_mut(0).events;
    let (base, mib) = (0x7f00_0000_0000, 1 << 20);
    let mut time_us = 1_700_000_000_000_000;
    let mut push = |kind, address, size, stack| {
        time_us += 250;
        events.push(Event { kind, address, size, stack, time_us, ..Event::default() });
    };
    for turn in 0..40_u64 {
        let at = base + turn * 20 * mib;
        push(EventKind::SegmentAlloc, at, 20 * mib, kept);
        push(EventKind::Alloc, at, 11 * mib, kept);
        push(EventKind::Alloc, at + 12 * mib, 3 * mib - 17, dropped);
        push(EventKind::FreeRequested, at + 12 * mib, 3 * mib - 17, dropped);
        push(EventKind::FreeCompleted, at + 12 * mib, 3 * mib - 17, dropped);
    }
    push(EventKind::OutOfMemory, 5 * mib, 512 * mib, kept);
    recording
}

/// What is painted on a screen of this size.
pub(crate) fn painted(app: &mut App, (columns, rows): (u16, u16)) -> Buffer {
    app.resize(columns, rows);
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(app, frame)).unwrap();
    terminal.backend().buffer().clone()
}

/// The screen as text.
pub(crate) fn screen(app: &mut App, size: (u16, u16)) -> String {
    let buffer = painted(app, size);
    let rows = buffer.content.chunks(size.0.max(1).into());
    let mut text = String::new();
    for row in rows {
        let row: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// Keys by their names: characters, and a few in angle brackets.
pub(crate) fn press(app: &mut App, keys: &str) {
    let mut rest = keys;
    while let Some(first) = rest.chars().next() {
        let named = rest.strip_prefix('<').and_then(|rest| rest.split_once('>'));
        if let Some((name, after)) = named {
            app.update(match name {
                "up" => Key::Up,
                "down" => Key::Down,
                "left" => Key::Left,
                "right" => Key::Right,
                "pgup" => Key::PageUp,
                "pgdn" => Key::PageDown,
                "home" => Key::Home,
                "end" => Key::End,
                "enter" => Key::Enter,
                "tab" => Key::Tab,
                "backtab" => Key::BackTab,
                "back" => Key::Backspace,
                "esc" => Key::Esc,
                "ctrl-c" => Key::Interrupt,
                other => panic!("no key is named {other}"),
            });
            rest = after;
        } else {
            app.update(Key::Char(first));
            rest = &rest[first.len_utf8()..];
        }
    }
}
