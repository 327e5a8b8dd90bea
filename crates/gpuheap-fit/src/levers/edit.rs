//! Changes to a list of events, carried out at once.

use crate::trace::Event;

/// Events to add and to leave out.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    /// Before which event, and what: kept in the order in which they were asked for.
    added: Vec<(usize, Event)>,
    removed: Vec<usize>,
}

impl Edits {
    /// Adds `event` before the one at `at`.
    pub(crate) fn before(&mut self, at: usize, event: Event) {
        self.added.push((at, event));
    }

    /// Adds `event` after the one at `at`.
    pub(crate) fn after(&mut self, at: usize, event: Event) {
        self.added.push((at + 1, event));
    }

    /// Leaves the event at `at` out.
    pub(crate) fn remove(&mut self, at: usize) {
        self.removed.push(at);
    }

    /// Whether nothing is to be changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }

    /// The changed list, and for each event of the old one where it, or what followed it, now is.
    pub(crate) fn apply(mut self, events: &[Event]) -> (Vec<Event>, Vec<usize>) {
        self.added.sort_by_key(|&(at, _)| at);
        self.removed.sort_unstable();
        let mut added = self.added.into_iter().peekable();
        let mut removed = self.removed.into_iter().peekable();
        let mut result = Vec::with_capacity(events.len() + added.len());
        let mut places = Vec::with_capacity(events.len() + 1);
        for (at, &event) in events.iter().enumerate() {
            while let Some((_, event)) = added.next_if(|&(before, _)| before <= at) {
                result.push(event);
            }
            places.push(result.len());
            let mut keep = true;
            while removed.next_if_eq(&at).is_some() {
                keep = false;
            }
            if keep {
                result.push(event);
            }
        }
        result.extend(added.map(|(_, event)| event));
        places.push(result.len());
        (result, places)
    }
}
