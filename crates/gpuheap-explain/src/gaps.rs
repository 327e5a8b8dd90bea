//! Stacks that were not recorded, told from the same allocations elsewhere in the recording.
//!
//! PyTorch walks the stack of the program at every allocation. A program that only launches small kernels is slowed by
//! that, so a recorder lets it walk in some stretches of time and not in others: the gaps. A training or generation loop
//! does the same over and over: what came before and after an allocation, sizes and streams of allocations and frees,
//! says which place of the program it was. An allocation in a gap gets the stack that all allocations with the same
//! surroundings have outside the gaps. Where these differ, or there are none, the stack stays unknown and says so.
//!
//! How often that is right is not assumed but measured, on the recording itself: every other stretch that was recorded
//! is told from the rest and compared. Surroundings that fail there are not used.

use foldhash::HashMap;
use gpuheap_record::{DeviceRecording, EventKind, Events, Frame, Recording, StackId, StackTable};

/// Clocks of the recorder and of the events may differ by so much, in microseconds.
const SLACK_US: u64 = 2_000;
/// What a surrounding must get right in the check, at least: below, a guess would do harm.
const LEAST_RIGHT: f64 = 0.98;
/// Fewer than these answers in the check prove nothing.
const LEAST_CHECKED: u64 = 20;
/// Lives, in allocations and frees, from which on a block counts as longer-lived: what a module or an optimizer makes
/// once is not taken for what it makes in each step.
const LIVES: [usize; 2] = [64, 8192];
/// The file of the frame that stands for a stack that is not known.
pub(crate) const UNKNOWN_FILE: &str = "<stack not recorded>";

/// Surroundings, from the most telling to the least: how many allocations and frees before and after, and whether sizes
/// have to be the same or only about the same (caches of keys and values grow with each token).
const SURROUNDINGS: [Surrounding; 9] = [
    Surrounding { before: 24, after: 24, sizes: Sizes::Same },
    Surrounding { before: 24, after: 24, sizes: Sizes::About },
    Surrounding { before: 12, after: 12, sizes: Sizes::Same },
    Surrounding { before: 12, after: 12, sizes: Sizes::About },
    Surrounding { before: 40, after: 40, sizes: Sizes::Any },
    Surrounding { before: 12, after: 2, sizes: Sizes::About },
    Surrounding { before: 2, after: 12, sizes: Sizes::About },
    Surrounding { before: 5, after: 5, sizes: Sizes::Same },
    Surrounding { before: 5, after: 5, sizes: Sizes::About },
];
/// So many of them are used although they could not be checked.
const UNCHECKED: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Surrounding {
    before: usize,
    after: usize,
    sizes: Sizes,
}

/// What must be the same of sizes.
#[derive(Clone, Copy, Debug)]
enum Sizes {
    Same,
    /// To about a quarter.
    About,
    /// Nothing: the order of allocations and frees alone tells. Batches may be of any shape.
    Any,
}

/// What became of the stacks in the gaps. Counts of allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FilledGaps {
    /// Outside the gaps: recorded.
    pub recorded: u64,
    /// In a gap, told from surroundings.
    pub told: u64,
    /// In a gap, and not told.
    pub unknown: u64,
    /// Recorded stacks that were told from the rest of the recording, to see how well that goes.
    pub checked: u64,
    /// Of these, those that came out right.
    pub right: u64,
}

impl FilledGaps {
    /// One sentence for the reader of a report; `None` if there was nothing to tell.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let all = self.recorded + self.told + self.unknown;
        if self.told + self.unknown == 0 {
            return None;
        }
        let percent = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 * 100.0 / of as f64 };
        let checked = if self.checked > 0 {
            format!(" ({:.1} % right where that could be checked)", percent(self.right, self.checked))
        } else {
            String::new()
        };
        Some(format!(
            "to cost little, stacks were recorded in stretches: of {:.0} % of the allocations; of {:.1} % the stack was \
             told from the same sequence of allocations where it was recorded{checked}; {:.1} % stayed unknown",
            percent(self.recorded, all),
            percent(self.told, all),
            percent(self.unknown, all)
        ))
    }
}

/// Gives the allocations in `gaps` (from and to in microseconds of the events' clock, ascending) their stacks.
///
/// Allocations on threads that Python does not know (the backward pass) have no stack outside the gaps either, and are
/// told to have none.
pub fn fill_gaps(recording: &mut Recording, gaps: &[(u64, u64)]) -> FilledGaps {
    let mut filled = FilledGaps::default();
    if gaps.is_empty() {
        return filled;
    }
    let file = recording.strings.intern(UNKNOWN_FILE);
    let function = recording.strings.intern("unknown");
    let frame = recording.frames.insert(Frame { function, file, line: 0 });
    let unknown = recording.stacks.intern(&[frame]);
    for device in &mut recording.devices {
        fill(device, gaps, unknown, &mut filled);
    }
    filled
}

fn fill(device: &mut DeviceRecording, gaps: &[(u64, u64)], unknown: StackId, filled: &mut FilledGaps) {
    let rows = Rows::new(&device.events, gaps);
    let hidden = rows.allocations.iter().filter(|row| row.stretch.is_none()).count() as u64;
    filled.recorded += rows.allocations.len() as u64 - hidden;
    if hidden == 0 {
        return;
    }
    let trusted = rows.check(filled);
    let learnt: Vec<(Surrounding, HashMap<u64, Told>)> =
        trusted.into_iter().map(|surrounding| (surrounding, rows.learn(surrounding, |_| true))).collect();
    for row in rows.allocations.iter().filter(|row| row.stretch.is_none()) {
        let told = learnt.iter().find_map(|(surrounding, known)| known.get(&rows.key(row, *surrounding)?)?.only());
        let mut event = device.events.get(row.event);
        event.stack = told.unwrap_or(unknown);
        device.events.set(row.event, event);
        *(if told.is_some() { &mut filled.told } else { &mut filled.unknown }) += 1;
    }
}

/// What allocations with one surrounding have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Stack(StackId),
    Several,
}

impl Told {
    fn only(self) -> Option<StackId> {
        match self {
            Self::Stack(stack) => Some(stack),
            Self::Several => None,
        }
    }
}

/// An allocation of a device.
#[derive(Clone, Copy, Debug)]
struct Row {
    event: gpuheap_record::EventId,
    /// Its place among allocations and frees.
    at: usize,
    /// How many of [`LIVES`] it outlived.
    life: usize,
    stack: StackId,
    /// The stretch between gaps in which it was recorded; `None` in a gap.
    stretch: Option<usize>,
}

/// Allocations and frees of a device, as their hashes: of any surrounding in constant time.
#[derive(Debug, Default)]
struct Rows {
    allocations: Vec<Row>,
    same: Hashes,
    about: Hashes,
    any: Hashes,
}

impl Rows {
    fn new(events: &Events, gaps: &[(u64, u64)]) -> Self {
        let mut rows = Self::default();
        let mut live: HashMap<u64, usize> = HashMap::default();
        for id in events.ids() {
            let kind = events.kind(id);
            if !matches!(kind, EventKind::Alloc | EventKind::FreeRequested) {
                continue;
            }
            let at = rows.same.len();
            let (size, stream) = (events.size(id), u64::from(events.stream(id).get()));
            let lane = (stream << 1) | u64::from(kind == EventKind::Alloc);
            rows.same.push(lane, size);
            rows.about.push(lane, about(size));
            rows.any.push(lane, 0);
            if kind == EventKind::Alloc {
                let stack = events.stack(id);
                let stretch = stretch(events.time_us(id), stack, gaps);
                live.insert(events.address(id), rows.allocations.len());
                rows.allocations.push(Row { event: id, at, life: LIVES.len(), stack, stretch });
            } else if let Some(index) = live.remove(&events.address(id)) {
                let row = &mut rows.allocations[index];
                row.life = LIVES.iter().filter(|&&life| at - row.at > life).count();
            }
        }
        rows
    }

    /// What stands for an allocation and its surroundings; `None` at the ends of the recording.
    fn key(&self, row: &Row, surrounding: Surrounding) -> Option<u64> {
        let hashes = match surrounding.sizes {
            Sizes::Same => &self.same,
            Sizes::About => &self.about,
            Sizes::Any => &self.any,
        };
        let hash = hashes.of(row.at.checked_sub(surrounding.before)?..row.at + surrounding.after + 1)?;
        Some(hash ^ row.life as u64)
    }

    /// What the recorded stretches say that `of` chooses.
    fn learn(&self, surrounding: Surrounding, of: impl Fn(usize) -> bool) -> HashMap<u64, Told> {
        let mut known = HashMap::default();
        for row in &self.allocations {
            let (Some(stretch), Some(hash)) = (row.stretch, self.key(row, surrounding)) else { continue };
            if of(stretch) {
                let told = known.entry(hash).or_insert(Told::Stack(row.stack));
                if *told != Told::Stack(row.stack) {
                    *told = Told::Several;
                }
            }
        }
        known
    }

    /// Tells every other stretch from the rest, both ways, and returns the surroundings that went well.
    fn check(&self, filled: &mut FilledGaps) -> Vec<Surrounding> {
        let mut trusted = Vec::new();
        let mut open: Vec<bool> = vec![true; self.allocations.len()];
        for (rank, surrounding) in SURROUNDINGS.into_iter().enumerate() {
            let (mut checked, mut right) = (0_u64, 0_u64);
            let mut answered = Vec::new();
            for half in [0, 1] {
                let known = self.learn(surrounding, |stretch| stretch % 2 == half);
                for (index, row) in self.allocations.iter().enumerate() {
                    if !open[index] || row.stretch.is_none_or(|stretch| stretch % 2 == half) {
                        continue;
                    }
                    let told = self.key(row, surrounding).and_then(|hash| known.get(&hash)?.only());
                    if let Some(stack) = told {
                        checked += 1;
                        right += u64::from(stack == row.stack);
                        answered.push(index);
                    }
                }
            }
            let proven = checked >= LEAST_CHECKED && right as f64 >= LEAST_RIGHT * checked as f64;
            if !(proven || checked == right && rank < UNCHECKED) {
                continue;
            }
            filled.checked += checked;
            filled.right += right;
            for index in answered {
                open[index] = false;
            }
            trusted.push(surrounding);
        }
        trusted
    }
}

/// The number of the stretch between gaps in which an allocation was recorded; `None` in a gap.
fn stretch(time_us: u64, stack: StackId, gaps: &[(u64, u64)]) -> Option<usize> {
    let next = gaps.partition_point(|&(from, _)| from.saturating_sub(SLACK_US) <= time_us);
    let inside = next.checked_sub(1).is_some_and(|last| time_us <= gaps[last].1.saturating_add(SLACK_US));
    // What has a stack was recorded, whatever the clocks say.
    (!inside || stack != StackTable::EMPTY).then_some(next)
}

/// A size to about a quarter, in steps of a power of two.
fn about(size: u64) -> u64 {
    if size < 8 {
        return size;
    }
    let power = u64::from(size.ilog2());
    power * 4 + ((size >> (power - 2)) & 3)
}

/// Hashes of a series of which any range can be had: polynomials, with wrapping arithmetic.
#[derive(Debug, Default)]
struct Hashes {
    /// Of the first n rows; empty before the first.
    prefix: Vec<u64>,
    powers: Vec<u64>,
}

impl Hashes {
    const BASE: u64 = 0x9E37_79B9_7F4A_7C15;

    fn len(&self) -> usize {
        self.prefix.len().saturating_sub(1)
    }

    fn push(&mut self, lane: u64, size: u64) {
        if self.prefix.is_empty() {
            self.prefix.push(0);
            self.powers.push(1);
        }
        let last = self.prefix[self.prefix.len() - 1];
        self.prefix.push(last.wrapping_mul(Self::BASE).wrapping_add(mix(lane ^ mix(size))));
        let power = self.powers[self.powers.len() - 1];
        self.powers.push(power.wrapping_mul(Self::BASE));
    }

    fn of(&self, range: std::ops::Range<usize>) -> Option<u64> {
        let end = *self.prefix.get(range.end)?;
        Some(mix(end.wrapping_sub(self.prefix[range.start].wrapping_mul(self.powers[range.len()]))))
    }
}

/// Spreads the bits of a number (the finalizer of `SplitMix64`).
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use gpuheap_record::Event;

    use super::*;

    /// Loops of `turns` turns with a block of each size, 1 ms each; a stack for each size.
    fn looping(turns: u64, sizes: &[u64], stack_of: impl Fn(&mut Recording, usize) -> StackId) -> Recording {
        let mut recording = Recording::default();
        let stacks: Vec<StackId> = (0..sizes.len()).map(|index| stack_of(&mut recording, index)).collect();
        for turn in 0..turns {
            for (&size, &stack) in sizes.iter().zip(&stacks) {
                let address = size << 12;
                let event = Event { address, size, stack, time_us: 1_000_000 + turn * 1000, ..Event::default() };
                recording.device_mut(0).events.push(event);
                let event = Event { kind: EventKind::FreeRequested, stack: StackTable::EMPTY, ..event };
                recording.device_mut(0).events.push(event);
            }
        }
        recording
    }

    fn line(recording: &mut Recording, line: usize) -> StackId {
        let (function, file) = (recording.strings.intern("step"), recording.strings.intern("train.py"));
        let frame = recording.frames.insert(Frame { function, file, line: u32::try_from(line).unwrap() });
        recording.stacks.intern(&[frame])
    }

    fn hide(recording: &mut Recording, gap: (u64, u64)) {
        let events = &mut recording.devices[0].events;
        for id in events.ids() {
            let event = events.get(id);
            if (gap.0..=gap.1).contains(&event.time_us) {
                events.set(id, Event { stack: StackTable::EMPTY, ..event });
            }
        }
    }

    const GAP: (u64, u64) = (1_100_000, 1_200_000);

    #[test]
    fn a_turn_in_a_gap_is_told_from_the_others() {
        // Some have no stack anywhere: the backward pass.
        let stack =
            |recording: &mut Recording, at: usize| if at % 5 == 4 { StackTable::EMPTY } else { line(recording, at) };
        let whole = looping(300, &[512, 1024, 7, 99_999, 4096, 1 << 30, 5, 6], stack);
        let mut recording = whole.clone();
        hide(&mut recording, GAP);
        let filled = fill_gaps(&mut recording, &[GAP]);
        assert!(filled.told > 700 && filled.unknown == 0 && filled.checked == filled.right, "{filled:?}");
        assert_eq!(recording.devices[0].events.stacks(), whole.devices[0].events.stacks());
        assert!(filled.note().unwrap().contains("100.0 % right"), "{:?}", filled.note());
    }

    #[test]
    fn what_looks_alike_in_several_places_stays_unknown() {
        // The same sizes in the same order, at two places in turn: nothing tells which.
        let mut recording = looping(300, &[512; 8], |_, _| StackTable::EMPTY);
        let (one, other) = (line(&mut recording, 1), line(&mut recording, 2));
        for (index, id) in recording.devices[0].events.ids().enumerate() {
            let event = recording.devices[0].events.get(id);
            if event.kind == EventKind::Alloc {
                let stack = if index / 2 % 2 == 0 { one } else { other };
                recording.devices[0].events.set(id, Event { stack, ..event });
            }
        }
        hide(&mut recording, GAP);
        let filled = fill_gaps(&mut recording, &[GAP]);
        assert_eq!((filled.told, filled.checked), (0, 0), "{filled:?}");
        let unknown = recording.devices[0].events.ids().filter(|&id| {
            let frame = recording.stacks.innermost(recording.devices[0].events.stack(id));
            frame.is_some_and(|frame| recording.file(frame) == UNKNOWN_FILE)
        });
        assert_eq!(unknown.count() as u64, filled.unknown);
    }

    #[test]
    fn what_is_recorded_in_spite_of_a_gap_stays() {
        let whole = looping(300, &[512, 1024], line);
        let mut recording = whole.clone();
        let filled = fill_gaps(&mut recording, &[GAP]);
        assert_eq!((filled.told, filled.unknown, filled.note()), (0, 0, None));
        assert_eq!(recording.devices[0].events.stacks(), whole.devices[0].events.stacks());
    }

    #[test]
    fn sizes_are_about_the_same_within_a_quarter() {
        assert_eq!(about(1 << 20), about((1 << 20) + 1000));
        assert_ne!(about(1 << 20), about(3 << 19));
        for size in [0, 1, 7, 8, 9, u64::MAX] {
            assert!(about(size) <= 256 + 8, "{size}");
        }
    }
}
