//! What is held at some moments, by place and class.

use foldhash::HashMap;
use gpuheap_explain::{Analysis, Class};

use crate::names::Place;

/// An amount of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Amount {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

impl Amount {
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }

    /// As signed numbers, which most formats have.
    pub(crate) fn signed(self) -> [i64; 2] {
        [self.blocks, self.bytes].map(|value| i64::try_from(value).unwrap_or(i64::MAX))
    }
}

/// What is allocated at one place for one class.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) place: Place,
    pub(crate) class: Class,
    /// What is held at each of the ticks that were asked for.
    pub(crate) held: Vec<Amount>,
    /// All that was ever allocated.
    pub(crate) total: Amount,
}

/// All groups, in the order in which they first allocate.
pub(crate) fn groups(analysis: &Analysis, ticks: &[u32]) -> Vec<Group> {
    let mut rows: HashMap<(Place, Class), usize> = HashMap::default();
    let mut groups: Vec<Group> = Vec::new();
    for allocation in analysis.allocations() {
        let (place, class) = (Place::of(&allocation), allocation.class);
        let row = *rows.entry((place, class)).or_insert_with(|| {
            groups.push(Group { place, class, held: vec![Amount::default(); ticks.len()], total: Amount::default() });
            groups.len() - 1
        });
        let group = &mut groups[row];
        let amount = Amount { bytes: allocation.size.get(), blocks: 1 };
        group.total.add(amount);
        for (held, &tick) in group.held.iter_mut().zip(ticks) {
            if allocation.is_held_at(tick) {
                held.add(amount);
            }
        }
    }
    groups
}

/// The same with the classes of a place together.
pub(crate) fn places(groups: &[Group]) -> Vec<Group> {
    let mut rows: HashMap<Place, usize> = HashMap::default();
    let mut places: Vec<Group> = Vec::new();
    for group in groups {
        let row = *rows.entry(group.place).or_insert_with(|| {
            let none = Amount::default();
            places.push(Group { held: vec![none; group.held.len()], total: none, ..group.clone() });
            places.len() - 1
        });
        let place = &mut places[row];
        place.total.add(group.total);
        for (sum, &held) in place.held.iter_mut().zip(&group.held) {
            sum.add(held);
        }
    }
    places
}
