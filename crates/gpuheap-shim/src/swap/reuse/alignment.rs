//! Which launch of the step before a launch corresponds to.
//!
//! Weights stay where they are, and the same kernels use them in each step: the launches since a kernel was last launched
//! on an address are as many as a step has, for most addresses of which that is so at all. Memory of other tensors is used
//! again by chance, after any number of launches. So each launch has a vote, and when some in turn agree, the distance to
//! the step before is theirs. A step that has a launch more than the one before moves it by one, and its next weights tell.

use crate::swap::{LEAST, mixed};

/// Places in the table: a power of two.
const PLACES: usize = 1 << 18;
/// So many launches in turn have to agree on another distance.
const AGREE: u32 = 3;

/// What is known of a program's steps.
pub(super) struct Alignment {
    /// Kernels with addresses, hashed, and the launches that had them last; the newer in place of the older.
    last: Box<[(u64, u64)]>,
    distance: Option<u64>,
    /// Another distance, and how many votes in turn it has.
    other: u64,
    agreeing: u32,
}

impl Alignment {
    pub(super) fn new() -> Self {
        Self { last: vec![(0, 0); PLACES].into_boxed_slice(), distance: None, other: 0, agreeing: 0 }
    }

    /// A launch, by its number. Gives how many launches ago the one was that it corresponds to, once that is known.
    #[inline]
    pub(super) fn launched(&mut self, launch: u64, kernel: u64, addresses: &[u64]) -> Option<u64> {
        let mut vote = None;
        for address in addresses {
            let key = mixed(kernel, *address);
            let place = &mut self.last[usize::try_from(key >> 40).unwrap_or(0) % PLACES];
            if place.0 == key && vote.is_none() {
                // Layers repeat within a step.
                vote = Some(launch - place.1).filter(|distance| *distance >= LEAST as u64);
            }
            *place = (key, launch);
        }
        if let Some(vote) = vote {
            self.count(vote);
        }
        self.distance
    }

    fn count(&mut self, vote: u64) {
        if self.distance == Some(vote) {
            self.agreeing = 0;
            return;
        }
        self.agreeing = if vote == self.other { self.agreeing + 1 } else { 1 };
        self.other = vote;
        if self.agreeing >= AGREE {
            (self.distance, self.agreeing) = (Some(vote), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step: each layer's kernel on a weight, and on memory that is elsewhere in each step.
    fn step(alignment: &mut Alignment, launch: &mut u64, turn: u64, extra: bool) -> Option<u64> {
        let mut found = None;
        for layer in 0..400_u64 {
            let other = (turn * 7919 + layer * 31) % 500;
            found = alignment.launched(*launch, layer % 4 + 1, &[(layer + 1) << 25, (10_000 + other) << 25]);
            *launch += 1;
            if extra && layer == 100 {
                alignment.launched(*launch, 77, &[]);
                *launch += 1;
            }
        }
        found
    }

    #[test]
    fn weights_tell_how_long_a_step_is() {
        let (mut alignment, mut launch) = (Alignment::new(), 0);
        assert_eq!(step(&mut alignment, &mut launch, 0, false), None);
        assert_eq!(step(&mut alignment, &mut launch, 1, false), Some(400));
        assert_eq!(step(&mut alignment, &mut launch, 2, true), Some(401));
        assert_eq!(step(&mut alignment, &mut launch, 3, false), Some(400));
    }

    #[test]
    fn short_loops_and_programs_without_steps_have_none() {
        let mut alignment = Alignment::new();
        assert!((0..3000).all(|launch| alignment.launched(launch, 1, &[(launch % 50) << 25]).is_none()));
        let mut alignment = Alignment::new();
        let scattered = |launch: u64| mixed(mixed(1, launch), 5) >> 50;
        assert!((0..20_000).all(|launch| alignment.launched(launch, 1, &[scattered(launch)]).is_none()));
    }
}
