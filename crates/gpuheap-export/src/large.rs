//! The blocks that are worth a slice of their own, side by side.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use gpuheap_explain::{AllocationView, Analysis};

use crate::clock::Clock;

/// No more blocks than this are shown at the same time: a screen has no room for more.
const MOST_LANES: usize = 128;

/// Blocks in lanes. In a lane each begins where the one before it ended, or later.
pub(crate) struct Large {
    pub(crate) lanes: Vec<Vec<Slice>>,
    /// Blocks that are shown.
    pub(crate) shown: usize,
    /// Blocks that the recording has.
    pub(crate) of: usize,
}

/// A block with its life.
#[derive(Clone, Copy)]
pub(crate) struct Slice {
    pub(crate) allocation: AllocationView,
    /// The tick from which on it is held.
    pub(crate) from: u32,
    /// The tick from which on it is not, or the last.
    pub(crate) to: u32,
}

impl Large {
    /// The blocks that took most memory for longest: at most `most`.
    pub(crate) fn new(analysis: &Analysis, clock: &Clock, most: usize) -> Self {
        let last = analysis.last_tick();
        let mut slices: Vec<(u128, Slice)> = analysis
            .allocations()
            .map(|allocation| {
                let tick = |event: u32| event.saturating_add(1).min(last);
                let from = allocation.born.map_or(0, tick);
                let to = allocation.freed.map_or(last, tick).max(from);
                let ns = clock.offset_ns(to) - clock.offset_ns(from);
                (u128::from(allocation.size.get()) * u128::from(ns), Slice { allocation, from, to })
            })
            .collect();
        let of = slices.len();
        let order = |&(weight, slice): &(u128, Slice)| (Reverse(weight), slice.allocation.id);
        if slices.len() > most {
            slices.select_nth_unstable_by_key(most, order);
            slices.truncate(most);
        }
        slices.sort_unstable_by_key(order);
        let lanes = packed(fitting(slices.into_iter().map(|(_, slice)| slice)));
        Self { shown: lanes.iter().map(Vec::len).sum(), lanes, of }
    }
}

/// The slices, the first before the others, of which no more than [`MOST_LANES`] overlap.
fn fitting(slices: impl Iterator<Item = Slice>) -> Vec<Slice> {
    let mut kept = Vec::new();
    // The ends by the beginnings, a lane each.
    let mut lanes: Vec<BTreeMap<u32, u32>> = Vec::new();
    for slice in slices {
        let fits = |lane: &BTreeMap<u32, u32>| {
            let before = lane.range(..=slice.from).next_back();
            let after = lane.range(slice.from..).next();
            before.is_none_or(|(&from, &to)| to <= slice.from && from < slice.from)
                && after.is_none_or(|(&from, _)| from >= slice.to && from > slice.from)
        };
        let lane = match lanes.iter().position(fits) {
            Some(lane) => lane,
            None if lanes.len() < MOST_LANES => {
                lanes.push(BTreeMap::new());
                lanes.len() - 1
            }
            None => continue,
        };
        lanes[lane].insert(slice.from, slice.to);
        kept.push(slice);
    }
    kept
}

/// The slices in as few lanes as hold them.
fn packed(mut slices: Vec<Slice>) -> Vec<Vec<Slice>> {
    slices.sort_unstable_by_key(|slice| (slice.from, slice.to, slice.allocation.id));
    let mut lanes: Vec<Vec<Slice>> = Vec::new();
    let mut busy: BinaryHeap<Reverse<(u32, usize)>> = BinaryHeap::new();
    let mut free = BTreeSet::new();
    for slice in slices {
        while let Some(&Reverse((to, lane))) = busy.peek() {
            // A slice without length takes its moment for itself.
            let last_from = lanes[lane].last().map(|slice| slice.from);
            if to > slice.from || last_from == Some(slice.from) {
                break;
            }
            busy.pop();
            free.insert(lane);
        }
        let lane = free.pop_first().unwrap_or_else(|| {
            lanes.push(Vec::new());
            lanes.len() - 1
        });
        lanes[lane].push(slice);
        busy.push(Reverse((slice.to, lane)));
    }
    lanes
}
