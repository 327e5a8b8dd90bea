//! How much of each chunk the launches of a period use.
//!
//! A launch says where a tensor begins and not where it ends. It ends before the next one begins, at the latest; but
//! memory is used again for other tensors, so the next address ever named is often in the middle of it. Launches of the
//! same kernel with the same grid work on tensors of the same sizes, and for most of them the next address is right: so
//! the size of an operand is what nearly all of its kind have room for. In a step of BERT-large nine tenths of what is
//! used is told that way, and a fifth too much; by the next address alone seven tenths are.

use std::collections::HashMap;

use super::schedule::{ROUNDS, Usage};
use super::sequence::Period;

/// A range of addresses: a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Range {
    fn end(self) -> u64 {
        self.start + self.bytes
    }
}

/// Bytes a second of a kernel that reaches the host's memory. Measured on an H200: 51 GB/s.
const LINK: f64 = 50e9;
/// The size of an operand is that which so many of a hundred of its kind do not exceed.
const MOST: usize = 90;
/// Of fewer launches nothing is concluded.
const FEW: usize = 4;
/// Kernels with more operands work on lists of tensors of all sizes.
const LIST: usize = 12;

/// An operand of a kind of launches: the kind, its place among the addresses, and how many there are.
type Operand = (u64, usize, usize);

/// What is used of each of the chunks, which are in the order of their addresses: seconds in each round that kernels
/// would spend if it were on the host. The costs of moves are not set.
pub(crate) fn usages(period: &Period, chunks: &[Range]) -> Vec<Usage> {
    let mut all: Vec<Usage> = chunks.iter().map(|chunk| Usage::new(chunk.bytes)).collect();
    let room = rooms(period, chunks);
    let sizes = sizes(period, &room);
    let launches = period.launches.len();
    for (number, launch) in period.launches.iter().enumerate() {
        let round = number * ROUNDS / launches;
        let uses = period.uses(number);
        for (place, address) in uses.iter().enumerate() {
            let Some(room) = room.get(address) else { continue };
            let size =
                sizes.get(&(launch.kind, place, uses.len())).copied().unwrap_or(0).max(room.next).min(room.region);
            let end = address + size;
            let first = chunks.partition_point(|chunk| chunk.end() <= *address);
            for (chunk, usage) in chunks.iter().zip(&mut all).skip(first).take_while(|(chunk, _)| chunk.start < end) {
                let bytes = chunk.end().min(end) - chunk.start.max(*address);
                usage.host[round] += bytes as f64 * f64::from(launch.passes) / LINK;
            }
        }
    }
    all
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

/// Bytes of each operand of which there are enough.
fn sizes(period: &Period, rooms: &HashMap<u64, Room>) -> HashMap<Operand, u64> {
    let mut found = HashMap::<Operand, Vec<u64>>::new();
    for (number, launch) in period.launches.iter().enumerate() {
        let uses = period.uses(number);
        for (place, address) in uses.iter().enumerate().filter(|_| uses.len() < LIST) {
            if let Some(room) = rooms.get(address) {
                found.entry((launch.kind, place, uses.len())).or_default().push(room.next);
            }
        }
    }
    let most = |mut rooms: Vec<u64>| {
        rooms.sort_unstable();
        rooms[(rooms.len() * MOST / 100).min(rooms.len() - 1)]
    };
    found.into_iter().filter(|(_, rooms)| rooms.len() >= FEW).map(|(operand, rooms)| (operand, most(rooms))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn chunks(count: u64) -> Vec<Range> {
        (0..count).map(|number| Range { start: number * 20 * MIB, bytes: 20 * MIB }).collect()
    }

    fn seconds(mib: u64) -> f64 {
        (mib * MIB) as f64 / LINK
    }

    #[test]
    fn a_tensor_goes_on_to_where_the_next_begins_or_the_memory_ends() {
        let mut chunks = chunks(4);
        chunks[3].start += 20 * MIB;
        let period = Period::of(&[(1, 1, 1, &[0, 30 * MIB]), (2, 2, 2, &[90 * MIB, 500 * MIB])], 1.0);
        let found = usages(&period, &chunks);
        let all: Vec<f64> = found.iter().map(|usage| usage.host.iter().sum()).collect();
        let expected = [seconds(20), seconds(20), seconds(20), seconds(20)];
        for (number, (found, expected)) in all.iter().zip(expected).enumerate() {
            assert!((found - expected).abs() < 1e-6, "{number}: {found} {expected}");
        }
        assert!(found[0].host[0] > 0.0 && found[3].host[ROUNDS / 2] > 0.0);
    }

    #[test]
    fn the_size_of_an_operand_is_that_of_its_kind() {
        // Ten launches of one kernel on tensors of 40 MiB; in the middle of two of them another kernel's begin.
        let mut launches: Vec<(u64, u64, u32, Vec<u64>)> =
            (0..10_u64).map(|number| (number, 7, 1, vec![number * 40 * MIB])).collect();
        launches.push((20, 8, 1, vec![50 * MIB]));
        launches.push((21, 8, 1, vec![130 * MIB]));
        let launches: Vec<_> = launches.iter().map(|(one, two, three, uses)| (*one, *two, *three, &uses[..])).collect();
        let found = usages(&Period::of(&launches, 1.0), &chunks(20));
        for (number, usage) in found.iter().enumerate() {
            assert!(usage.host.iter().sum::<f64>() >= seconds(20) - 1e-6, "{number}");
        }
    }
}
