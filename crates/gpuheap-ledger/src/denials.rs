//! Requests that were refused: a ring that all processes of a run write, and that is read at any time.
//!
//! There is no lock. A writer takes the next number, which says where it writes, and puts a sum over all fields in last.
//! Whoever finds another sum has met a writer in the middle, two of which one is a whole round late, or one that was
//! killed there: such an entry is torn and says nothing.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::identity::Identity;
use crate::kind::Kind;
use crate::name::Name;
use crate::sync::{AtomicU64, Ordering};

/// How many are kept.
pub const KEPT: usize = if cfg!(loom) { 1 } else { 64 };
/// Fields of an entry, without its sum.
const FIELDS: usize = 10;

/// The ring.
#[repr(C)]
#[derive(Debug)]
pub struct Ring {
    /// How many there ever were.
    pub count: AtomicU64,
    /// By number, modulo [`KEPT`].
    pub entries: [Entry; KEPT],
}

/// A place of the ring.
#[repr(C)]
#[derive(Debug)]
pub struct Entry {
    fields: [AtomicU64; FIELDS],
    sum: AtomicU64,
}

/// A request that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denial {
    /// Its number in the run, from 1.
    pub number: u64,
    /// Who asked.
    pub owner: Identity,
    /// What that is called.
    pub name: Name,
    /// For which device; [`crate::HOST`] if for none.
    pub device: usize,
    /// For what.
    pub kind: Kind,
    /// How many bytes.
    pub bytes: u64,
    /// How many bytes the run held, of those that count against the limit.
    pub used: u64,
    /// The limit: the device's budget, or that of spilled memory.
    pub limit: u64,
    /// When: milliseconds since 1970.
    pub time: u64,
}

impl Ring {
    /// Enters a request; its number is found and the time is now.
    pub fn note(&self, (owner, name): (Identity, Name), device: usize, kind: Kind, [bytes, used, limit]: [u64; 3]) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        let time = u64::try_from(time).unwrap_or(u64::MAX);
        self.entry(number).put(&Denial { number, owner, name, device, kind, bytes, used, limit, time });
    }

    fn entry(&self, number: u64) -> &Entry {
        &self.entries[usize::try_from(number.wrapping_sub(1) % KEPT as u64).unwrap_or(0)]
    }
}

#[cfg(any(test, loom))]
impl Default for Ring {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        let entry = || Entry { fields: std::array::from_fn(|_| zero()), sum: zero() };
        Self { count: zero(), entries: std::array::from_fn(|_| entry()) }
    }
}

#[cfg(any(test, loom))]
impl Ring {
    /// What is there, without a snapshot of a file.
    #[must_use]
    pub fn read(&self) -> Vec<Denial> {
        let read = |(place, entry): (usize, &Entry)| Denial::read(place, &entry.words());
        self.entries.iter().enumerate().filter_map(read).collect()
    }
}

impl Entry {
    #[cfg(any(test, loom))]
    fn words(&self) -> [u64; Denial::WORDS] {
        let mut words = [0; Denial::WORDS];
        for (word, field) in words.iter_mut().zip(self.fields.iter().chain([&self.sum])) {
            *word = field.load(Ordering::SeqCst);
        }
        words
    }

    fn put(&self, denial: &Denial) {
        let values = denial.values();
        for (field, value) in self.fields.iter().zip(values) {
            field.store(value, Ordering::SeqCst);
        }
        self.sum.store(sum(&values), Ordering::SeqCst);
    }
}

impl Denial {
    /// Words of an entry as it is in memory.
    pub(crate) const WORDS: usize = FIELDS + 1;

    fn values(&self) -> [u64; FIELDS] {
        let device = u64::try_from(self.device).unwrap_or(u64::MAX);
        let kind = u64::from(self.kind as u32);
        let [name, rest] = self.name.words();
        [self.number, self.owner.number(), name, rest, device, kind, self.bytes, self.used, self.limit, self.time]
    }

    /// What is at a place of the ring; nothing if it is empty or torn.
    pub(crate) fn read(place: usize, words: &[u64; Self::WORDS]) -> Option<Self> {
        let [number, owner, name, rest, device, kind, bytes, used, limit, time, found] = *words;
        let is_there = number != 0 && usize::try_from((number - 1) % KEPT as u64) == Ok(place);
        if !is_there || sum(&[number, owner, name, rest, device, kind, bytes, used, limit, time]) != found {
            return None;
        }
        let kind = Kind::from_number(u32::try_from(kind).ok()?)?;
        let device = usize::try_from(device).ok()?;
        let (owner, name) = (Identity::from_number(owner), Name::from_words([name, rest]));
        Some(Self { number, owner, name, device, kind, bytes, used, limit, time })
    }
}

/// A sum that depends on every bit of every field and on their order.
fn sum(values: &[u64; FIELDS]) -> u64 {
    values.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, value| {
        let mixed = (sum ^ value).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb).rotate_left(23)
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_ones_are_kept() {
        let ring = Ring::default();
        assert_eq!(ring.read(), []);
        for bytes in 1..=100 {
            ring.note((Identity::from_number(7), Name::of(b"x")), 3, Kind::Physical, [bytes, 2, 3]);
        }
        let mut numbers: Vec<u64> = ring.read().iter().map(|denial| denial.number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (37..=100).collect::<Vec<_>>());
        let last = ring.read().into_iter().max_by_key(|denial| denial.number).unwrap();
        assert_eq!((last.owner.number(), last.name, last.device, last.kind), (7, Name::of(b"x"), 3, Kind::Physical));
        assert_eq!((last.bytes, last.used, last.limit), (100, 2, 3));
        assert!(last.time > 1_600_000_000_000);
    }

    /// Each writer's fields belong together, so that a mixture of two shows.
    #[test]
    fn whoever_reads_meanwhile_sees_whole_entries_only() {
        let ring = Ring::default();
        thread::scope(|scope| {
            for writer in 1..=4_u64 {
                let ring = &ring;
                scope.spawn(move || {
                    for _ in 0..5000 {
                        let name = Name::from_words([writer, 0]);
                        let figures = [writer, writer * 2, writer * 3];
                        ring.note((Identity::from_number(writer), name), 1, Kind::Linear, figures);
                    }
                });
            }
            for _ in 0..300 {
                for denial in ring.read() {
                    let writer = denial.owner.number();
                    assert_eq!(denial.name, Name::from_words([writer, 0]));
                    assert_eq!((denial.bytes, denial.used, denial.limit), (writer, writer * 2, writer * 3));
                }
            }
        });
        assert_eq!(ring.count.load(Ordering::SeqCst), 20_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn an_entry_with_any_word_of_another_is_torn(
            values in any::<[u64; 4]>(), place in 0..Denial::WORDS, other in any::<u64>(),
        ) {
            let [owner, bytes, used, limit] = values;
            let ring = Ring::default();
            ring.note((Identity::from_number(owner), Name::of(b"y")), 0, Kind::Pools, [bytes, used, limit]);
            let mut found = ring.entries[0].words();
            prop_assert!(Denial::read(0, &found).is_some_and(|denial| denial.bytes == bytes));
            prop_assert!(Denial::read(1, &found).is_none());
            let changed = found[place] != other;
            found[place] = other;
            prop_assert_eq!(Denial::read(0, &found).is_none(), changed);
        }
    }
}
