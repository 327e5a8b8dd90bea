//! Colours, letters and signs. Only the 16 colours that every terminal has, in the shades that its user chose; nothing
//! is said by colour alone.

use gpuheap_explain::{Class, VerdictKind};
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

/// What the terminal can show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Theme {
    pub(crate) color: bool,
    pub(crate) unicode: bool,
}

#[expect(clippy::unused_self, reason = "every style is asked for in the same way")]
impl Theme {
    fn fg(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    pub(crate) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(crate) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) fn code(self) -> Style {
        self.fg(Color::Cyan)
    }

    pub(crate) fn alarm(self) -> Style {
        self.fg(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn reserved(self) -> Style {
        self.fg(Color::Yellow)
    }

    pub(crate) fn allocated(self) -> Style {
        self.fg(Color::Blue)
    }

    pub(crate) fn verdict(self, kind: VerdictKind) -> Style {
        let color = match kind {
            VerdictKind::Healthy => Color::Green,
            VerdictKind::Leak | VerdictKind::Oom => Color::Red,
            _ => Color::Yellow,
        };
        self.fg(color).add_modifier(Modifier::BOLD)
    }

    /// Text about a class.
    pub(crate) fn class(self, class: Class) -> Style {
        match class_color(class) {
            Some(color) => self.fg(color),
            None if class == Class::Rounding => self.faint(),
            None => Style::new(),
        }
    }

    /// A cell that is filled with a class.
    pub(crate) fn fill(self, class: Class) -> Style {
        if !self.color {
            return Style::new();
        }
        let style = Style::new().fg(Color::Black);
        match class_color(class) {
            Some(color) => style.bg(color),
            None if class == Class::Rounding => Style::new().fg(Color::White).bg(Color::DarkGray),
            None => style.bg(Color::Gray),
        }
    }

    /// A cell of memory that waits for another stream.
    pub(crate) fn waiting(self) -> Style {
        if self.color { Style::new().fg(Color::Black).bg(Color::Yellow) } else { Style::new() }
    }
}

fn class_color(class: Class) -> Option<Color> {
    Some(match class {
        Class::Parameters => Color::Blue,
        Class::Gradients => Color::Cyan,
        Class::OptimizerState => Color::Magenta,
        Class::Activations => Color::Green,
        Class::Inputs => Color::LightBlue,
        Class::Temporaries => Color::LightCyan,
        Class::Communication => Color::LightMagenta,
        Class::Cache => Color::LightGreen,
        Class::Workspace => Color::LightYellow,
        Class::Unknown | Class::Rounding => return None,
    })
}

/// The letter of a class.
pub(crate) fn letter(class: Class) -> char {
    match class {
        Class::Parameters => 'P',
        Class::Gradients => 'G',
        Class::OptimizerState => 'O',
        Class::Activations => 'A',
        Class::Inputs => 'I',
        Class::Temporaries => 'T',
        Class::Communication => 'C',
        Class::Cache => 'K',
        Class::Workspace => 'W',
        Class::Unknown => 'U',
        Class::Rounding => 'R',
    }
}

/// A bar of at most `columns` columns that shows the share of `part` in `whole`.
pub(crate) fn bar(part: u64, whole: u64, columns: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = scaled(part, whole, columns * 8);
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// The block that fills `eighths` of a cell, from 1 to 8.
pub(crate) fn eighth(eighths: usize) -> char {
    const UP: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    UP[eighths.clamp(1, 8) - 1]
}

/// `steps` of `part` in `whole`, rounded; at least 1 if `part` is not nothing.
pub(crate) fn scaled(part: u64, whole: u64, steps: usize) -> usize {
    if part == 0 || whole == 0 {
        return 0;
    }
    let (steps, part, whole) = (steps as u128, u128::from(part.min(whole)), u128::from(whole));
    usize::try_from((part * steps + whole / 2) / whole).unwrap_or(0).max(1)
}

/// Replaces everything beyond ASCII, for terminals that show nothing else.
pub(crate) fn fold(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if !cell.symbol().is_ascii() {
            let sign = cell.symbol().chars().next().map_or(' ', ascii);
            cell.set_char(sign);
        }
    }
}

fn ascii(sign: char) -> char {
    match sign {
        '─' | '━' | '–' | '—' | '−' | '▂' | '▃' => '-',
        '┌' | '┐' | '└' | '┘' | '├' | '┤' | '┴' => '+',
        '█' | '▇' | '▉' | '▊' | '▋' => '#',
        '▄' | '▅' | '▆' => '=',
        '▁' => '_',
        '│' | '┃' | '┊' | '▌' | '▍' | '▎' | '▏' => '|',
        '·' | '…' | '┈' | '•' => '.',
        '×' => 'x',
        '◆' => '*',
        '▲' | '↑' => '^',
        '▼' | '▾' | '↓' => 'v',
        '▸' | '→' => '>',
        '←' => '<',
        'µ' | 'μ' => 'u',
        '\u{a0}' | '\u{202f}' => ' ',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_shares() {
        assert_eq!(bar(0, 100, 10), "");
        assert_eq!(bar(1, 1_000_000, 10), "▏");
        assert_eq!(bar(55, 100, 10), "█████▌");
        assert_eq!(bar(u64::MAX, 1, 10), "██████████");
        assert_eq!(bar(1, 0, 10), "");
    }

    #[test]
    fn every_class_has_its_own_letter() {
        let letters: std::collections::BTreeSet<char> = Class::ALL.into_iter().map(letter).collect();
        assert_eq!(letters.len(), Class::ALL.len());
    }
}
