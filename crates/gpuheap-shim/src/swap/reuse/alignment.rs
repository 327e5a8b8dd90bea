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

/// And so many times as many on one that is much longer.
const LONGER: u32 = 16;
/// After so many steps in which no launch agreed there are none.
const OVER: u64 = 4;

/// What is known of a program's steps.
pub(super) struct Alignment {
    /// Kernels with addresses, hashed, and the launches that had them last; the newer in place of the older.
    last: Box<[(u64, u64)]>,
    distance: Option<u64>,
    /// The launch that agreed last.
    agreed: u64,
    /// Another distance, and how many votes in turn it has.
    other: u64,
    agreeing: u32,
}

impl Alignment {
    pub(super) fn new() -> Self {
        Self { last: vec![(0, 0); PLACES].into_boxed_slice(), distance: None, agreed: 0, other: 0, agreeing: 0 }
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
            self.count(vote, launch);
        }
        if self.distance.is_some_and(|distance| launch - self.agreed > OVER * distance) {
            self.distance = None;
        }
        self.distance
    }

    /// That distance, as the last launch left it.
    pub(super) fn distance(&self) -> Option<u64> {
        self.distance
    }

    fn count(&mut self, vote: u64, launch: u64) {
        if self.distance == Some(vote) {
            (self.agreeing, self.agreed) = (0, launch);
            return;
        }
        self.agreeing = if vote == self.other { self.agreeing + 1 } else { 1 };
        self.other = vote;
        // What is used seldom has long distances, and no steps by them.
        let is_longer = self.distance.is_some_and(|distance| vote > distance + distance / 4);
        let enough = if is_longer { LONGER * AGREE } else { AGREE };
        if self.agreeing >= enough {
            (self.distance, self.agreeing, self.agreed) = (Some(vote), 0, launch);
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

    #[test]
    fn steps_that_are_over_are_forgotten() {
        let (mut alignment, mut launch) = (Alignment::new(), 0);
        for turn in 0..3 {
            step(&mut alignment, &mut launch, turn, false);
        }
        let scattered = |launch: u64| mixed(mixed(1, launch), 5) >> 20 << 9;
        let found = (0..500_000).map(|_| {
            launch += 1;
            alignment.launched(launch, 1000 + launch % 7, &[scattered(launch)])
        });
        assert_eq!(found.last(), Some(None), "half a million launches without a step");
    }

    /// A kernel that three tensors are used by once in a long time (an evaluation) takes the step's place.
    #[test]
    fn what_is_seldom_used_does_not_make_a_step() {
        let (mut alignment, mut launch) = (Alignment::new(), 0);
        let mut found = std::collections::BTreeSet::new();
        for turn in 0..100 {
            step(&mut alignment, &mut launch, turn, false);
            if turn % 20 == 0 {
                for seldom in 0..6_u64 {
                    let now = alignment.launched(launch, 500, &[(seldom + 20_000) << 25]);
                    if turn > 2 {
                        found.insert(now);
                    }
                    launch += 1;
                }
            }
        }
        assert!(found.iter().all(|found| found.is_none_or(|found| found < 500)), "found {found:?}");
    }
}
