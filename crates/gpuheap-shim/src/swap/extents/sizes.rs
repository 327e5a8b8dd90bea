//! How long the tensors are that launches name.
//!
//! A launch says where a tensor begins and not where it ends. It ends before the next one begins, at the latest; but
//! memory is used again for other tensors, so the next address ever named is often in the middle of it. Four things tell
//! more:
//!
//! 1. Launches of the same kernel on the same grid work on tensors of the same sizes, and for most of them the next address
//!    is right: so the size of an operand is what nearly all of its kind have room for.
//! 2. Of kernels that are launched too seldom for that, but for products of matrices, most work on tensors of one size: each
//!    operand is as long as the longest of its launch, up to the next address that is named at about the same time.
//! 3. A kernel that does not work on products makes as many bytes a block on all grids: where most grids of it agree about
//!    that, others are taken for that long as well. (What says less: q, k and v of an attention are named one by one, and
//!    are one tensor when they are made.)
//! 4. What is named again a few launches later is the same tensor, if nothing was named meanwhile that would be in it: its
//!    size is the greatest that any of them tells.
//!
//! In a step of BERT-large, of 178 GiB that are used 168 are told that way, and 21 too much; by the first rule alone 157
//! and 12, and what it misses are the largest tensors, which there are once: the logits. Where 77 % of ViT-B/16 fit, the
//! places that are chosen by these sizes cost 2.1 s a step, 2.7 by the first rule, and 1.2 if all sizes were known; of
//! ResNet-152 0.57, 0.73 and 0.41 s.

use std::collections::{BTreeMap, HashMap};

use super::Range;
use crate::passes::ONE;
use crate::swap::sequence::Period;

/// The size of an operand is that which so many of a hundred of its kind do not exceed.
const MOST: usize = 90;
/// Of fewer launches nothing is concluded.
const FEW: usize = 4;
/// So many of a hundred grids of a kernel have to agree about bytes a block, within one part of so many.
const AGREE: usize = 50;
const ABOUT: u64 = 16;
/// Bytes a block are counted in parts: a power of two.
const PART_BITS: u32 = 8;
/// Kernels with more operands work on lists of tensors of all sizes.
const LIST: usize = 12;
/// Launches before and after one in which what is named is there at the same time.
const NEAR: usize = 16;
/// What is named again within so many launches can be the same tensor.
const AGAIN: usize = 8;

/// An operand of a kind of launches: the kind, its place among the addresses, and how many there are.
type Operand = (u64, usize, usize);

/// The bytes of what each address of a period is the beginning of, in the order of the launches; 0 for those that are in no
/// chunk. The chunks are in the order of their addresses.
pub(super) fn sizes(period: &Period, chunks: &[Range]) -> Vec<u64> {
    let mut sizes = Sizes { period, rooms: rooms(period, chunks), found: Vec::new() };
    sizes.by_kind();
    sizes.by_launch();
    sizes.by_tensor();
    sizes.by_block();
    sizes.by_tensor();
    sizes.found
}

/// How much room there is behind an address.
struct Room {
    /// Up to the next address that a launch names.
    next: u64,
    /// Up to the end of the memory that is there without a gap.
    region: u64,
}

/// Of all addresses in chunks.
fn rooms(period: &Period, chunks: &[Range]) -> HashMap<u64, Room> {
    let mut starts: Vec<u64> = (0..period.launches.len()).flat_map(|launch| period.uses(launch)).copied().collect();
    starts.sort_unstable();
    starts.dedup();
    // Where the memory ends that goes on from each chunk.
    let mut ends: Vec<u64> = chunks.iter().map(|chunk| chunk.end()).collect();
    for number in (1..chunks.len()).rev() {
        if chunks[number].start == chunks[number - 1].end() {
            ends[number - 1] = ends[number];
        }
    }
    let mut rooms = HashMap::with_capacity(starts.len());
    for (number, start) in starts.iter().enumerate() {
        let chunk = chunks.partition_point(|chunk| chunk.end() <= *start);
        if chunks.get(chunk).is_some_and(|chunk| chunk.start <= *start) {
            let region = ends[chunk] - start;
            let next = starts.get(number + 1).map_or(region, |next| (next - start).min(region));
            rooms.insert(*start, Room { next, region });
        }
    }
    rooms
}

struct Sizes<'a> {
    period: &'a Period,
    rooms: HashMap<u64, Room>,
    found: Vec<u64>,
}

impl Sizes<'_> {
    fn launches(&self) -> usize {
        self.period.launches.len()
    }

    /// Launches that do not work on lists.
    fn plain(&self) -> impl Iterator<Item = usize> {
        let period = self.period;
        (0..period.launches.len()).filter(move |launch| period.places(*launch).len() < LIST)
    }

    /// Those of them that do not work on products of matrices either.
    fn no_product(&self) -> impl Iterator<Item = usize> {
        self.plain().filter(|launch| self.period.launches[*launch].call.passes == ONE)
    }

    fn operand(&self, launch: usize, place: usize) -> Operand {
        (self.period.launches[launch].call.kind, place, self.period.places(launch).len())
    }

    /// What nearly all of a kind have room for, and each for itself.
    fn by_kind(&mut self) {
        let mut rooms = HashMap::<Operand, Vec<u64>>::new();
        for launch in self.plain() {
            for (place, address) in self.period.uses(launch).iter().enumerate() {
                if let Some(room) = self.rooms.get(address) {
                    rooms.entry(self.operand(launch, place)).or_default().push(room.next);
                }
            }
        }
        let most = |mut rooms: Vec<u64>| {
            rooms.sort_unstable();
            rooms[(rooms.len() * MOST / 100).min(rooms.len() - 1)]
        };
        let kinds: HashMap<Operand, u64> = rooms
            .into_iter()
            .filter(|(_, rooms)| rooms.len() >= FEW)
            .map(|(operand, rooms)| (operand, most(rooms)))
            .collect();
        for launch in 0..self.launches() {
            for (place, address) in self.period.uses(launch).iter().enumerate() {
                let of_kind = kinds.get(&self.operand(launch, place)).copied().unwrap_or(0);
                self.found.push(self.rooms.get(address).map_or(0, |room| of_kind.max(room.next).min(room.region)));
            }
        }
    }

    /// The longest operand of a launch, for the others.
    fn by_launch(&mut self) {
        let mut count = HashMap::<(u64, usize), usize>::new();
        let kind = |launch: usize| (self.period.launches[launch].call.kind, self.period.places(launch).len());
        for launch in self.plain() {
            *count.entry(kind(launch)).or_default() += 1;
        }
        let seldom: Vec<usize> = self.no_product().filter(|launch| count[&kind(*launch)] < FEW).collect();
        for launch in seldom {
            let near: Vec<u64> = self.period.uses(launch).iter().map(|address| self.near(*address, launch)).collect();
            let found = &mut self.found[self.period.places(launch)];
            let longest = found.iter().zip(&near).map(|(size, near)| *size.min(near)).max().unwrap_or(0);
            for (size, near) in found.iter_mut().zip(near) {
                *size = longest.min(near).max(*size);
            }
        }
    }

    /// How far it is from an address to the next one that is named at about the time of a launch.
    fn near(&self, address: u64, launch: usize) -> u64 {
        let Some(room) = self.rooms.get(&address) else { return 0 };
        let all = self.launches();
        let around = (0..=2 * NEAR).map(|number| (launch + all + number - NEAR.min(all)) % all);
        let behind = around.flat_map(|other| self.period.uses(other)).filter_map(|other| other.checked_sub(address));
        behind.filter(|distance| *distance > 0).min().map_or(room.region, |distance| distance.min(room.region))
    }

    /// What a kernel makes a block, on most of its grids.
    fn by_block(&mut self) {
        let mut all = HashMap::<Operand, BTreeMap<u64, Vec<u64>>>::new();
        let mut places = Vec::new();
        for launch in self.no_product() {
            let call = self.period.launches[launch].call;
            let (uses, count) = (self.period.uses(launch), self.period.places(launch).len());
            for ((number, address), place) in uses.iter().enumerate().zip(self.period.places(launch)) {
                if call.blocks > 0 && self.rooms.contains_key(address) {
                    let bytes = self.found[place].saturating_mul(1 << PART_BITS) / call.blocks;
                    let operand = (call.function, number, count);
                    all.entry(operand).or_default().entry(call.kind).or_default().push(bytes);
                    places.push((operand, place, *address, call.blocks));
                }
            }
        }
        let agreed: HashMap<Operand, u64> =
            all.into_iter().filter_map(|(operand, kinds)| Some((operand, agreed(kinds)?))).collect();
        for (operand, place, address, blocks) in places {
            if let Some(bytes) = agreed.get(&operand) {
                let size = bytes.saturating_mul(blocks) >> PART_BITS;
                self.found[place] = self.found[place].max(size.min(self.rooms[&address].region));
            }
        }
    }

    /// The greatest size of what is named several times in turn.
    fn by_tensor(&mut self) {
        let mut named = BTreeMap::<u64, Vec<(usize, usize)>>::new();
        for launch in self.plain() {
            for (address, place) in self.period.uses(launch).iter().zip(self.period.places(launch)) {
                if self.rooms.contains_key(address) {
                    named.entry(*address).or_default().push((launch, place));
                }
            }
        }
        for (address, times) in named {
            for pair in times.windows(2) {
                self.pass_on(address, pair[0], pair[1]);
            }
            for pair in times.windows(2).rev() {
                self.pass_on(address, pair[1], pair[0]);
            }
        }
    }

    /// From a launch to another.
    fn pass_on(&mut self, address: u64, (from, known): (usize, usize), (to, place): (usize, usize)) {
        let size = self.found[known];
        if from.abs_diff(to) > AGAIN || size <= self.found[place] {
            return;
        }
        let mut between = (from.min(to)..=from.max(to)).flat_map(|launch| self.period.uses(launch));
        if !between.any(|other| *other > address && *other < address + size) {
            self.found[place] = size;
        }
    }
}

/// Bytes a block that most grids have, by those of the launches on each.
fn agreed(kinds: BTreeMap<u64, Vec<u64>>) -> Option<u64> {
    let middle = |mut bytes: Vec<u64>| {
        bytes.sort_unstable();
        bytes[bytes.len() / 2]
    };
    let mut votes: Vec<u64> = kinds.into_values().map(middle).collect();
    votes.sort_unstable();
    let agreeing = |(number, bytes): (usize, &u64)| {
        (votes.partition_point(|other| *other <= bytes + bytes / ABOUT) - number, *bytes)
    };
    // Of several that as many agree about the smallest.
    let (count, bytes) = votes.iter().enumerate().rev().map(agreeing).max_by_key(|(count, _)| *count)?;
    (count >= 2 && count * 100 >= votes.len() * AGREE).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MIB, chunks};
    use super::*;
    use crate::swap::sequence::Call;

    /// Sizes in MiB by launch; each is its kind, how often it reads, and the addresses in MiB.
    fn found(launches: &[(u64, u32, &[u64])]) -> Vec<Vec<u64>> {
        let calls: Vec<(Call, &[u64])> =
            launches.iter().map(|(kind, passes, uses)| (Call::of(*kind, *passes), *uses)).collect();
        of_calls(&calls)
    }

    fn of_calls(launches: &[(Call, &[u64])]) -> Vec<Vec<u64>> {
        let bytes: Vec<Vec<u64>> =
            launches.iter().map(|(_, uses)| uses.iter().map(|mib| mib * MIB).collect()).collect();
        let launches: Vec<(u64, Call, &[u64])> =
            launches.iter().zip(&bytes).map(|((call, _), uses)| (1, *call, &uses[..])).collect();
        let period = Period::of(&launches, 1.0);
        let sizes = sizes(&period, &chunks(20));
        (0..launches.len()).map(|launch| sizes[period.places(launch)].iter().map(|size| size / MIB).collect()).collect()
    }

    #[test]
    fn the_size_of_an_operand_is_that_of_its_kind() {
        // Ten launches of one kernel on tensors of 40 MiB; in the middle of two of them another kernel's begin.
        let starts: Vec<[u64; 1]> = (0..10).map(|number| [number * 40]).collect();
        let mut launches: Vec<(u64, u32, &[u64])> = starts.iter().map(|start| (7, 1, &start[..])).collect();
        launches.extend([(8, 1, &[50][..]), (8, 1, &[130])]);
        assert_eq!(found(&launches)[..10], [[40]; 10]);
    }

    /// Some launches, long after and long before another that names what is at 60.
    fn long_after(launches: &[(u64, u32, &'static [u64])]) -> Vec<(u64, u32, &'static [u64])> {
        let mut all = vec![(9, 1, &[60][..])];
        all.resize(1 + 20, (8, 1, &[]));
        all.extend(launches);
        all.resize(all.len() + 20, (8, 1, &[]));
        all
    }

    #[test]
    fn what_is_launched_once_works_on_tensors_of_one_size() {
        let of = |passes| found(&long_after(&[(1, passes, &[0, 100]), (2, 1, &[300])]))[21].clone();
        assert_eq!(of(1), [100, 200], "no longer than up to what is named at the same time");
        assert_eq!(of(12), [60, 200], "products have operands of all sizes");
    }

    #[test]
    fn a_kernel_makes_as_much_a_block_on_all_grids_if_most_agree() {
        let launch = |blocks, start: &'static [u64]| (Call { kind: blocks, function: 7, blocks, passes: 1 }, start);
        let seen = (Call::of(8, 1), &[130, 20][..]);
        // The first two end where the next one begins; something else begins in the third.
        let mut launches = vec![launch(20, &[0]), launch(80, &[20]), launch(100, &[100]), seen, launch(5, &[200])];
        let sizes = |launches: &[(Call, &[u64])]| of_calls(launches).iter().map(|sizes| sizes[0]).collect::<Vec<_>>();
        assert_eq!(sizes(&launches)[..3], [20, 80, 100]);
        for (call, _) in &mut launches[1..2] {
            call.blocks = 40;
        }
        assert_eq!(sizes(&launches)[..3], [20, 80, 30], "no two agree");
    }

    #[test]
    fn what_is_named_again_soon_is_the_same_tensor_unless_something_else_begins_in_it() {
        let of = |launches: &[(u64, u32, &'static [u64])]| found(&long_after(launches))[21..].to_vec();
        let (pair, product) = ((1, 1, &[0, 200][..]), (2, 12, &[0][..]));
        assert_eq!(of(&[pair, product, (3, 1, &[390])])[..2], [vec![190, 190], vec![190]]);
        assert_eq!(of(&[pair, (4, 12, &[390, 120]), product])[2], [120], "up to what was named meanwhile");
        let mut later = vec![pair, (3, 1, &[390])];
        later.resize(12, (5, 12, &[]));
        later.push(product);
        assert_eq!(of(&later)[12], [60], "who knows what it is by then");
    }

    #[test]
    fn addresses_without_memory_and_empty_launches_are_nothing() {
        assert_eq!(found(&[(1, 1, &[500, 10]), (2, 1, &[])]), [vec![0, 390], vec![]]);
    }
}
