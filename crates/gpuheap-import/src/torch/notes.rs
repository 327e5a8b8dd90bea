//! Odd but readable things, counted, and told in one sentence each.

use std::collections::BTreeMap;

use gpuheap_record::Note;

/// How many different texts are told of one kind of oddity.
const TOLD: usize = 8;

/// What was odd. The order is the order of the notes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Oddity {
    /// Neither events nor segments.
    Nothing,
    /// Events of an action that is not known.
    Action(String),
    /// Events without an action.
    NoAction,
    /// Entries of a list that do not belong there.
    Entry(&'static str),
    /// A list or dict that is something else than it should be.
    Part(&'static str),
    /// Stacks that are not lists of frames.
    Stack,
    /// Blocks in a state that is not known.
    State(String),
    /// Segments without an address.
    SegmentAddress,
    /// Annotations that are neither a start nor an end.
    Stage,
    /// Bytes after the end, at least that many.
    Trailing,
    /// More bytes after the end than were looked at.
    LongTrailing,
}

/// Oddities by how often they were met.
#[derive(Default)]
pub(crate) struct Notes(BTreeMap<Oddity, u64>);

impl Notes {
    pub(crate) fn count(&mut self, oddity: Oddity) {
        self.add(oddity, 1);
    }

    #[inline]
    pub(crate) fn add(&mut self, oddity: Oddity, times: u64) {
        if times > 0 {
            *self.0.entry(oddity).or_default() += times;
        }
    }

    /// Counts something that quotes a text of the file; beyond a few different texts, the text is dropped.
    pub(crate) fn quote(&mut self, kind: fn(String) -> Oddity, text: &str) {
        let quoted = kind(text.to_owned());
        let known = self.0.keys().filter(|known| std::mem::discriminant(*known) == std::mem::discriminant(&quoted));
        let room = known.count() < TOLD;
        if room || self.0.contains_key(&quoted) {
            self.count(quoted);
        } else {
            self.count(kind("…".to_owned()));
        }
    }

    pub(crate) fn into_notes(self) -> Vec<Note> {
        self.0.into_iter().map(|(oddity, times)| Note(sentence(&oddity, times))).collect()
    }
}

fn sentence(oddity: &Oddity, times: u64) -> String {
    let many = |one: &str, more: &str| {
        let (thing, was) = if times == 1 { (one, "was") } else { (more, "were") };
        format!("{times} {thing} {was}")
    };
    match oddity {
        Oddity::Nothing => "The snapshot holds neither events nor segments: recording was perhaps never switched on, \
                            or the program used no GPU memory."
            .to_owned(),
        Oddity::Action(action) => {
            format!("{} of the unknown kind `{action}`; kept as recorded.", many("event", "events"))
        }
        Oddity::NoAction => format!("{} without an action; kept as recorded.", many("event", "events")),
        Oddity::Entry(list) => format!("{} not what belongs there and left out.", {
            many(&format!("entry of `{list}`"), &format!("entries of `{list}`"))
        }),
        Oddity::Part(key) => format!("`{key}` has a form that is not known and was left out."),
        Oddity::Stack => format!("{} in a form that is not known and left empty.", many("stack", "stacks")),
        Oddity::State(state) => format!(
            "{} in the unknown state `{state}`; taken as {}.",
            many("block", "blocks"),
            if state.starts_with("active") { "allocated" } else { "free" }
        ),
        Oddity::SegmentAddress => format!("{} without an address.", many("segment", "segments")),
        Oddity::Stage => format!("{} neither a start nor an end and left out.", many("annotation", "annotations")),
        Oddity::Trailing => format!("{times} bytes follow the end of the snapshot and were ignored."),
        Oddity::LongTrailing => "More data follows the end of the snapshot and was ignored.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_oddity_is_one_sentence() {
        let mut notes = Notes::default();
        for _ in 0..3 {
            notes.quote(Oddity::Action, "foo");
        }
        for kind in 0..20 {
            notes.quote(Oddity::State, &format!("state{kind}"));
        }
        notes.add(Oddity::Stack, 0);
        let notes = notes.into_notes();
        assert_eq!(notes[0].0, "3 events were of the unknown kind `foo`; kept as recorded.");
        assert_eq!(notes.len(), 1 + TOLD + 1);
    }
}
