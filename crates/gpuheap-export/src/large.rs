//! The blocks that are worth a slice of their own, side by side.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use gpuheap_explain::Analysis;

use crate::clock::Clock;

/// No more blocks than this are shown at the same time: a screen has no room for more.
const MOST_LANES: usize = 128;
/// Of these, blocks that stay for much of the recording: they would leave no room for those that come and go.
const MOST_STAYING: usize = 32;
/// A block stays if it lives for this part of the recording, or longer.
const STAYS: u64 = 4;

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
    /// The number of its allocation.
    pub(crate) id: u32,
    /// The tick from which on it is held.
    pub(crate) from: u32,
    /// The tick from which on it is not, or the last.
    pub(crate) to: u32,
}

impl Large {
    /// The blocks that took most memory for longest: at most `most`.
    pub(crate) fn new(analysis: &Analysis, clock: &Clock, most: usize) -> Self {
        let last = analysis.last_tick();
        let (mut staying, mut passing) = (Vec::new(), Vec::new());
        for allocation in analysis.allocations() {
            let tick = |event: u32| event.saturating_add(1).min(last);
            let from = allocation.born.map_or(0, tick);
            let to = allocation.freed.map_or(last, tick).max(from);
            let ns = clock.offset_ns(to) - clock.offset_ns(from);
            let weight = u128::from(allocation.size.get()) * u128::from(ns);
            let group = if ns >= clock.duration_ns() / STAYS { &mut staying } else { &mut passing };
            group.push((weight, Slice { id: allocation.id, from, to }));
        }
        let of = staying.len() + passing.len();
        let mut slices = fitting(top(staying, most), MOST_STAYING);
        slices.extend(fitting(top(passing, most), MOST_LANES - MOST_STAYING));
        Self { shown: slices.len(), lanes: packed(slices), of }
    }
}

/// Those with the greatest weights, the greatest first.
fn top(mut slices: Vec<(u128, Slice)>, most: usize) -> impl Iterator<Item = Slice> {
    let order = |&(weight, slice): &(u128, Slice)| (Reverse(weight), slice.id);
    if slices.len() > most {
        slices.select_nth_unstable_by_key(most, order);
        slices.truncate(most);
    }
    slices.sort_unstable_by_key(order);
    slices.into_iter().map(|(_, slice)| slice)
}

/// The slices, the first before the others, of which no more than `most` overlap.
fn fitting(slices: impl Iterator<Item = Slice>, most: usize) -> Vec<Slice> {
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
            None if lanes.len() < most => {
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
    slices.sort_unstable_by_key(|slice| (slice.from, slice.to, slice.id));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(id: u32, from: u32, to: u32) -> Slice {
        Slice { id, from, to }
    }

    fn ids(lanes: &[Vec<Slice>]) -> Vec<Vec<u32>> {
        lanes.iter().map(|lane| lane.iter().map(|slice| slice.id).collect()).collect()
    }

    #[test]
    fn slices_share_as_few_lanes_as_hold_them() {
        let slices = vec![slice(0, 0, 9), slice(1, 1, 3), slice(2, 3, 5), slice(3, 4, 9), slice(4, 5, 6)];
        assert_eq!(ids(&packed(slices)), [vec![0], vec![1, 2, 4], vec![3]]);
        // Two that begin at the same moment never share a lane, however short they are.
        assert_eq!(ids(&packed(vec![slice(0, 7, 7), slice(1, 7, 7), slice(2, 7, 8)])).len(), 3);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let slices = [slice(0, 0, 9), slice(1, 2, 4), slice(2, 3, 5), slice(3, 4, 9)];
        let kept = fitting(slices.into_iter(), 2);
        assert_eq!(kept.iter().map(|slice| slice.id).collect::<Vec<_>>(), [0, 1, 3]);
    }
}
