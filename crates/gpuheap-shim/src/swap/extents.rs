//! How much of each chunk the launches of a period use.

mod sizes;

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

/// What is used of each of the chunks, which are in the order of their addresses: seconds in each round that kernels
/// would spend if it were on the host. The costs of moves are not set.
pub(crate) fn usages(period: &Period, chunks: &[Range]) -> Vec<Usage> {
    let mut all: Vec<Usage> = chunks.iter().map(|chunk| Usage::new(chunk.bytes)).collect();
    // Where tensors begin and end that use all of the chunks between: how many more and fewer, by rounds.
    let mut steps = vec![[0_i64; ROUNDS]; chunks.len() + 1];
    let sizes = sizes::sizes(period, chunks);
    let launches = period.launches.len();
    for (number, launch) in period.launches.iter().enumerate() {
        let round = number * ROUNDS / launches;
        for (address, size) in period.uses(number).iter().zip(&sizes[period.places(number)]) {
            let end = address.saturating_add(*size);
            let first = chunks.partition_point(|chunk| chunk.end() <= *address);
            let last = chunks.partition_point(|chunk| chunk.start < end);
            if first >= last {
                continue;
            }
            let mut use_part = |number: usize| {
                let bytes = chunks[number].end().min(end).saturating_sub(chunks[number].start.max(*address));
                all[number].host[round] += bytes as f64 * f64::from(launch.call.passes) / LINK;
            };
            use_part(first);
            if first + 1 < last {
                use_part(last - 1);
                steps[first + 1][round] += i64::from(launch.call.passes);
                steps[last - 1][round] -= i64::from(launch.call.passes);
            }
        }
    }
    let mut times = [0; ROUNDS];
    for (usage, steps) in all.iter_mut().zip(steps) {
        for ((host, times), step) in usage.host.iter_mut().zip(&mut times).zip(steps) {
            *times += step;
            *host += usage.bytes * *times as f64 / LINK;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap::sequence::Call;

    pub(super) const MIB: u64 = 1 << 20;

    pub(super) fn chunks(count: u64) -> Vec<Range> {
        (0..count).map(|number| Range { start: number * 20 * MIB, bytes: 20 * MIB }).collect()
    }

    fn seconds(mib: u64) -> f64 {
        (mib * MIB) as f64 / LINK
    }

    #[test]
    fn a_tensor_goes_on_to_where_the_next_begins_or_the_memory_ends() {
        let mut chunks = chunks(4);
        chunks[3].start += 20 * MIB;
        let launches: [(u64, Call, &[u64]); 2] =
            [(1, Call::of(1, 1), &[0, 30 * MIB]), (2, Call::of(2, 2), &[90 * MIB, 500 * MIB])];
        let period = Period::of(&launches, 1.0);
        let found = usages(&period, &chunks);
        let all: Vec<f64> = found.iter().map(|usage| usage.host.iter().sum()).collect();
        let expected = [seconds(20), seconds(20), seconds(20), seconds(20)];
        for (number, (found, expected)) in all.iter().zip(expected).enumerate() {
            assert!((found - expected).abs() < 1e-6, "{number}: {found} {expected}");
        }
        assert!(found[0].host[0] > 0.0 && found[3].host[ROUNDS / 2] > 0.0);
    }
}
