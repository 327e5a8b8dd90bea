//! The keys, in a line and in a window.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Widget};

use crate::app::{App, View};
use crate::text;

type Keys = &'static [(&'static str, &'static str)];

/// The keys of a view for one line, the most useful first.
pub(crate) const fn short(view: View) -> Keys {
    match view {
        View::Findings => &[
            ("?", "help"),
            ("↑↓", "choose"),
            ("PgDn", "scroll"),
            ("Enter", "go to its moment"),
            ("l", "libraries"),
            ("q", "quit"),
        ],
        View::Sites => &[
            ("?", "help"),
            ("↑↓", "choose"),
            ("←→", "close, open"),
            ("t", "table"),
            ("/", "filter"),
            ("l", "libraries"),
            ("s", "sort"),
            ("p o e n", "moment"),
            ("q", "quit"),
        ],
        View::Timeline => &[
            ("?", "help"),
            ("←→", "move"),
            ("+ -", "zoom"),
            ("Enter", "choose"),
            ("p o e n", "jump"),
            ("0", "all"),
            ("q", "quit"),
        ],
        View::Map => &[
            ("?", "help"),
            ("←→", "block"),
            ("↑↓", "row"),
            ("+ -", "zoom"),
            ("/", "address"),
            ("p o e n", "moment"),
            ("q", "quit"),
        ],
    }
}

const EVERYWHERE: Keys = &[
    ("1 2 3 4, Tab", "Findings, Sites, Timeline, Map"),
    ("p r o e", "Moment: peak, peak of reserved, OOM, end"),
    ("n N", "Moment: end of the next, previous step"),
    ("?", "This help"),
    ("q Esc Ctrl-C", "Quit"),
];

const fn long(view: View) -> Keys {
    match view {
        View::Findings => &[
            ("↑ ↓", "Choose"),
            ("PgUp PgDn", "Scroll the text"),
            ("Enter", "Choose the moment where it is seen best"),
            ("l", "Show or fold frames of libraries"),
        ],
        View::Sites => &[
            ("↑ ↓ PgUp PgDn", "Choose"),
            ("→ ← Enter", "Open, close"),
            ("t", "Table of sites, tree of stacks"),
            ("s S", "Table: sort by the next, previous column"),
            ("l", "Tree: show or fold frames of libraries"),
            ("/", "Filter by name; Esc shows all again"),
        ],
        View::Timeline => &[
            ("← →, PgUp PgDn", "Move the cursor, further"),
            ("Home End", "To the start, the end"),
            ("+ - 0", "Zoom in, out, show all"),
            ("p r o e n N", "Move to a moment"),
            ("Enter", "Choose the moment for all views"),
        ],
        View::Map => &[
            ("← →", "Previous, next block or free range"),
            ("↑ ↓ PgUp PgDn", "Previous, next row, further"),
            ("Home End", "First, last segment"),
            ("+ - 0", "Zoom in, out, fit"),
            ("f", "Next free range at least as large"),
            ("/", "Go to an address"),
        ],
    }
}

/// The window with all keys of the view.
pub(crate) fn draw(app: &App, buffer: &mut Buffer, area: Rect) {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut section = |title: &'static str, keys: Keys| {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        lines.push(Line::styled(title, app.theme.strong()));
        for &(key, does) in keys {
            lines.push(Line::from(vec![
                Span::styled(format!("  {} ", text::padded(key, 14)), app.theme.code()),
                Span::raw(does),
            ]));
        }
    };
    section(app.view.title(), long(app.view));
    section("Everywhere", EVERYWHERE);
    let most = |of: u16, wanted: usize| u16::try_from(wanted).unwrap_or(of).min(of);
    let width = most(area.width, lines.iter().map(Line::width).max().unwrap_or(0) + 4);
    let mut height = most(area.height, lines.len() + 2);
    if usize::from(height) < lines.len() + 2 {
        // What is left out first is what separates.
        lines.retain(|line| line.width() > 0);
        height = most(area.height, lines.len() + 2);
    }
    let window = Rect::new(area.x + (area.width - width) / 2, area.y + (area.height - height) / 2, width, height);
    Clear.render(window, buffer);
    let block = Block::bordered().title(" Keys ").title_bottom(Line::from(" ? or Esc closes ").right_aligned());
    let inner = block.inner(window);
    block.render(window, buffer);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    crate::screen::paint(buffer, inner, lines);
}
