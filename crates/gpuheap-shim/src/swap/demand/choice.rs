//! What goes and what comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Wanted;
use crate::chunks::Chunk;
use crate::swap::reuse::Reuse;
use crate::swap::slack;
use crate::temperature::TEMPERATURE;

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

/// What is wanted comes, as far as others can make room that were not named for long.
pub(super) fn by_chance(chunks: &[Arc<Chunk>], wanted: &Wanted, room: u64) -> Choice {
    // Those that a launch names, and those that what it names goes on in.
    let named = chunks.iter().filter(|chunk| wanted.has(chunk.number));
    let launch = named.map(|chunk| TEMPERATURE.last_use(chunk.number)).max().unwrap_or(u64::MAX);
    let is_wanted = |chunk: &&Arc<Chunk>| wanted.has(chunk.number) || TEMPERATURE.last_use(chunk.number) >= launch;
    let mut backs: Vec<_> =
        chunks.iter().filter(is_wanted).filter(|chunk| chunk.is_spilled()).map(Arc::clone).collect();
    let mut needed: u64 = backs.iter().map(|chunk| chunk.bytes as u64).sum();
    // Of the older half of the others some go.
    let others = chunks.iter().filter(|chunk| !chunk.is_spilled());
    let mut device: Vec<(u64, &Arc<Chunk>)> = others.map(|chunk| (TEMPERATURE.last_use(chunk.number), chunk)).collect();
    device.sort_unstable_by_key(|(last, _)| *last);
    device.truncate(device.len().div_ceil(2));
    device.retain(|(_, chunk)| !is_wanted(chunk));
    let (mut outs, mut free) = (Vec::new(), room);
    while free < needed && !device.is_empty() {
        let (_, chunk) = device.swap_remove(chance(device.len()));
        free += chunk.bytes as u64;
        outs.push(Arc::clone(chunk));
    }
    // What has no room does not come.
    while free < needed {
        let Some(last) = backs.pop() else { break };
        needed -= last.bytes as u64;
    }
    Choice { outs, backs }
}

/// A number below another (an LCG of Knuth's, its upper bits).
fn chance(below: usize) -> usize {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let next =
        SEED.load(Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    SEED.store(next, Ordering::Relaxed);
    usize::try_from(next >> 33).unwrap_or(0) % below.max(1)
}
