//! Reports as text for a terminal: the answer first, then what to change, then where the memory went.

mod charts;
mod classes;
pub(crate) mod diff;
mod facts;
mod findings;
pub(crate) mod fit;
mod front;
mod holders;
mod ledger;
mod moments;
mod named;
mod oom;
mod page;
mod palette;
mod settings;
mod source;
mod table;
mod timeline;
mod verdict;
pub(crate) mod whatif;

use gpuheap_explain::Report;

use page::Page;

/// The least width that a report is laid out for; a [`Style`] with less gets this.
pub const MIN_WIDTH: usize = 40;

/// Lines that the first part should take, so that it stands on one screen.
const FIRST_SCREEN: usize = 30;

/// How text is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// Columns; no line takes more.
    pub width: usize,
    /// Whether escape sequences colour the text. Nothing is said by colour alone.
    pub color: bool,
    /// Whether characters beyond ASCII may be used.
    pub unicode: bool,
    /// Whether everything is shown, not only what fits on one screen.
    pub details: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self { width: 80, color: false, unicode: true, details: false }
    }
}

/// The timeline alone, in plain text; empty if there is none.
pub(crate) fn drawing(report: &Report) -> String {
    timeline::drawing(report, Style::default())
}

/// What a recording means: the answer on one screen, then everything else.
pub(crate) fn report(report: &Report, style: Style) -> String {
    let mut above = Page::new(style);
    verdict::show(&mut above, report);
    ledger::show(&mut above, report);
    let mut below = Page::new(style);
    holders::show_first(&mut below, report);
    facts::show(&mut below, report);

    let mut page = above;
    let left = FIRST_SCREEN.saturating_sub(page.len() + below.len());
    timeline::show(&mut page, report, left);
    page.append(below);
    if style.details {
        findings::show(&mut page, report);
        oom::show(&mut page, report);
        holders::show_all(&mut page, report);
        named::show(&mut page, report);
        classes::show(&mut page, report);
        moments::show(&mut page, report);
        source::show(&mut page, report);
    }
    settings::show(&mut page, report);
    page.finish()
}
