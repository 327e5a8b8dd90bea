//! The keys, in a line and in a window.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Widget};

use crate::app::{App, View};
use crate::text;
use crate::theme::Theme;

type Keys = &'static [(&'static str, &'static str)];

/// The keys of a view for one line, the most useful first.
pub(crate) const fn short(view: View) -> Keys {
    match view {
        View::Findings => &[
            ("?", "help"),
            ("q", "quit"),
            ("↑↓", "choose"),
            ("PgDn", "scroll"),
            ("Enter", "go to its moment"),
            ("l", "libraries"),
        ],
        View::Sites => &[
            ("?", "help"),
            ("q", "quit"),
            ("↑↓", "choose"),
            ("←→", "close, open"),
            ("t", "table"),
            ("/", "filter"),
            ("l", "libraries"),
            ("s", "sort"),
            ("p o e n", "moment"),
        ],
        View::Timeline => &[
            ("?", "help"),
            ("q", "quit"),
            ("←→", "move"),
            ("+ -", "zoom"),
            ("Enter", "choose"),
            ("p o e n", "jump"),
            ("0", "all"),
        ],
        View::Map => &[
            ("?", "help"),
            ("q", "quit"),
            ("←→", "block"),
            ("↑↓", "row"),
            ("+ -", "zoom"),
            ("/", "address"),
            ("p o e n", "moment"),
        ],
    }
}

const EVERYWHERE: Keys = &[
    ("1 2 3 4, Tab", "Findings, Sites, Timeline, Map"),
    ("p r o e", "Moment: peak, peak of reserved, OOM, end"),
    ("n N", "Moment: end of the next, previous step"),
    ("?", "This help"),
    ("Esc", "Close what is open: help, search, message, zoom"),
    ("q Ctrl-C", "Quit"),
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
            ("t", "Each segment in a row of its own, or one after the other"),
            ("f", "Next free range at least as large"),
            ("/", "Go to an address"),
        ],
    }
}

/// The lines of the window, in so many columns.
fn lines(view: View, theme: Theme, columns: u16) -> Vec<Line<'static>> {
    let is_narrow = columns < 60;
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut section = |title: &'static str, keys: Keys| {
        if !lines.is_empty() && !is_narrow {
            lines.push(Line::default());
        }
        lines.push(Line::styled(title, theme.strong()));
        for &(key, does) in keys {
            let key = if is_narrow { format!("{key}: ") } else { format!("  {} ", text::padded(key, 14)) };
            lines.push(Line::from(vec![Span::styled(key, theme.code()), Span::raw(does)]));
        }
    };
    section(view.title(), long(view));
    section("Everywhere", EVERYWHERE);
    lines
}

/// Rows for lines, in a window on a screen of so many.
fn room(rows: u16) -> u16 {
    rows.saturating_sub(2)
}

/// How far the window of a view can be scrolled.
pub(crate) fn scrolls(view: View, (columns, rows): (u16, u16)) -> u16 {
    let count = lines(view, Theme { color: false, unicode: true }, columns).len();
    u16::try_from(count).unwrap_or(u16::MAX).saturating_sub(room(rows))
}

/// The window with all keys of the view.
pub(crate) fn draw(app: &App, buffer: &mut Buffer, area: Rect, scroll: u16) {
    let lines = lines(app.view, app.theme, area.width);
    let most = |of: u16, wanted: usize| u16::try_from(wanted).unwrap_or(of).min(of);
    let width = most(area.width, lines.iter().map(Line::width).max().unwrap_or(0) + 4);
    let height = most(area.height, lines.len() + 2);
    let window = Rect::new(area.x + (area.width - width) / 2, area.y + (area.height - height) / 2, width, height);
    Clear.render(window, buffer);
    let scroll = scroll.min(scrolls(app.view, (area.width, area.height)));
    let bottom = if lines.len() > room(height).into() { " ↑↓ scroll, Esc closes " } else { " Esc closes " };
    let block = Block::bordered().title(" Keys ").title_bottom(Line::from(bottom).right_aligned());
    let inner = block.inner(window);
    block.render(window, buffer);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    crate::screen::paint(buffer, inner, lines.into_iter().skip(scroll.into()));
}
