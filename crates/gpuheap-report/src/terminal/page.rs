//! Lines of coloured text that never take more columns than there are.

use std::fmt::Write;

use super::Style;
use super::palette::Role;
use crate::text::{SET_CONF, ascii, char_width, conf_line, sanitize, width, wrap};

/// Columns of the labels at the left of fields.
pub(super) const LABEL: usize = 12;

/// One line: pieces of text, each with what it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    pieces: Vec<(Role, String)>,
}

impl Line {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn of(role: Role, text: &str) -> Self {
        Self::new().with(role, text)
    }

    pub(super) fn with(mut self, role: Role, text: &str) -> Self {
        self.push(role, text);
        self
    }

    /// Adds a piece; all text of a page comes through here, so nothing foreign reaches the terminal as it was.
    pub(super) fn push(&mut self, role: Role, text: &str) {
        let text = sanitize(text);
        if !text.is_empty() {
            self.pieces.push((role, text));
        }
    }

    /// This line and then `other`.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.pieces.extend(other.pieces);
        self
    }

    pub(super) fn width(&self) -> usize {
        self.pieces.iter().map(|(_, text)| width(text)).sum()
    }
}

/// The lines of a report.
#[derive(Debug)]
pub(super) struct Page {
    style: Style,
    lines: Vec<Line>,
}

impl Page {
    pub(super) fn new(style: Style) -> Self {
        Self { style, lines: Vec::new() }
    }

    pub(super) fn width(&self) -> usize {
        self.style.width
    }

    pub(super) fn style(&self) -> Style {
        self.style
    }

    pub(super) fn details(&self) -> bool {
        self.style.details
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.lines.append(&mut other.lines);
    }

    pub(super) fn line(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// An empty line, unless the page starts here or the line before is empty.
    pub(super) fn gap(&mut self) {
        if self.lines.last().is_some_and(|line| !line.pieces.is_empty()) {
            self.lines.push(Line::new());
        }
    }

    pub(super) fn heading(&mut self, text: &str) {
        self.gap();
        self.paragraph("", 0, Role::Heading, text);
    }

    /// Wrapped text after `lead`; further lines start `indent` columns in.
    pub(super) fn paragraph(&mut self, lead: &str, indent: usize, role: Role, text: &str) {
        let text = self.folded(text);
        let first = self.width().saturating_sub(width(lead));
        let rest = self.width().saturating_sub(indent);
        for (index, part) in wrap(&text, first, rest).iter().enumerate() {
            let lead = if index == 0 { lead.to_owned() } else { " ".repeat(indent) };
            self.line(Line::of(Role::Plain, &lead).with(role, part));
        }
    }

    /// A label and wrapped text beside it.
    pub(super) fn field(&mut self, label: &str, role: Role, text: &str) {
        let text = self.folded(text);
        let room = self.width().saturating_sub(LABEL);
        for (index, part) in wrap(&text, room, room).iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            self.line(Line::of(Role::Faint, &format!("{label:<LABEL$}")).with(role, part));
        }
    }

    /// A label and the line of a shell that sets `conf`, in a form that can be copied as it stands wherever that is
    /// possible: beside the label, else without it, else broken where a shell puts it together again.
    pub(super) fn settings(&mut self, label: &str, conf: &str) {
        let line = self.folded(&conf_line(conf));
        if LABEL + width(&line) <= self.width() {
            return self.field(label, Role::Code, &line);
        }
        self.field(label, Role::Plain, "");
        self.command(&line);
    }

    /// The line of a shell that sets settings, from the first column on.
    pub(super) fn command(&mut self, line: &str) {
        let line = self.folded(line);
        match line.strip_prefix(SET_CONF) {
            Some(value) if width(&line) > self.width() => {
                self.paragraph("", 0, Role::Code, &format!("{SET_CONF}\\"));
                self.paragraph("", 0, Role::Code, value);
            }
            _ => self.paragraph("", 0, Role::Code, &line),
        }
    }

    /// Text that went through all that changes its width.
    pub(super) fn folded(&self, text: &str) -> String {
        let text = sanitize(text);
        if self.style.unicode { text } else { ascii(&text) }
    }

    /// All lines as text. A line that is too long in spite of all is cut.
    pub(super) fn finish(self) -> String {
        let Style { width: columns, color, unicode, .. } = self.style;
        let mut text = String::new();
        for line in &self.lines {
            let mut used = 0;
            let mut shown: Vec<(Role, String)> = Vec::new();
            for (role, piece) in &line.pieces {
                let piece = if unicode { piece.clone() } else { ascii(piece) };
                let mut kept = String::new();
                for character in piece.chars() {
                    used += char_width(character);
                    if used > columns {
                        break;
                    }
                    kept.push(character);
                }
                shown.push((*role, kept));
            }
            write_line(&mut text, &shown, color);
        }
        text
    }
}

fn write_line(text: &mut String, pieces: &[(Role, String)], color: bool) {
    // Spaces at the end of a line are of no use.
    let content = pieces.iter().rposition(|(_, piece)| !piece.trim_end().is_empty());
    for (index, (role, piece)) in pieces.iter().enumerate() {
        if content.is_none_or(|last| index > last) {
            break;
        }
        let piece = if content == Some(index) { piece.trim_end() } else { piece };
        let style = role.style();
        if color && !piece.trim().is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{style}{piece}{style:#}");
        } else {
            text.push_str(piece);
        }
    }
    text.push('\n');
}
