//! What goes and what comes.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Wanted;
use crate::chunks::Chunk;
use crate::swap::reuse::Reuse;
use crate::swap::slack;
use crate::temperature::{TEMPERATURE, WORTH};

/// What is to move.
#[derive(Default)]
pub(super) struct Choice {
    /// Chunks that go.
    pub(super) outs: Vec<Arc<Chunk>>,
    /// Chunks that come.
    pub(super) backs: Vec<Arc<Chunk>>,
}

/// What is wanted comes, the soonest used first, as long as something is used later than that and not soon at all.
pub(super) fn by_reuse(chunks: &[Arc<Chunk>], wanted: &Wanted, room: u64, reuse: &mut Reuse) -> Choice {
    let mut distances = |is_chosen: &dyn Fn(&Chunk) -> bool| -> Vec<(u64, &Arc<Chunk>)> {
        let chosen = chunks.iter().filter(|chunk| is_chosen(chunk));
        chosen.map(|chunk| (reuse.distance(chunk.number), chunk)).collect()
    };
    let mut coming = distances(&|chunk| wanted.has(chunk.number) && chunk.is_spilled());
    let mut here = distances(&|chunk| !wanted.has(chunk.number) && !chunk.is_spilled());
    coming.sort_by_key(|(distance, _)| *distance);
    here.sort_by_key(|(distance, _)| *distance);
    let held: u64 = here.iter().map(|(_, chunk)| chunk.bytes as u64).sum();
    let stays_free = slack(held.saturating_add(room));
    let soon = reuse.soon();
    let (mut outs, mut backs, mut free) = (Vec::new(), Vec::new(), room);
    for (distance, chunk) in coming {
        let needed = chunk.bytes as u64 + stays_free;
        while free < needed {
            let Some((_, last)) = here.pop_if(|(last, _)| *last > distance.max(soon)) else { break };
            free += last.bytes as u64;
            outs.push(Arc::clone(last));
        }
        if free < chunk.bytes as u64 {
            break;
        }
        free -= chunk.bytes as u64;
        backs.push(Arc::clone(chunk));
    }
    Choice { outs, backs }
}

/// What is wanted comes, as far as others can make room that were not named for long; and then, what a graph reads often in
/// place of what it reads less: it may be a whole step, and use more than there is room for.
pub(super) fn by_chance(chunks: &[Arc<Chunk>], wanted: &Wanted, room: u64) -> Choice {
    // Those that a launch names, and those that what it names goes on in.
    let named = chunks.iter().filter(|chunk| wanted.has(chunk.number));
    let launch = named.map(|chunk| TEMPERATURE.last_use(chunk.number)).max().unwrap_or(u64::MAX);
    let is_wanted = |chunk: &&Arc<Chunk>| wanted.has(chunk.number) || TEMPERATURE.last_use(chunk.number) >= launch;
    let weight = |chunk: &Arc<Chunk>| TEMPERATURE.weight(chunk.number, launch);
    let (used, others): (Vec<_>, Vec<_>) = chunks.iter().partition(is_wanted);
    let (mut coming, mut here): (Vec<_>, Vec<_>) = used.into_iter().partition(|chunk| chunk.is_spilled());
    coming.sort_by_key(|chunk| Reverse(weight(chunk)));
    here.sort_by_key(|chunk| Reverse(weight(chunk)));
    // Of the older half of the others some go.
    let others = others.into_iter().filter(|chunk| !chunk.is_spilled());
    let mut others: Vec<(u64, &Arc<Chunk>)> = others.map(|chunk| (TEMPERATURE.last_use(chunk.number), chunk)).collect();
    others.sort_unstable_by_key(|(last, _)| *last);
    others.truncate((here.len() + others.len()).div_ceil(2));
    let mut choice = Choice::default();
    let mut free = room;
    for chunk in coming {
        let needed = chunk.bytes as u64;
        let before = choice.outs.len();
        while free < needed && !others.is_empty() {
            let (_, other) = others.swap_remove(chance(others.len()));
            free += other.bytes as u64;
            choice.outs.push(Arc::clone(other));
        }
        let is_less = |other: &mut &Arc<Chunk>| weight(chunk) > weight(other).saturating_add(WORTH);
        while free < needed {
            let Some(other) = here.pop_if(is_less) else { break };
            free += other.bytes as u64;
            choice.outs.push(Arc::clone(other));
        }
        // What has no room does not come, and nothing goes for it.
        if free < needed {
            choice.outs.truncate(before);
            break;
        }
        free -= needed;
        choice.backs.push(Arc::clone(chunk));
    }
    choice
}

/// A number below another (an LCG of Knuth's, its upper bits).
fn chance(below: usize) -> usize {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let next =
        SEED.load(Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    SEED.store(next, Ordering::Relaxed);
    usize::try_from(next >> 33).unwrap_or(0) % below.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{MIB, rig};

    /// Chunks by number.
    fn numbers(chunks: &[Arc<Chunk>]) -> Vec<u32> {
        chunks.iter().map(|chunk| chunk.number).collect()
    }

    #[test]
    fn others_make_room_first_and_then_what_a_launch_reads_less() {
        let rig = rig(64 * MIB, 64 * MIB);
        let chunks: Vec<Arc<Chunk>> = (0..6).map(|number| rig.chunk(2 * MIB, number)).collect();
        rig.exchange(&chunks[3..], &[]);
        let launch = |times: [u32; 6]| {
            let (launch, mut wanted) = (TEMPERATURE.launch(), Wanted::default());
            for (chunk, times) in chunks.iter().zip(times).filter(|(_, times)| *times > 0) {
                TEMPERATURE.touch(chunk.number, launch, chunk.inner().address.unwrap().0 as u64, times);
                TEMPERATURE.weigh(chunk.number, launch, times);
                if chunk.is_spilled() {
                    wanted.add(chunk.number);
                }
            }
            by_chance(&chunks, &wanted, 0)
        };
        let all = numbers(&chunks);
        let choice = launch([12, 0, 12, 0, 12, 0]);
        assert_eq!((numbers(&choice.backs), numbers(&choice.outs)), (vec![all[4]], vec![all[1]]), "not used now");
        let choice = launch([12, 1, 20, 36, 2, 4]);
        assert_eq!((numbers(&choice.backs), numbers(&choice.outs)), (vec![all[3]], vec![all[1]]));
        let choice = launch([1, 5, 20, 36, 36, 4]);
        assert_eq!(numbers(&choice.backs), all[3..5]);
        assert_eq!(numbers(&choice.outs), all[..2]);
        let choice = launch([12, 12, 12, 12, 14, 15]);
        assert_eq!((choice.backs.len(), choice.outs.len()), (0, 0), "not worth it");
    }
}
