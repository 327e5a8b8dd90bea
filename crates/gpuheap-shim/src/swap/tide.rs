//! What makes room in a program of which no period is known. Training goes forth and back: what the forward pass made
//! first is used last in the backward pass. So, going forth, what was used longest ago makes room; coming back, what was
//! used since the turn does, as it has served, and what was not is what comes next, the oldest of it last.
//!
//! Forth and back are told by what is asked for: as long as room is made for new memory the program goes forth, and it
//! comes back as soon as kernels want what had to go for that late. What went early and is wanted (the weights of an
//! embedding that are those of the head as well) says nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::chunks::Chunk;
use crate::state::lock;
use crate::temperature::TEMPERATURE;

/// Launches of late, whose memory may be used again at once: about a layer and a half of a network.
const LATE: u64 = 200;

/// Where the program is in its step.
struct Tide {
    /// The launch before which room was made for new memory last, going forth.
    turn: u64,
    /// Numbers of chunks that made room for that, and in which order.
    gone: BTreeMap<u32, usize>,
    is_back: bool,
}

static TIDE: Mutex<Tide> = Mutex::new(Tide::new());

impl Tide {
    const fn new() -> Self {
        Self { turn: 0, gone: BTreeMap::new(), is_back: false }
    }

    /// Kernels want a chunk that is on the host.
    fn wanted(&mut self, number: u32) {
        let went_late = |order: &usize| order * 3 >= self.gone.len() * 2;
        self.is_back |= self.gone.get(&number).is_some_and(went_late);
    }

    /// A chunk went for new memory before a launch.
    fn went(&mut self, number: u32, launch: u64) {
        if !self.is_back {
            self.turn = launch;
            let order = self.gone.len();
            self.gone.entry(number).or_insert(order);
        }
    }

    /// How good it is that a chunk goes before launch `now` that was used last by another: the least is the best. Nothing
    /// if it may be used again at once.
    fn rank(&self, last: u64, now: u64) -> Option<(bool, u64)> {
        let has_served = self.is_back && last > self.turn;
        (last.saturating_add(LATE) < now).then_some((self.is_back && !has_served, last))
    }
}

/// A step is over.
pub(super) fn begin() {
    *lock(&TIDE) = Tide::new();
}

/// Kernels want chunks that are on the host.
pub(super) fn wanted(numbers: &[u32]) {
    let mut tide = lock(&TIDE);
    for number in numbers {
        tide.wanted(*number);
    }
}

/// Chunks went for new memory.
pub(super) fn gone(chunks: &[Arc<Chunk>]) {
    let (mut tide, now) = (lock(&TIDE), TEMPERATURE.launches());
    for chunk in chunks {
        tide.went(chunk.number, now);
    }
}

/// Of chunks on a device, those that may make room, the best first.
pub(super) fn victims<'a>(chunks: impl Iterator<Item = &'a Arc<Chunk>>) -> Vec<&'a Arc<Chunk>> {
    let (now, tide) = (TEMPERATURE.launches(), lock(&TIDE));
    let ranked = |chunk: &'a Arc<Chunk>| Some((tide.rank(TEMPERATURE.last_use(chunk.number), now)?, chunk));
    let mut found: Vec<((bool, u64), &Arc<Chunk>)> = chunks.filter_map(ranked).collect();
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().map(|(_, chunk)| chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of chunks that were used last by these launches, those that may go before launch 2,000, the best first.
    fn order(tide: &Tide, lasts: &[u64]) -> Vec<u64> {
        let mut ranked: Vec<_> = lasts.iter().filter_map(|last| tide.rank(*last, 2000)).collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, last)| last).collect()
    }

    #[test]
    fn going_forth_the_oldest_goes_and_coming_back_what_has_served() {
        let mut tide = Tide::new();
        (0..9).for_each(|number| tide.went(number, 1000));
        let lasts = [1500, 10, 1900, 900, 1100];
        assert_eq!(order(&tide, &lasts), [10, 900, 1100, 1500]);
        tide.wanted(0);
        tide.wanted(77);
        assert_eq!(order(&tide, &lasts), [10, 900, 1100, 1500], "what went first, or never, says nothing");
        tide.wanted(8);
        assert_eq!(order(&tide, &lasts), [1100, 1500, 10, 900]);
        tide.went(10, 1800);
        assert_eq!(tide.turn, 1000, "the turn is where it was");
    }
}
