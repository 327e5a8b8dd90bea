//! What a program launches, one launch after the other, until it is known that it does the same again and again.
//!
//! A launch is known by a signature: its kernel, its grid and the addresses among its arguments. Each launch looks up when
//! its signature was last met; where most launches of a stretch as long as a step were met the same number of launches
//! ago, that number is the period. Layers of a network repeat as well, but with other addresses.

use std::ops::Range;
use std::time::Instant;

/// One launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    /// Kernel, grid and addresses.
    pub(crate) signature: u64,
    pub(crate) call: Call,
    /// Where its addresses begin in those of all.
    first: u32,
}

/// A launch but for its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Kernel and grid: what has the same works on tensors of the same sizes.
    pub(crate) kind: u64,
    /// The kernel.
    pub(crate) function: u64,
    /// Blocks of its grid; 0 if it is a graph.
    pub(crate) blocks: u64,
    /// How often it reads its operands, about.
    pub(crate) passes: u32,
}

/// Launches at most, and addresses.
const LAUNCHES: usize = 1 << 17;
const USES: usize = 1 << 20;
/// Places in the table of signatures: a power of two.
const PLACES: usize = 1 << 18;
/// Votes are counted after so many launches.
const WINDOW: u32 = 256;
/// So many of them have to agree, in hundredths.
const AGREE: u32 = 60;

/// All launches since it was made. Nothing is allocated after that.
pub(crate) struct Sequence {
    launches: Vec<Launch>,
    uses: Vec<u64>,
    /// Signatures and the launches that had them last, the newer in place of the older.
    last: Box<[(u64, u32)]>,
    votes: Votes,
    /// When each window ended.
    times: Vec<Instant>,
}

/// One period of a sequence.
#[derive(Debug)]
pub(crate) struct Period {
    pub(crate) launches: Vec<Launch>,
    uses: Vec<u64>,
    /// Seconds that it took.
    pub(crate) seconds: f64,
}

/// Which distance most launches of a window have, and since how many launches it is the same.
#[derive(Default)]
struct Votes {
    distance: u32,
    seen: u32,
    agreeing: u32,
    /// For how many launches the distance has been right.
    agreed: u32,
    /// Another distance, and how much it leads (the majority vote of Boyer and Moore).
    other: u32,
    lead: u32,
}

impl Sequence {
    pub(crate) fn new() -> Self {
        Self {
            launches: Vec::with_capacity(LAUNCHES),
            uses: Vec::with_capacity(USES),
            last: vec![(0, 0); PLACES].into_boxed_slice(),
            votes: Votes::default(),
            times: Vec::with_capacity(LAUNCHES / WINDOW as usize + 1),
        }
    }

    /// Notes a launch. True if it is known now how long the period is. When it is full, it begins again.
    pub(crate) fn note(&mut self, signature: u64, call: Call, addresses: &[u64]) -> bool {
        if self.launches.len() == LAUNCHES || self.uses.len() + addresses.len() > USES {
            self.clear();
        }
        let (Ok(number), Ok(first)) = (u32::try_from(self.launches.len()), u32::try_from(self.uses.len())) else {
            return false;
        };
        self.launches.push(Launch { signature, call, first });
        self.uses.extend_from_slice(addresses);
        let place = &mut self.last[usize::try_from(signature >> 40).unwrap_or(0) % PLACES];
        let distance = if place.0 == signature { number - place.1 } else { 0 };
        *place = (signature, number);
        if self.votes.count(distance) {
            self.times.push(Instant::now());
        }
        self.votes.period().is_some()
    }

    fn clear(&mut self) {
        self.launches.clear();
        self.uses.clear();
        self.last.fill((0, 0));
        self.votes = Votes::default();
        self.times.clear();
    }

    /// The last period, of at least `least` launches.
    pub(crate) fn period(&self, least: usize) -> Option<Period> {
        let one = self.votes.period()? as usize;
        let length = one * least.div_ceil(one);
        let start = self.launches.len().checked_sub(length)?;
        let first = self.launches[start].first;
        let launches: Vec<Launch> =
            self.launches[start..].iter().map(|launch| Launch { first: launch.first - first, ..*launch }).collect();
        Some(Period { launches, uses: self.uses[first as usize..].to_vec(), seconds: self.seconds(length)? })
    }

    /// How long so many launches took of late.
    fn seconds(&self, launches: usize) -> Option<f64> {
        let windows = launches.div_ceil(WINDOW as usize).min(self.times.len().checked_sub(1)?).max(1);
        let (last, first) = (self.times.last()?, self.times.get(self.times.len() - 1 - windows)?);
        let stretch = last.duration_since(*first).as_secs_f64();
        Some(stretch * launches as f64 / (windows * WINDOW as usize) as f64)
    }
}

impl Period {
    /// The addresses of a launch.
    pub(crate) fn uses(&self, launch: usize) -> &[u64] {
        &self.uses[self.places(launch)]
    }

    /// Where those are among the addresses of all launches.
    pub(crate) fn places(&self, launch: usize) -> Range<usize> {
        let first = self.launches[launch].first as usize;
        let end = self.launches.get(launch + 1).map_or(self.uses.len(), |next| next.first as usize);
        first..end
    }

    #[cfg(test)]
    pub(crate) fn of(launches: &[(u64, Call, &[u64])], seconds: f64) -> Self {
        let mut sequence = Sequence::new();
        for (signature, call, addresses) in launches {
            sequence.note(*signature, *call, addresses);
        }
        Self { launches: sequence.launches, uses: sequence.uses, seconds }
    }
}

#[cfg(test)]
impl Call {
    /// One that is the only of its kernel.
    pub(crate) fn of(kind: u64, passes: u32) -> Self {
        Self { kind, function: kind, blocks: 1, passes }
    }
}

impl Votes {
    /// Counts a vote, 0 being none. True at the end of a window.
    fn count(&mut self, distance: u32) -> bool {
        self.seen += 1;
        if distance > 0 {
            self.agreeing += u32::from(distance == self.distance);
            if self.lead == 0 {
                self.other = distance;
            }
            if distance == self.other {
                self.lead += 1;
            } else {
                self.lead -= 1;
            }
        }
        if self.seen < WINDOW {
            return false;
        }
        if self.agreeing * 100 >= WINDOW * AGREE {
            self.agreed += WINDOW;
        } else {
            self.distance = self.other;
            self.agreed = 0;
        }
        (self.seen, self.agreeing, self.lead) = (0, 0, 0);
        true
    }

    /// The distance, if it has been right for as long as it is.
    fn period(&self) -> Option<u32> {
        (self.distance > 0 && self.agreed >= self.distance.max(2 * WINDOW)).then_some(self.distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(sequence: &mut Sequence, signatures: impl IntoIterator<Item = u64>) -> Option<usize> {
        let mut found = None;
        for (number, signature) in signatures.into_iter().enumerate() {
            let signature = signature.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            if sequence.note(signature, Call::of(signature >> 8, 1), &[signature, 7]) && found.is_none() {
                found = Some(number);
            }
        }
        found
    }

    #[test]
    fn a_step_is_told_from_its_layers_and_in_spite_of_exceptions() {
        let mut sequence = Sequence::new();
        // 30 layers of 40 launches, of which the first five have the same addresses in each layer; each 50th launch is new.
        let step = |turn: u64| {
            (0..1200_u64).map(move |launch| match launch {
                _ if launch % 50 == 49 => 1_000_000 + turn * 1200 + launch,
                _ if launch % 40 < 5 => launch % 40,
                _ => 1000 + launch,
            })
        };
        let found = feed(&mut sequence, (0..4).flat_map(step));
        assert!(found.is_some_and(|found| (2400..4000).contains(&found)), "{found:?}");
        let period = sequence.period(64).unwrap();
        assert_eq!(period.launches.len(), 1200);
        assert_eq!(period.uses(5), [period.launches[5].signature, 7]);
        assert!(period.seconds > 0.0);
    }

    #[test]
    fn a_short_loop_is_taken_several_times() {
        let mut sequence = Sequence::new();
        assert!(feed(&mut sequence, (0..2000).map(|launch| launch % 10)).is_some());
        assert_eq!(sequence.period(64).unwrap().launches.len(), 70);
    }

    #[test]
    fn what_does_not_repeat_has_no_period_and_a_full_log_begins_again() {
        let mut sequence = Sequence::new();
        assert_eq!(feed(&mut sequence, 0..LAUNCHES as u64 + 1000), None);
        assert_eq!(sequence.launches.len(), 1000);
        assert!(sequence.period(64).is_none());
        assert!(feed(&mut sequence, (0..3000).map(|launch| launch % 700)).is_some());
        assert_eq!((sequence.launches.capacity(), sequence.uses.capacity()), (LAUNCHES, USES));
    }
}
