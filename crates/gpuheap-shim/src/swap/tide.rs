//! What makes room in a program of which no period is known. Training goes forth and back: what the forward pass made
//! first is used last in the backward pass. So, going forth, what was used longest ago makes room; coming back, what was
//! used since the turn does, as it has served, and what was not is what comes next.
//!
//! Forth and back are told by what is asked for: as long as room is made for new memory the program goes forth, and it
//! comes back as soon as kernels want what had to go for that.

use std::collections::BTreeSet;
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
    /// Numbers of chunks that made room for that.
    gone: BTreeSet<u32>,
    is_back: bool,
}

static TIDE: Mutex<Tide> = Mutex::new(Tide { turn: 0, gone: BTreeSet::new(), is_back: false });

/// A step is over.
pub(super) fn begin() {
    *lock(&TIDE) = Tide { turn: 0, gone: BTreeSet::new(), is_back: false };
}

/// Kernels want chunks that are on the host.
pub(super) fn wanted(mut numbers: impl Iterator<Item = u32>) {
    let mut tide = lock(&TIDE);
    let came_back = numbers.any(|number| tide.gone.contains(&number));
    tide.is_back |= came_back;
}

/// Chunks went for new memory.
pub(super) fn gone(chunks: &[Arc<Chunk>]) {
    let mut tide = lock(&TIDE);
    if !tide.is_back {
        tide.turn = TEMPERATURE.launches();
        tide.gone.extend(chunks.iter().map(|chunk| chunk.number));
    }
}

/// Of chunks on a device, those that may make room, the best first.
pub(super) fn victims<'a>(chunks: impl Iterator<Item = &'a Arc<Chunk>>) -> Vec<&'a Arc<Chunk>> {
    let (now, tide) = (TEMPERATURE.launches(), lock(&TIDE));
    let mut found: Vec<(u64, &Arc<Chunk>)> = chunks.map(|chunk| (TEMPERATURE.last_use(chunk.number), chunk)).collect();
    found.retain(|(last, _)| is_free(*last, now, (tide.turn, tide.is_back)));
    found.sort_by_key(|(last, _)| *last);
    found.into_iter().map(|(_, chunk)| chunk).collect()
}

/// Whether a chunk that was used last by a launch may go before launch `now`.
fn is_free(last: u64, now: u64, (turn, is_back): (u64, bool)) -> bool {
    last.saturating_add(LATE) < now && (!is_back || last > turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn going_forth_the_old_goes_and_coming_back_what_has_served() {
        for (last, forth, back) in [(10, true, false), (900, true, false), (1500, true, true), (1900, false, false)] {
            assert_eq!(is_free(last, 2000, (1000, false)), forth, "{last} forth");
            assert_eq!(is_free(last, 2000, (1000, true)), back, "{last} back");
        }
    }
}
