//! Garbage that piles up over steps until the collector runs.
//!
//! Memory that a step made and that no reference from the program reaches any more stays as long as its objects refer
//! to each other in a cycle. When Python's collector runs, everything that has piled up dies at once, whatever its age.
//!
//! A list that the program clears dies at once as well, and is no fault. The two differ in the order: the collector
//! goes through its objects from the oldest to the youngest, a list drops its items from the last to the first.

use gpuheap_record::StackId;

use crate::leaks::{GroupKey, Window, group_of};
use crate::lifetimes::{Allocation, Tick};
use crate::phases::Phases;
use crate::steps::StepBoundaries;
use foldhash::HashMap;

/// Memory of several steps that died together.
#[derive(Clone, Debug)]
pub(crate) struct Burst {
    /// The step in which it died.
    pub(crate) step: usize,
    /// Bytes that died.
    pub(crate) bytes: u64,
    /// How many different steps had made it.
    pub(crate) ages: usize,
}

/// A saw-tooth: bursts, and what piles up between them.
#[derive(Clone, Debug)]
pub(crate) struct Sawtooth {
    pub(crate) bursts: Vec<Burst>,
    /// The place that most of it was made at.
    pub(crate) main: GroupKey,
    /// Bytes a step that pile up.
    pub(crate) rate: f64,
    /// The most that had piled up.
    pub(crate) bytes: u64,
    /// Bytes alive at each boundary, all places together.
    pub(crate) curve: Vec<u64>,
}

/// Looks for bursts; `None` if there are too few steps or no bursts.
pub(crate) fn find(
    rows: &[Allocation],
    allocated: &[u64],
    phases: &Phases,
    steps: &StepBoundaries,
) -> Option<Sawtooth> {
    let window = Window::new(&steps.ticks)?;
    // Blocks that outlived their step by two or more, by the step in which they died.
    let mut deaths: HashMap<usize, Vec<(usize, &Allocation)>> = HashMap::default();
    for row in rows {
        if row.born == Tick::START || row.freed > window.horizon {
            continue;
        }
        let (born, died) = (steps.step_of(row.born), steps.step_of(row.freed));
        if died >= born + 2 && born > 0 {
            deaths.entry(died).or_default().push((born, row));
        }
    }
    let mut died_in: Vec<usize> = deaths.keys().copied().collect();
    died_in.sort_unstable();
    let mut bursts = Vec::new();
    let mut by_group: HashMap<GroupKey, u64> = HashMap::default();
    let mut made: u64 = 0;
    let mut made_in = 0_usize;
    for step in died_in {
        let Some(dead) = deaths.get_mut(&step) else { continue };
        dead.sort_by_key(|&(_, row)| row.freed);
        if !oldest_first(dead) {
            continue;
        }
        let mut ages: Vec<usize> = dead.iter().map(|&(born, _)| born).collect();
        ages.sort_unstable();
        ages.dedup();
        if ages.len() < 3 {
            continue;
        }
        let bytes = dead.iter().fold(0_u64, |sum, (_, row)| sum.saturating_add(row.size));
        for (_, row) in dead.iter() {
            let sum = by_group.entry(group_of(row, phases)).or_default();
            *sum = sum.saturating_add(row.size);
        }
        made = made.saturating_add(bytes);
        made_in += ages.len();
        bursts.push(Burst { step, bytes, ages: ages.len() });
    }
    if bursts.len() < 2 {
        return None;
    }
    let main = by_group.into_iter().max_by_key(|&(key, bytes)| (bytes, std::cmp::Reverse(key))).map(|(key, _)| key)?;
    if main.stack == StackId::default() && main.frameless_size == 0 {
        return None;
    }
    let curve = steps.ticks.iter().map(|tick| allocated.get(tick.index()).copied().unwrap_or(0)).collect();
    let bytes = bursts.iter().map(|burst| burst.bytes).max().unwrap_or(0);
    Some(Sawtooth { bursts, main, rate: made as f64 / made_in.max(1) as f64, bytes, curve })
}

/// Whether of the neighbours that different steps made, nearly all died with the older first.
fn oldest_first(dead: &[(usize, &Allocation)]) -> bool {
    let (mut rising, mut falling) = (0_usize, 0_usize);
    for pair in dead.windows(2) {
        match pair[0].0.cmp(&pair[1].0) {
            std::cmp::Ordering::Less => rising += 1,
            std::cmp::Ordering::Greater => falling += 1,
            std::cmp::Ordering::Equal => {}
        }
    }
    rising >= 4 * falling.max(1) || (falling == 0 && rising >= 2)
}
