//! In which rounds chunks will be used, by what launches name in them.
//!
//! A round is a part of a step. What a launch names is used again in the round that its reuse distance leads to, which is
//! a bit of each chunk that it is in. Where a tensor ends nobody tells: it goes on through the chunks behind in which
//! nothing begins that is used, if it is the last one that begins in its own chunk; up to a length, or as far as a kernel
//! with so many blocks reaches at least.

use super::{Places, ROUNDS};
use crate::passes;
use crate::swap::demand::Wanted;

/// Chunks that are known: those with greater numbers are taken for unused.
const CHUNKS: usize = 1 << 15;
/// A tensor goes on for so many bytes at most,
const LONG: u64 = 160 << 20;
/// or as far as its grid reaches, and for so many at most, whatever that is.
const FAR: u64 = 8 << 30;
/// What begins so near to where a chunk begins has it from its beginning.
const NEAR: u64 = 4096;
/// So many chunks behind one that is used for something new are fetched with it: memory is taken upwards.
const AHEAD: usize = 16;

/// What is known of a chunk.
#[derive(Clone, Copy)]
struct Known {
    /// Rounds in which it will be used: the first bit is round `since`.
    rounds: u128,
    since: u64,
    /// The last tensor that begins in it, and the launch until which that is used.
    top: (u64, u64),
    /// The first one, likewise.
    low: (u64, u64),
    /// The launch that last named an address in it, and the one that last used it.
    named: u64,
    used: u64,
}

const NOTHING: Known = Known { rounds: 0, since: 0, top: (0, 0), low: (0, 0), named: 0, used: 0 };

/// Of all chunks.
pub(super) struct Chunks {
    all: Box<[Known]>,
    /// Behind the greatest number that was met.
    end: usize,
    /// Launches of a round, and the round.
    length: u64,
    round: u64,
}

/// A launch.
#[derive(Clone, Copy)]
pub(super) struct Launch {
    pub(super) number: u64,
    /// Blocks of its grid.
    pub(super) blocks: u64,
    /// Whether each makes a tile of a product of matrices.
    pub(super) is_product: bool,
    /// What was named last before that launch may be something else by now.
    pub(super) recent: u64,
}

impl Chunks {
    pub(super) fn new() -> Self {
        Self { all: vec![NOTHING; CHUNKS].into_boxed_slice(), end: 0, length: 1, round: 0 }
    }

    /// A launch of a step of so many begins. True if a round begins with it.
    #[inline]
    pub(super) fn begin(&mut self, launch: u64, step: u64) -> bool {
        let length = (step / ROUNDS).max(1);
        // Steps differ by some launches; what is known would be of other rounds then.
        if length.abs_diff(self.length) * 4 > self.length {
            self.all[..self.end].fill(NOTHING);
            (self.length, self.round) = (length, 0);
        }
        let round = launch / self.length;
        let begins = round != self.round;
        self.round = round;
        begins
    }

    /// Adds what is on the host and used in this round.
    pub(super) fn due(&mut self, places: &impl Places, wanted: &mut Wanted) {
        for number in 0..self.end {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            let is_due = self.known(number).is_some_and(|known| known.rounds & 1 == 1);
            if is_due && places.is_on_host(number) {
                wanted.add(number);
            }
        }
    }

    /// A launch names an address, which is named again after so many launches. Adds what it uses and is on the host.
    pub(super) fn name(
        &mut self,
        (address, again): (u64, Option<u64>),
        launch: Launch,
        places: &impl Places,
        wanted: &mut Wanted,
    ) {
        let Some(first) = places.find(address) else { return };
        let bit = self.bit(launch.number, again);
        let until = launch.number + again.unwrap_or(self.length);
        let Some(known) = self.known(first) else { return };
        let was_expected = known.rounds & 3 != 0;
        known.rounds |= bit;
        (known.named, known.used) = (launch.number, launch.number);
        let is_last = address >= known.top.0 || known.top.1 < launch.number;
        if is_last {
            known.top = (address, until);
        }
        if address <= known.low.0 || known.low.1 < launch.number {
            known.low = (address, until);
        }
        let mut fresh = None;
        let mut want = |number: u32| {
            if places.is_on_host(number) {
                wanted.add(number);
                fresh = Some(number);
            }
        };
        want(first);
        let reach = LONG.max(passes::reach(launch.is_product, launch.blocks)).min(FAR);
        let mut end = places.end(first);
        while is_last && end.saturating_sub(address) < reach {
            let Some(next) = places.find(end) else { break };
            let Some(known) = self.known(next) else { break };
            let is_used = known.low.1 >= launch.number;
            let is_other =
                if is_used { known.low.0 < end + NEAR } else { was_expected && known.named >= launch.recent };
            if is_other {
                break;
            }
            known.rounds |= bit;
            known.used = launch.number;
            want(next);
            if is_used {
                break;
            }
            let behind = places.end(next);
            // A chunk that is mapped twice leads back.
            if behind <= end {
                break;
            }
            end = behind;
        }
        if let Some(fresh) = fresh {
            self.go_on(fresh, places, wanted);
        }
    }

    /// Adds chunks behind one that are on the host and have no use: they will be taken next.
    fn go_on(&mut self, first: u32, places: &impl Places, wanted: &mut Wanted) {
        let mut number = first;
        for _ in 0..AHEAD {
            let Some(next) = places.find(places.end(number)) else { break };
            let is_unused = self.known(next).is_some_and(|known| known.rounds == 0);
            if !is_unused || !places.is_on_host(next) {
                break;
            }
            wanted.add(next);
            number = next;
        }
    }

    /// In how many launches that chunk of the device is used again that is used last.
    pub(super) fn latest(&mut self, places: &impl Places, launch: u64) -> u64 {
        let numbers = 0..u32::try_from(self.end).unwrap_or(u32::MAX);
        let here = numbers.filter(|number| places.is_on_device(*number));
        here.map(|number| self.distance(number, launch)).max().unwrap_or(0)
    }

    /// In how many launches a chunk is used again. Of one of which nothing is known that is expected which was so far: what
    /// was not used for long will not be for as long.
    pub(super) fn distance(&mut self, number: u32, launch: u64) -> u64 {
        let length = self.length;
        match self.known(number) {
            Some(known) if known.rounds != 0 => u64::from(known.rounds.trailing_zeros()) * length,
            Some(known) => 2 * length + launch.saturating_sub(known.used),
            None => u64::MAX,
        }
    }

    /// Launches of a round.
    pub(super) fn round_length(&self) -> u64 {
        self.length
    }

    fn bit(&self, launch: u64, again: Option<u64>) -> u128 {
        let Some(again) = again else { return 0 };
        let rounds = ((launch + again) / self.length).saturating_sub(self.round);
        1_u128.checked_shl(u32::try_from(rounds).unwrap_or(u32::MAX)).unwrap_or(0)
    }

    /// What is known of a chunk, from this round on.
    #[inline]
    fn known(&mut self, number: u32) -> Option<&mut Known> {
        let number = number as usize;
        let known = self.all.get_mut(number)?;
        self.end = self.end.max(number + 1);
        let passed = u32::try_from(self.round.saturating_sub(known.since)).unwrap_or(u32::MAX);
        known.rounds = known.rounds.checked_shr(passed).unwrap_or(0);
        known.since = self.round;
        Some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const CHUNK: u64 = 20 * MIB;
    const BASE: u64 = 0x3_0000_0000;

    /// Ten chunks side by side, and three apart, on the host from some number on.
    struct Ten(u32);

    impl Places for Ten {
        fn find(&self, address: u64) -> Option<u32> {
            let chunk = address.checked_sub(BASE)? / CHUNK;
            u32::try_from(chunk).ok().filter(|chunk| *chunk < 10 || (20..23).contains(chunk))
        }

        fn end(&self, chunk: u32) -> u64 {
            BASE + u64::from(chunk + 1) * CHUNK
        }

        fn is_on_host(&self, chunk: u32) -> bool {
            chunk >= self.0
        }
    }

    fn at(chunk: u64, mib: u64) -> u64 {
        BASE + chunk * CHUNK + mib * MIB
    }

    fn launch(number: u64) -> Launch {
        Launch { number, blocks: 1, is_product: false, recent: 0 }
    }

    fn chunks(now: u64) -> Chunks {
        let mut chunks = Chunks::new();
        chunks.begin(now, 320);
        chunks
    }

    fn numbers(wanted: &Wanted) -> Vec<u32> {
        wanted.numbers().to_vec()
    }

    #[test]
    fn a_chunk_is_due_in_the_round_that_the_distance_leads_to() {
        let (mut chunks, nowhere) = (chunks(1000), Ten(99));
        let mut wanted = Wanted::default();
        chunks.name((at(0, 0), Some(3)), launch(1000), &nowhere, &mut wanted);
        chunks.name((at(0, 1), Some(300)), launch(1000), &nowhere, &mut wanted);
        chunks.name((at(20, 5), Some(405)), launch(1000), &nowhere, &mut wanted);
        assert!(wanted.is_empty(), "all is on the device");
        assert_eq!((chunks.distance(0, 1000), chunks.distance(20, 1000)), (0, 400));
        for (now, due) in [(1010, vec![]), (1299, vec![]), (1300, vec![0]), (1400, vec![20, 21, 22])] {
            chunks.begin(now, 320);
            let mut wanted = Wanted::default();
            chunks.due(&Ten(0), &mut wanted);
            // The tensor may go on to the end of the memory.
            let found: Vec<u32> = numbers(&wanted).into_iter().filter(|number| *number == 0 || *number >= 20).collect();
            assert_eq!(found, due, "{now}");
        }
        chunks.begin(1500, 320);
        assert_eq!(chunks.distance(0, 1500), 20 + 500, "as long again as it was not used");
        assert_eq!(chunks.distance(9, 1500), 20 + 1500);
        assert_eq!(chunks.distance(1 << 20, 1500), u64::MAX);
    }

    #[test]
    fn a_tensor_goes_on_to_where_another_begins_that_is_used() {
        let (mut chunks, all) = (chunks(1000), Ten(0));
        let mut wanted = Wanted::default();
        chunks.name((at(3, 10), Some(500)), launch(1000), &Ten(99), &mut wanted);
        chunks.name((at(0, 10), Some(200)), launch(1001), &all, &mut wanted);
        assert_eq!(numbers(&wanted), [0, 1, 2, 3], "the first half of the fourth as well");
        // Not the last that begins in its chunk.
        let mut wanted = Wanted::default();
        chunks.name((at(0, 2), Some(200)), launch(1002), &all, &mut wanted);
        assert_eq!(numbers(&wanted), [0]);
        // From its very beginning on the other one has it.
        let mut wanted = Wanted::default();
        chunks.name((at(2, 0), Some(500)), launch(1003), &Ten(99), &mut wanted);
        chunks.name((at(0, 10), Some(200)), launch(1004), &all, &mut wanted);
        assert_eq!(numbers(&wanted), [0, 1]);
    }

    #[test]
    fn what_is_named_again_does_not_go_on_where_something_was_named_meanwhile() {
        let (mut chunks, nowhere) = (chunks(1000), Ten(99));
        let mut wanted = Wanted::default();
        chunks.name((at(0, 10), Some(12)), launch(1000), &nowhere, &mut wanted);
        chunks.name((at(1, 1), None), launch(1001), &nowhere, &mut wanted);
        chunks.begin(1012, 320);
        chunks.name((at(0, 10), Some(100)), launch(1012), &Ten(0), &mut wanted);
        chunks.begin(1030, 320);
        // What was named there is used no more, but came after the tensor.
        assert_eq!((chunks.distance(0, 1030), chunks.distance(1, 1030)), (80, 20 + 29));
    }

    #[test]
    fn many_blocks_reach_far_and_free_memory_behind_comes_with_what_is_used() {
        let (mut chunks, all) = (chunks(1000), Ten(0));
        let mut wanted = Wanted::default();
        chunks.name((at(0, 0), None), launch(1000), &all, &mut wanted);
        assert_eq!(numbers(&wanted), (0..10).collect::<Vec<u32>>(), "eight that it may have, and two behind");
        let mut chunks = self::chunks(1000);
        chunks.name((at(0, 0), Some(64)), Launch { blocks: 100_000, ..launch(1000) }, &Ten(99), &mut wanted);
        assert!((0..10).all(|number| chunks.distance(number, 1000) == 60), "all of it");
        let mut chunks = self::chunks(1000);
        let product = Launch { blocks: 2_880, is_product: true, ..launch(1000) };
        chunks.name((at(0, 0), Some(64)), product, &Ten(99), &mut wanted);
        assert!((0..9).all(|number| chunks.distance(number, 1000) == 60) && chunks.distance(9, 1000) > 60, "180 MiB");
    }

    #[test]
    fn steps_of_another_length_begin_anew() {
        let mut chunks = chunks(1000);
        let mut wanted = Wanted::default();
        chunks.name((at(0, 0), Some(300)), launch(1000), &Ten(99), &mut wanted);
        assert!(!chunks.begin(1001, 325));
        assert_eq!(chunks.distance(0, 1001), 300);
        assert!(chunks.begin(1002, 650));
        assert_eq!(chunks.distance(0, 1002), 2 * 20 + 1002);
    }

    /// A chunk that is mapped at two places side by side (a ring), the upper one first: its end is where it begins again.
    struct Ring(std::cell::Cell<u32>);

    impl Places for Ring {
        fn find(&self, address: u64) -> Option<u32> {
            let place = address.checked_sub(BASE)? / CHUNK;
            [0, 1, 1].get(usize::try_from(place).unwrap()).copied()
        }

        fn end(&self, chunk: u32) -> u64 {
            self.0.set(self.0.get() + 1);
            assert!(self.0.get() < 100_000, "it never ends");
            // As `Chunk::map` notes it: of the mapping that was made last.
            BASE + u64::from(chunk + 1) * CHUNK
        }

        fn is_on_host(&self, _: u32) -> bool {
            false
        }
    }

    #[test]
    fn a_ring_behind_a_tensor_has_an_end() {
        let mut chunks = chunks(1000);
        chunks.name((at(0, 10), Some(200)), launch(1001), &Ring(std::cell::Cell::new(0)), &mut Wanted::default());
    }

    /// What `Chunk::drop` leaves behind of a number: a chunk that is gone counts as one of the device.
    #[test]
    fn a_chunk_that_is_gone_is_not_on_the_device() {
        let rig = crate::rig::rig(256 << 20, 256 << 20);
        let gone = rig.chunk(2 << 20, 1);
        let number = gone.number;
        let on_host = rig.chunk(2 << 20, 1);
        let host_number = on_host.number;
        rig.exchange(&[std::sync::Arc::clone(&on_host)], &[]);
        let mut chunks = chunks(1000);
        let here = crate::swap::reuse::Here;
        let mut wanted = Wanted::default();
        let address = on_host.inner().address.unwrap().0 as u64;
        chunks.name((address, Some(3)), launch(1000), &here, &mut wanted);
        let address = gone.inner().address.unwrap().0 as u64;
        chunks.name((address, Some(3)), launch(1000), &here, &mut wanted);
        for chunk in [gone, on_host] {
            rig.unmap(&chunk);
            drop(chunk);
        }
        chunks.begin(1000, 320);
        let mut wanted = Wanted::default();
        chunks.due(&here, &mut wanted);
        let latest = chunks.latest(&here, 1_000_000);
        assert_eq!(
            (wanted.numbers().contains(&host_number), here.is_on_device(number), latest),
            (false, false, 0),
            "due though gone, on the device though gone, and used last of all"
        );
    }
}
