//! After how many launches that which a launch names is named again: the reuse distances of the launches of late.

/// Launches that are remembered, and addresses: powers of two.
const LAUNCHES: usize = 1 << 16;
const NAMINGS: usize = 1 << 20;
/// Places in the table of addresses.
const PLACES: usize = 1 << 18;

/// See the head of the file.
pub(super) struct Links {
    /// Of each launch the number of its first naming; the newest in place of the oldest.
    firsts: Box<[u64]>,
    /// Of each naming the launches until the next one of the address; 0 if there was none yet.
    again: Box<[u32]>,
    /// Addresses, the launches that named them last, and those namings.
    last: Box<[(u64, u64, u64)]>,
    /// Namings so far.
    namings: u64,
}

/// Where something is in a table that is written round and round.
fn place(number: u64, places: usize) -> usize {
    usize::try_from(number % places as u64).unwrap_or(0)
}

impl Links {
    pub(super) fn new() -> Self {
        Self {
            firsts: vec![0; LAUNCHES].into_boxed_slice(),
            again: vec![0; NAMINGS].into_boxed_slice(),
            last: vec![(0, 0, 0); PLACES].into_boxed_slice(),
            namings: 0,
        }
    }

    /// A launch begins; they come in the order of their numbers.
    #[inline]
    pub(super) fn begin(&mut self, launch: u64) {
        self.firsts[place(launch, LAUNCHES)] = self.namings;
    }

    /// It names an address.
    #[inline]
    pub(super) fn name(&mut self, launch: u64, address: u64) {
        let key = address.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let last = &mut self.last[usize::try_from(key >> 40).unwrap_or(0) % PLACES];
        if last.0 == address && last.1 < launch && self.namings - last.2 <= NAMINGS as u64 {
            self.again[place(last.2, NAMINGS)] = u32::try_from(launch - last.1).unwrap_or(0);
        }
        *last = (address, launch, self.namings);
        self.again[place(self.namings, NAMINGS)] = 0;
        self.namings += 1;
    }

    /// After how many launches that was named again which stood at a place among the addresses of an earlier launch; of
    /// the one before `now` all is known.
    #[inline]
    pub(super) fn again(&self, launch: u64, place_among: usize, now: u64) -> Option<u64> {
        if now - launch >= LAUNCHES as u64 {
            return None;
        }
        let first = self.firsts[place(launch, LAUNCHES)];
        let end = self.firsts[place(launch + 1, LAUNCHES)];
        let naming = first + place_among as u64;
        if naming >= end || self.namings - naming >= NAMINGS as u64 {
            return None;
        }
        Some(u64::from(self.again[place(naming, NAMINGS)])).filter(|again| *again > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_again_is_known_of_the_launches_of_late() {
        let (mut links, step) = (Links::new(), 1500);
        // Some are lost where two addresses share a place.
        let (mut right, mut asked) = (0, 0);
        for launch in 0..200_000_u64 {
            links.begin(launch);
            if let Some(before) = launch.checked_sub(step) {
                let found = [links.again(before, 0, launch), links.again(before, 1, launch)];
                right += u32::from(found == [Some(700), (before % 2 == 0).then_some(1)]);
                asked += 1;
                assert_eq!(links.again(before, 2, launch), None, "there are two");
            }
            links.name(launch, (launch % 700 + 1) << 20);
            links.name(launch, (launch / 2 + 1) << 40);
        }
        assert!(right * 100 > asked * 99, "{right} of {asked}");
        assert_eq!(links.again(199_990, 0, 200_000), None, "not yet");
        assert_eq!(links.again(1000, 0, 200_000), None, "forgotten");
    }
}
