//! Numbers about a chunk that share a word: so a touch of it is a load and a store.

/// Bits of a count and of a window's number.
const COUNT_BITS: u32 = 20;
const WINDOW_BITS: u32 = u64::BITS - 2 * COUNT_BITS;
/// Counts stop here.
pub(super) const MOST: u64 = (1 << COUNT_BITS) - 1;

/// Bits of an address that do not tell tensors apart: what is smaller than 64 KiB is not worth to be counted.
const START_BITS: u32 = 16;
/// So many bits say where tensors begin.
const STARTS: u64 = 64;

/// The bit of an address.
#[inline]
pub(super) fn start_bit(address: u64) -> u64 {
    (address >> START_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - STARTS.trailing_zeros())
}

/// About how many different addresses set these bits, those made up for that met in one: so many it takes on average until
/// so many bits are set (the coupon collector's sum).
pub(super) fn tensors(bits: u64) -> f64 {
    (bits.count_zeros() + 1..=bits.count_ones() + bits.count_zeros()).map(|free| STARTS as f64 / f64::from(free)).sum()
}

/// An address in units of 512 bytes, which is what allocators align to, and how often it was met.
#[derive(Clone, Copy)]
pub(super) struct Top(pub(super) u64);

impl Top {
    const COUNT_BITS: u32 = 16;
    const UNIT_BITS: u32 = 9;

    #[inline]
    fn new(place: u64, touches: u32) -> Self {
        Self(place << Self::COUNT_BITS | u64::from(touches.min((1 << Self::COUNT_BITS) - 1)))
    }

    #[inline]
    pub(super) fn with(self, address: u64, times: u32) -> Self {
        let (met, place) = (self.0 >> Self::COUNT_BITS, address >> Self::UNIT_BITS);
        match place.cmp(&met) {
            std::cmp::Ordering::Less => self,
            std::cmp::Ordering::Equal => Self::new(place, self.touches() + times),
            std::cmp::Ordering::Greater => Self::new(place, times),
        }
    }

    pub(super) fn touches(self) -> u32 {
        u32::try_from(self.0 & ((1 << Self::COUNT_BITS) - 1)).unwrap_or(0)
    }
}

/// What is in a chunk's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counts {
    pub(super) window: u32,
    pub(super) now: u64,
    pub(super) before: u64,
}

impl Counts {
    #[inline]
    pub(super) fn unpack(word: u64) -> Self {
        let window = u32::try_from(word >> (2 * COUNT_BITS)).unwrap_or(0);
        Self { window, now: word >> COUNT_BITS & MOST, before: word & MOST }
    }

    #[inline]
    pub(super) fn pack(self) -> u64 {
        u64::from(self.window) << (2 * COUNT_BITS) | self.now << COUNT_BITS | self.before
    }

    /// The same as it is in that window.
    #[inline]
    pub(super) fn at(self, window: u32) -> Self {
        let window = window % (1 << WINDOW_BITS);
        let (now, before) = match window.wrapping_sub(self.window) % (1 << WINDOW_BITS) {
            0 => (self.now, self.before),
            1 => (0, self.now),
            _ => (0, 0),
        };
        Self { window, now, before }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_word_holds_what_was_put_in(window in 0_u32..1 << WINDOW_BITS, now in 0..=MOST, before in 0..=MOST) {
            let counts = Counts { window, now, before };
            prop_assert_eq!(Counts::unpack(counts.pack()), counts);
        }
    }

    #[test]
    fn windows_begin_again() {
        let counts = Counts { window: (1 << WINDOW_BITS) - 1, now: MOST, before: 3 };
        assert_eq!(counts.at(1 << WINDOW_BITS), Counts { window: 0, now: 0, before: MOST });
        assert_eq!(counts.at(u32::MAX), counts);
    }
}
