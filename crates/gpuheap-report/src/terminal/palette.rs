//! What each piece of text is, and the colour that this gets.

use anstyle::{AnsiColor, Style};
use gpuheap_explain::{Class, Confidence, PartKind, VerdictKind};

/// What a piece of text is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Plain,
    Strong,
    Heading,
    Faint,
    Code,
    Verdict(VerdictKind),
    Class(Class),
    Part(PartKind),
    Allocated,
    Reserved,
    Alarm,
}

impl Role {
    /// Only the 16 colours that every terminal has, in the shades that its user chose.
    pub(super) fn style(self) -> Style {
        let fg = |color: AnsiColor| color.on_default();
        match self {
            Self::Plain => Style::new(),
            Self::Strong | Self::Heading => Style::new().bold(),
            Self::Faint => Style::new().dimmed(),
            Self::Code => fg(AnsiColor::Cyan),
            Self::Verdict(VerdictKind::Healthy) => fg(AnsiColor::Green).bold(),
            Self::Verdict(VerdictKind::Leak | VerdictKind::Oom) | Self::Alarm => fg(AnsiColor::Red).bold(),
            Self::Verdict(_) => fg(AnsiColor::Yellow).bold(),
            Self::Class(class) => class_color(class),
            Self::Part(kind) => part_color(kind),
            Self::Allocated => fg(AnsiColor::Blue),
            Self::Reserved => fg(AnsiColor::Yellow),
        }
    }
}

fn class_color(class: Class) -> Style {
    match class {
        Class::Parameters => AnsiColor::Blue.on_default(),
        Class::Gradients => AnsiColor::Cyan.on_default(),
        Class::OptimizerState => AnsiColor::Magenta.on_default(),
        Class::Activations => AnsiColor::Green.on_default(),
        Class::Inputs => AnsiColor::BrightBlue.on_default(),
        Class::Temporaries => AnsiColor::BrightCyan.on_default(),
        Class::Communication => AnsiColor::BrightMagenta.on_default(),
        Class::Cache => AnsiColor::BrightGreen.on_default(),
        Class::Workspace => AnsiColor::BrightYellow.on_default(),
        Class::Unknown => Style::new(),
        Class::Rounding => Style::new().dimmed(),
    }
}

fn part_color(kind: PartKind) -> Style {
    match kind {
        PartKind::Class | PartKind::PrivatePool => Style::new(),
        PartKind::Rounding | PartKind::Outside => Style::new().dimmed(),
        PartKind::Pending | PartKind::Free => AnsiColor::Yellow.on_default(),
        PartKind::Stranded => AnsiColor::Red.on_default(),
    }
}

/// Text that one cannot be sure of stands back.
pub(super) fn by_confidence(confidence: Confidence) -> Role {
    if confidence == Confidence::High { Role::Plain } else { Role::Faint }
}
