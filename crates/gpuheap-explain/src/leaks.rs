//! Leaks: memory that the program keeps although no later step needs it.
//!
//! Being alive at the end proves nothing: weights are too. A leak shows in the steps: of what each step makes at one
//! place, something is still alive at the last boundary, in every part of the recording alike. Blocks that a bounded
//! buffer keeps survive only from the last steps, the first steps' state is made once, and a working set that grows
//! leaves nothing behind.

use foldhash::{HashMap, HashSet};
use gpuheap_record::StackId;

use crate::classes::{Classes, Rule};
use crate::lifetimes::{Allocation, AllocationId, Tick};
use crate::phases::Phases;
use crate::report::Confidence;
use crate::steps::{FEWEST_BOUNDARIES, StepBoundaries};
use crate::trend::slope;

/// The largest number of places that are followed through time …
const MOST_GROUPS: usize = 2048;
/// … and of their values at all boundaries together.
const MOST_VALUES: usize = 2_000_000;

/// Allocations that belong together: one stack; where there is none, one size and one backward pass's place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct GroupKey {
    /// The stack of the allocations, or of the root gradient for those without frames.
    pub(crate) stack: StackId,
    /// For allocations without frames their size in bytes; 0 for the others.
    pub(crate) frameless_size: u64,
}

/// The part of the recording that is judged.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// How many steps the recording has.
    pub(crate) steps: usize,
    /// Steps that are judged: after the warm-up, before the last ones, whose memory may still be in use.
    pub(crate) judged: std::ops::Range<usize>,
    /// The first steps, which make what stays.
    pub(crate) warm_up: usize,
    /// The last boundary.
    pub(crate) horizon: Tick,
}

impl Window {
    /// The window over `boundaries`; `None` if there are too few steps to tell anything.
    pub(crate) fn new(boundaries: &[Tick]) -> Option<Self> {
        let horizon = *boundaries.last()?;
        let (warm_up, judged) = judged(boundaries.len())?;
        Some(Self { steps: boundaries.len(), judged, warm_up, horizon })
    }
}

/// Of so many steps the first ones, which make what stays, and those that are judged; `None` if there are too few.
pub(crate) fn judged(steps: usize) -> Option<(usize, std::ops::Range<usize>)> {
    if steps < FEWEST_BOUNDARIES {
        return None;
    }
    let warm_up = (steps / 5).max(2);
    let tail = ((steps - warm_up) / 10).max(1);
    let judged = warm_up..steps - 1 - tail;
    (judged.len() >= 3).then_some((warm_up, judged))
}

/// One place whose memory survives.
#[derive(Clone, Debug)]
pub(crate) struct LeakGroup {
    pub(crate) key: GroupKey,
    /// Bytes that survive of each step, on average over the judged steps.
    pub(crate) rate: f64,
    /// Blocks that survive.
    pub(crate) survivors: usize,
    /// How many different sizes they have.
    pub(crate) sizes: usize,
    /// Bytes that are alive at the last boundary.
    pub(crate) bytes: u64,
    /// The smallest over the largest count of survivors of the thirds of the window.
    pub(crate) balance: f64,
    /// Judged steps that left survivors.
    pub(crate) steps_with_survivors: usize,
    /// The first step that left survivors, where the growth began late.
    pub(crate) began_late: Option<usize>,
    /// Bytes alive at each boundary.
    pub(crate) curve: Vec<u64>,
}

/// What the steps say about leaks.
#[derive(Clone, Debug)]
pub(crate) struct LeakAnalysis {
    pub(crate) window: Window,
    /// Places that leak, the fastest first.
    pub(crate) groups: Vec<LeakGroup>,
    /// Bytes a step by which all live memory grows.
    pub(crate) total_slope: f64,
    /// Live memory at each boundary.
    pub(crate) total_curve: Vec<u64>,
    /// The largest age in steps at which anything was freed after the warm-up.
    pub(crate) oldest_freed: usize,
    /// What was made after the warm-up, is alive at the last boundary and is not part of a growth: the group with most
    /// bytes, the step that made the first of it, and bytes of all such groups.
    pub(crate) kept: Option<(GroupKey, usize, u64)>,
}

impl LeakAnalysis {
    /// Bytes a step of all leaking places together.
    pub(crate) fn rate(&self) -> f64 {
        self.groups.iter().map(|group| group.rate).sum()
    }

    pub(crate) fn confidence(&self) -> Confidence {
        let main = self.groups.first();
        let balance = main.map_or(1.0, |main| main.balance);
        match (self.window.judged.len(), balance) {
            // Something else shrinks as fast: memory moves rather than grows.
            _ if main.is_some_and(|main| main.began_late.is_none()) && self.total_slope < 0.25 * self.rate() => {
                Confidence::Low
            }
            _ if main.is_some_and(|main| main.began_late.is_some()) => Confidence::Medium,
            (steps, balance) => confidence(steps, balance),
        }
    }
}

/// How sure a growth is that so many judged steps show, in the parts of the window as much alike as `balance` says.
pub(crate) fn confidence(judged: usize, balance: f64) -> Confidence {
    match (judged, balance) {
        (steps, balance) if steps >= 12 && balance >= 0.8 => Confidence::High,
        (steps, _) if steps >= 6 => Confidence::Medium,
        _ => Confidence::Low,
    }
}

#[derive(Default)]
struct Survivors {
    thirds: [usize; 3],
    bytes: u64,
    count: usize,
    steps: HashSet<usize>,
    sizes: HashSet<u64>,
    first: usize,
    last: usize,
    /// Bytes of the first step that left any.
    first_bytes: u64,
}

impl Survivors {
    /// Bytes a step: between the first and the last step that left any, so that what grows every tenth step counts whole
    /// tens; over all judged steps where there is no such distance.
    fn rate(&self, judged: usize) -> f64 {
        if self.last > self.first {
            self.bytes.saturating_sub(self.first_bytes) as f64 / (self.last - self.first) as f64
        } else {
            self.bytes as f64 / judged.max(1) as f64
        }
    }
}

/// Judges the steps; `None` if there are too few of them. `allocated` are the bytes alive after each event.
pub(crate) fn analyse(
    rows: &[Allocation],
    classes: &Classes,
    allocated: &[u64],
    phases: &Phases,
    steps: &StepBoundaries,
) -> Option<LeakAnalysis> {
    let window = Window::new(&steps.ticks)?;
    let total_curve: Vec<u64> =
        steps.ticks.iter().map(|tick| allocated.get(tick.index()).copied().unwrap_or(0)).collect();
    let total_slope = slope(&total_curve[window.warm_up..]);

    let mut survivors: HashMap<GroupKey, Survivors> = HashMap::default();
    let mut oldest_freed = 0;
    let first_judged = steps.ticks[window.warm_up - 1];
    for row in rows {
        if row.born <= first_judged || row.born > window.horizon {
            continue;
        }
        if row.freed <= window.horizon {
            if !steps.ticks.is_empty() {
                let age = steps.step_of(row.freed) - steps.step_of(row.born);
                oldest_freed = oldest_freed.max(age);
            }
            continue;
        }
        let step = steps.step_of(row.born);
        if !window.judged.contains(&step) {
            continue;
        }
        let group = survivors.entry(group_of(row, phases)).or_default();
        if group.count == 0 {
            group.first = step;
        }
        group.thirds[(step - window.judged.start) * 3 / window.judged.len()] += 1;
        group.bytes = group.bytes.saturating_add(row.size);
        group.count += 1;
        group.last = group.last.max(step);
        if step == group.first {
            group.first_bytes = group.first_bytes.saturating_add(row.size);
        }
        group.steps.insert(step);
        group.sizes.insert(row.requested);
    }

    let (mut suspects, others): (Vec<_>, Vec<_>) =
        survivors.into_iter().partition(|(_, group)| is_suspect(group, &window));
    let kept_bytes = others.iter().fold(0_u64, |sum, (_, group)| sum.saturating_add(group.bytes));
    let kept = others.into_iter().max_by_key(|&(key, ref group)| (group.bytes, std::cmp::Reverse(key)));
    let kept = kept.map(|(key, group)| (key, group.first, kept_bytes));
    suspects.sort_by_key(|(key, group)| (std::cmp::Reverse(group.bytes), *key));
    suspects.truncate(MOST_GROUPS.min(MOST_VALUES / window.steps).max(1));
    let curves = curves(rows, classes, phases, steps, &suspects);
    let mut groups = Vec::new();
    for ((key, group), curve) in suspects.into_iter().zip(curves) {
        let late = group.thirds[0] == 0;
        let growth = slope(&curve.bytes[window.warm_up..]);
        let grows_at_last = slope(&curve.bytes[group.first.min(curve.bytes.len() - 2)..]) > 0.0;
        // What began late and lets its oldest go is a buffer that has filled.
        // A buffer grows until it is full. From then on it frees one for each that it takes.
        let last_third = curve.bytes.len() - curve.bytes.len() / 3;
        let still_grows = curve.oldest_freed < 2 || slope(&curve.bytes[last_third..]) > 0.0;
        let grows = if late { grows_at_last && curve.oldest_freed < 2 } else { growth > 0.0 && still_grows };
        if !grows {
            continue;
        }
        groups.push(LeakGroup {
            key,
            rate: group.rate(window.judged.len()),
            survivors: group.count,
            sizes: group.sizes.len(),
            bytes: *curve.bytes.last().unwrap_or(&0),
            balance: if late { 1.0 } else { balance(&group.thirds) },
            steps_with_survivors: group.steps.len(),
            began_late: late.then_some(group.first),
            curve: curve.bytes,
        });
    }
    groups.sort_by(|a, b| b.rate.total_cmp(&a.rate).then_with(|| a.key.cmp(&b.key)));
    Some(LeakAnalysis { window, groups, total_slope, total_curve, oldest_freed, kept })
}

/// Which group an allocation belongs to.
pub(crate) fn group_of(row: &Allocation, phases: &Phases) -> GroupKey {
    if row.stack != StackId::default() {
        return GroupKey { stack: row.stack, frameless_size: 0 };
    }
    let root = phases.backward_of(row.born).map(|pass| pass.root).unwrap_or_default();
    GroupKey { stack: root, frameless_size: row.requested.max(1) }
}

/// The smallest over the largest of three parts.
pub(crate) fn balance(thirds: &[usize; 3]) -> f64 {
    let (fewest, most) = (thirds.iter().min().copied().unwrap_or(0), thirds.iter().max().copied().unwrap_or(0));
    if most == 0 { 0.0 } else { fewest as f64 / most as f64 }
}

/// From this balance on the parts are alike.
pub(crate) const BALANCED: f64 = 0.5;
/// A growth that began late is one after this many steps …
pub(crate) const LATE_STEPS: usize = 12;

/// … in at least this share of which it grew.
pub(crate) fn grew_in_most(steps_that_grew: usize, since: usize) -> bool {
    since >= LATE_STEPS && steps_that_grew * 10 >= since * 8
}

/// Survivors in every part of the window alike; or in nearly every step from some step on, for long.
fn is_suspect(group: &Survivors, window: &Window) -> bool {
    if group.thirds.iter().all(|&count| count > 0) {
        return balance(&group.thirds) >= BALANCED;
    }
    let since = window.judged.end - group.first;
    group.thirds[0] == 0 && grew_in_most(group.steps.len(), since)
}

struct Curve {
    bytes: Vec<u64>,
    oldest_freed: usize,
}

/// Bytes alive at each boundary, and the age at which blocks were freed, for each suspect.
fn curves(
    rows: &[Allocation],
    classes: &Classes,
    phases: &Phases,
    steps: &StepBoundaries,
    suspects: &[(GroupKey, Survivors)],
) -> Vec<Curve> {
    let index: HashMap<GroupKey, usize> = suspects.iter().enumerate().map(|(at, (key, _))| (*key, at)).collect();
    let count = steps.ticks.len();
    let mut changes = vec![vec![0_i64; count]; suspects.len()];
    let mut oldest = vec![0; suspects.len()];
    if suspects.is_empty() {
        return Vec::new();
    }
    let stacks: HashSet<StackId> = suspects.iter().map(|(key, _)| key.stack).collect();
    for (id, row) in rows.iter().enumerate() {
        if row.stack != StackId::default() && !stacks.contains(&row.stack) {
            continue;
        }
        // Made once by the same line, and not what grows there.
        if classes.rule(AllocationId::from_index(id)) == Rule::LibraryWorkspace {
            continue;
        }
        let Some(&at) = index.get(&group_of(row, phases)) else { continue };
        let (born, freed) = (steps.step_of(row.born), steps.step_of(row.freed));
        if born < count {
            changes[at][born] = changes[at][born].saturating_add_unsigned(row.size);
        }
        if freed < count {
            changes[at][freed] = changes[at][freed].saturating_sub_unsigned(row.size);
            oldest[at] = oldest[at].max(freed - born);
        }
    }
    let integrate = |changes: Vec<i64>| {
        let mut sum = 0_i64;
        let levels = changes.into_iter().map(|change| {
            sum = sum.saturating_add(change);
            sum.max(0).unsigned_abs()
        });
        levels.collect()
    };
    changes
        .into_iter()
        .zip(oldest)
        .map(|(changes, oldest_freed)| Curve { bytes: integrate(changes), oldest_freed })
        .collect()
}
