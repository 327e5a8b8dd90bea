//! The texts of functions, files and stacks.

use std::borrow::Cow;
use std::fmt::Write as _;

use gpuheap_explain::AllocationView;
use gpuheap_record::{DRIVER_FILE, FrameId, Recording, StackId, StringId};

/// Names longer than this many bytes are cut.
const MOST_BYTES: usize = 2000;
/// Of deeper stacks only the innermost frames are shown.
pub(crate) const MOST_DEPTH: usize = 500;
/// Of longer texts of stacks the outermost frames are left out.
const MOST_STACK_BYTES: usize = 16 * 1024;
/// Stands for names that are not known.
const NO_NAME: &str = "?";

/// The strings of a recording, made harmless: valid in every format, and not too long.
pub(crate) struct Names<'a> {
    recording: &'a Recording,
    texts: Vec<Cow<'a, str>>,
}

/// One frame of a stack as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Shown {
    /// A frame of the recording.
    Frame(FrameId),
    /// No frame but a label.
    Label(&'static str),
}

/// Where something was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Place {
    stack: StackId,
    /// For a block without frames that a backward pass made: the stack that started the pass.
    root: StackId,
}

impl Place {
    pub(crate) fn of(allocation: &AllocationView) -> Self {
        Self { stack: allocation.stack, root: allocation.backward_root }
    }

    /// Whether nothing is known of it.
    pub(crate) fn is_unknown(self) -> bool {
        self.stack == StackId::default() && self.root == StackId::default()
    }

    /// Its frames, innermost first. There is always at least one.
    pub(crate) fn frames(self, recording: &Recording) -> impl Iterator<Item = Shown> + '_ {
        let empty = StackId::default();
        let label = if self.stack != empty {
            None
        } else if self.root != empty {
            Some(Shown::Label("backward pass"))
        } else {
            Some(Shown::Label("no frames recorded"))
        };
        let stack = if self.stack == empty { self.root } else { self.stack };
        label.into_iter().chain(recording.frames_of(stack).map(Shown::Frame)).take(MOST_DEPTH)
    }
}

impl<'a> Names<'a> {
    pub(crate) fn new(recording: &'a Recording) -> Self {
        Self { recording, texts: recording.strings.iter().map(|(_, text)| harmless(text, None)).collect() }
    }

    /// The same for texts of stacks, in which a semicolon ends a frame: it becomes a comma.
    pub(crate) fn folded(recording: &'a Recording) -> Self {
        Self { recording, texts: recording.strings.iter().map(|(_, text)| harmless(text, Some(';'))).collect() }
    }

    /// The function; `?` where it is not known.
    pub(crate) fn function(&self, frame: Shown) -> &str {
        match frame {
            Shown::Frame(frame) => match self.text(self.recording.frame(frame).function) {
                "" => NO_NAME,
                name => name,
            },
            Shown::Label(label) => label,
        }
    }

    /// The file; empty where it is not known, and for frames that stand for no code.
    pub(crate) fn file(&self, frame: Shown) -> &str {
        let file = match frame {
            Shown::Frame(frame) => self.text(self.recording.frame(frame).file),
            Shown::Label(_) => "",
        };
        if file == DRIVER_FILE { "" } else { file }
    }

    /// The line, from 1; 0 where it is not known.
    pub(crate) fn line(&self, frame: Shown) -> u32 {
        match frame {
            Shown::Frame(frame) => self.recording.frame(frame).line,
            Shown::Label(_) => 0,
        }
    }

    fn text(&self, id: StringId) -> &str {
        self.texts.get(id.index()).map_or("", |text| text)
    }

    /// Adds `train (train.py:16)`.
    pub(crate) fn push_frame(&self, text: &mut String, frame: Shown) {
        text.push_str(self.function(frame));
        let (file, line) = (self.file(frame), self.line(frame));
        if !file.is_empty() {
            text.push_str(" (");
            text.push_str(file);
            if line > 0 {
                let _ = write!(text, ":{line}");
            }
            text.push(')');
        }
    }

    /// Sets `text` to the folded stack, outermost frame first: `main (run.py:3);train (train.py:16)`.
    pub(crate) fn fold(&self, text: &mut String, place: Place) {
        text.clear();
        let mut frames = Vec::new();
        let mut bytes = 0;
        for frame in place.frames(self.recording) {
            bytes += self.function(frame).len() + self.file(frame).len() + 16;
            if bytes > MOST_STACK_BYTES && !frames.is_empty() {
                text.push('…');
                break;
            }
            frames.push(frame);
        }
        for frame in frames.into_iter().rev() {
            if !text.is_empty() {
                text.push(';');
            }
            self.push_frame(text, frame);
        }
    }
}

/// A text without control characters and without `separator`, cut if it is too long.
pub(crate) fn harmless(text: &str, separator: Option<char>) -> Cow<'_, str> {
    let end = (0..=MOST_BYTES.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let text = &text[..end];
    let is_harmless = |character: char| !character.is_control() && Some(character) != separator;
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let replaced = |character: char| match character {
        _ if is_harmless(character) => character,
        ';' => ',',
        _ => char::REPLACEMENT_CHARACTER,
    };
    Cow::Owned(text.chars().map(replaced).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_harmless() {
        assert!(matches!(harmless("train.py", Some(';')), Cow::Borrowed("train.py")));
        assert_eq!(harmless("a\0b\n;", None), "a\u{fffd}b\u{fffd};");
        assert_eq!(harmless("a;b\r", Some(';')), "a,b\u{fffd}");
        assert_eq!(harmless(&"é".repeat(5000), None).len(), 2000);
        assert_eq!(harmless("=cmd()", None), "=cmd()");
    }
}
