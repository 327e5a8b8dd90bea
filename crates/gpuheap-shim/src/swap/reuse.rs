//! When chunks will be used again, of a program whose steps are alike but not the same: sequences of other lengths each
//! time, with the same kernels in the same order, on other addresses and other grids.
//!
//! What a launch names is used again after as many launches as it was in the step before: [`alignment`] tells which launch
//! there is its counterpart, [`links`] after how many launches that which stood at the same place among its addresses was
//! named again, and [`chunks`] in which rounds chunks are used by that. So a chunk on the host is fetched at the beginning
//! of the round in which it is used, or when a launch names it that was not expected to; and of those on the device the
//! one goes that is used again last (Belady's rule).

mod alignment;
mod chunks;
mod links;

use gpuheap_cuda::raw::Function;

use self::alignment::Alignment;
use self::chunks::{Chunks, Launch};
use self::links::Links;
use super::demand::Wanted;
use crate::passes::ONE;
use crate::ranges::CHUNKS;
use crate::temperature::{TEMPERATURE, UNNAMED};

/// Rounds of a step.
const ROUNDS: u64 = 32;

/// Where chunks are.
trait Places {
    /// The chunk at an address.
    fn find(&self, address: u64) -> Option<u32>;
    /// The address behind a chunk; 0 if that is not known.
    fn end(&self, chunk: u32) -> u64;
    fn is_on_host(&self, chunk: u32) -> bool;
    /// Neither is a chunk that is not mapped.
    fn is_on_device(&self, chunk: u32) -> bool {
        !self.is_on_host(chunk) && self.end(chunk) > 0
    }
}

/// Of this process.
struct Here;

impl Places for Here {
    #[inline]
    fn find(&self, address: u64) -> Option<u32> {
        CHUNKS.find(address)
    }

    #[inline]
    fn end(&self, chunk: u32) -> u64 {
        TEMPERATURE.end(chunk)
    }

    #[inline]
    fn is_on_host(&self, chunk: u32) -> bool {
        TEMPERATURE.is_on_host(chunk)
    }
}

/// See the head of the file. Nothing is allocated after it was made.
pub(super) struct Reuse {
    alignment: Alignment,
    links: Links,
    chunks: Chunks,
    /// Launches so far.
    launches: u64,
    /// The launch before which the program waited for the device last, and by what that was told.
    rest: u64,
    told: u64,
    /// Whether more is used in this round than could be asked for at once.
    is_more: bool,
    /// Whether there was nothing that could have made room, in this round.
    is_refused: bool,
}

impl Reuse {
    pub(super) fn new() -> Self {
        Self {
            alignment: Alignment::new(),
            links: Links::new(),
            chunks: Chunks::new(),
            launches: 0,
            rest: 0,
            told: 0,
            is_more: false,
            is_refused: false,
        }
    }

    /// Whether it is known what is used next.
    pub(super) fn is_aligned(&self) -> bool {
        self.alignment.distance().is_some()
    }

    /// A launch is about to be made on a grid of so many blocks, which reads its operands so many times. Adds what is on the
    /// host and should not be. `rest` changes when the program waits for the device.
    pub(super) fn launched(
        &mut self,
        function: Function,
        (blocks, passes): (u64, u32),
        addresses: &[u64],
        rest: u64,
        wanted: &mut Wanted,
    ) {
        let number = self.launches;
        self.launches += 1;
        if rest != self.told {
            (self.rest, self.told) = (number, rest);
        }
        let distance = self.alignment.launched(number, function.0 as u64, addresses);
        if let Some(step) = distance {
            let begins = self.chunks.begin(number, step);
            if begins || self.is_more {
                self.chunks.due(&Here, wanted);
                (self.is_more, self.is_refused) = (wanted.is_full(), self.is_refused && !begins);
            }
        }
        let recent = self.rest.max(number.saturating_sub(UNNAMED));
        let launch = Launch { number, blocks, is_product: passes > ONE, recent };
        self.links.begin(number);
        for (place, address) in addresses.iter().enumerate() {
            // First, as what is used once a step is known by that.
            self.links.name(number, *address);
            if let Some(step) = distance {
                let again = number.checked_sub(step).and_then(|before| self.links.again(before, place, number));
                self.chunks.name((*address, again), launch, &Here, wanted);
            }
        }
        if distance.is_none() || wanted.is_empty() {
            return;
        }
        if self.is_refused {
            *wanted = Wanted::default();
        } else {
            let latest = self.chunks.latest(&Here, number);
            wanted.retain(|chunk| self.chunks.distance(chunk, number) < latest);
        }
    }

    /// Nothing could make room for what was wanted.
    pub(super) fn refused(&mut self) {
        self.is_refused = true;
    }

    /// In how many launches a chunk is used again, as far as that can be told.
    pub(super) fn distance(&mut self, chunk: u32) -> u64 {
        self.chunks.distance(chunk, self.launches)
    }

    /// What is used again within so many launches does not go for something else.
    pub(super) fn soon(&self) -> u64 {
        self.chunks.round_length()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 2 << 20;

    /// Where a chunk is: each has a gap behind it.
    fn at(chunk: u64) -> u64 {
        0x3_0000_0000 + chunk * 2 * BYTES
    }

    /// So many chunks, of which the first are on the host.
    fn chunks(count: u32, on_host: u32) {
        for number in 0..count {
            let start = at(u64::from(number));
            assert!(CHUNKS.set(start, BYTES, number));
            TEMPERATURE.ends_at(number, start + BYTES);
            TEMPERATURE.on_host(number, number < on_host);
        }
    }

    /// Sixty chunks on the host that the first launch of each step uses, and nothing can make room for them.
    #[test]
    fn what_was_refused_is_not_asked_for_at_each_launch() {
        chunks(70, 60);
        let many: Vec<u64> = (0..60).map(at).collect();
        let mut reuse = Reuse::new();
        let mut asked = [0; 6];
        for asked in &mut asked {
            for launch in 0..320_u64 {
                let mut wanted = Wanted::default();
                // The last one stands for what is pinned: on the device, used late, and nothing that could make room.
                let weight = at(if launch == 300 { 69 } else { 60 + launch % 9 }) + launch / 9 * 4096;
                let addresses: &[u64] = if launch == 5 || launch == 205 { &many } else { &[weight] };
                reuse.launched(Function(7), (1, ONE), addresses, 0, &mut wanted);
                if !wanted.is_empty() {
                    *asked += 1;
                    // As `demand::fetch` does if nothing on the device is used later.
                    reuse.refused();
                }
            }
        }
        assert!(reuse.is_aligned());
        assert!(asked.iter().all(|asked| *asked <= 6), "{asked:?} times in a step");
    }

    /// As states of an optimizer are.
    #[test]
    fn what_is_used_once_a_step_is_expected_in_the_next() {
        chunks(40, 0);
        let mut reuse = Reuse::new();
        let mut found = Vec::new();
        for turn in 0..6 {
            // Each chunk in ten launches of each step, side by side.
            for launch in 0..400_u64 {
                let address = at(launch / 10) + launch % 10 * 4096;
                reuse.launched(Function(7), (1, ONE), &[address], 0, &mut Wanted::default());
            }
            found.push((turn, reuse.distance(36), reuse.distance(20), reuse.distance(0)));
        }
        let (_, last, middle, first) = found[5];
        assert!(first < middle && middle < last && (340..=400).contains(&last), "{found:?}");
    }
}
