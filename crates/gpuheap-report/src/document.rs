//! What can be shown.

use gpuheap_explain::{Diff, Report, WhatIfReport};
use gpuheap_fit::Fit;
use serde::Serialize;

use crate::markdown;
use crate::terminal::{self, MIN_WIDTH, Style};

/// Something that has a form for terminals, for issues and pull requests, and for programs.
pub trait Document: Serialize {
    /// The text for a terminal of at least [`MIN_WIDTH`] columns. Use [`render`].
    #[doc(hidden)]
    fn terminal(&self, style: Style) -> String;

    /// The Markdown. Use [`to_markdown`].
    #[doc(hidden)]
    fn markdown(&self) -> String;
}

/// `document` as text for a terminal, every line with its line end.
#[must_use]
pub fn render(document: &impl Document, style: &Style) -> String {
    document.terminal(Style { width: style.width.max(MIN_WIDTH), ..*style })
}

/// `document` as GitHub-flavoured Markdown. It holds everything; most of it is folded.
#[must_use]
pub fn to_markdown(document: &impl Document) -> String {
    document.markdown()
}

impl Document for Report {
    fn terminal(&self, style: Style) -> String {
        terminal::report(self, style)
    }

    fn markdown(&self) -> String {
        markdown::report::to_markdown(self)
    }
}

impl Document for Diff {
    fn terminal(&self, style: Style) -> String {
        terminal::diff::render(self, style)
    }

    fn markdown(&self) -> String {
        markdown::diff::to_markdown(self)
    }
}

impl Document for Fit {
    fn terminal(&self, style: Style) -> String {
        terminal::fit::render(self, style)
    }

    fn markdown(&self) -> String {
        markdown::fit::to_markdown(self)
    }
}

impl Document for WhatIfReport {
    fn terminal(&self, style: Style) -> String {
        terminal::whatif::render(self, style)
    }

    fn markdown(&self) -> String {
        markdown::whatif::to_markdown(self)
    }
}
