//! What the levels mean.

use crate::findings::growth::is_trend;
use crate::findings::sawtooth::SHARE as GARBAGE_SHARE;
use crate::fragmentation::FEWEST_BYTES;
use crate::leaks::{self, BALANCED, balance, grew_in_most};
use crate::report::Confidence;
use crate::trend::{median, slope, slope_of};

use super::part::{Part, after_jumps};
use super::series::{Point, Series};

/// What is going on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HealthKind {
    /// Too few steps to judge, at the start or since the level moved at once.
    WarmingUp,
    /// Nothing grows.
    Steady,
    /// More and more blocks stay alive.
    Leak,
    /// Garbage in reference cycles piles up until the collector runs.
    Sawtooth,
    /// Live memory grows, the number of blocks does not: they are replaced by larger ones.
    Growing,
    /// Reserved memory grows, live memory does not: fragmentation.
    ReservedGrowth,
    /// What is in use outside the allocator grows.
    OutsideGrowth,
}

impl HealthKind {
    /// The name in data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WarmingUp => "warming_up",
            Self::Steady => "steady",
            Self::Leak => "leak",
            Self::Sawtooth => "sawtooth",
            Self::Growing => "growing",
            Self::ReservedGrowth => "reserved_growth",
            Self::OutsideGrowth => "outside_growth",
        }
    }

    /// Whether somebody should do something about it.
    #[must_use]
    pub const fn is_sick(self) -> bool {
        matches!(self, Self::Leak | Self::Sawtooth | Self::ReservedGrowth | Self::OutsideGrowth)
    }
}

/// A kind with its figures.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Judgement {
    pub(super) kind: HealthKind,
    pub(super) confidence: Confidence,
    /// Bytes a step.
    pub(super) growth: f64,
    /// Steps that were judged.
    pub(super) steps: u64,
    /// Where the level moved at once, and the judgement began anew.
    pub(super) since: Option<u64>,
    /// The step from which on it grows, if not from the first.
    pub(super) began: Option<u64>,
    /// The level of what grows, before and after: blocks of a leak, bytes of everything else; the most garbage.
    pub(super) from: u64,
    pub(super) to: u64,
    /// Steps seen since the start or the restart.
    pub(super) seen: u64,
}

impl Judgement {
    fn quiet(kind: HealthKind, confidence: Confidence, part: &Part<'_>) -> Self {
        Self {
            kind,
            confidence,
            growth: 0.0,
            steps: 0,
            since: part.since,
            began: None,
            from: 0,
            to: 0,
            seen: part.steps(),
        }
    }
}

/// Judges the whole run, and its last steps where they show what the whole cannot.
pub(super) fn judge(series: &Series, wasteful: bool) -> Judgement {
    let whole = judge_points(series.whole(), series.counts_blocks());
    if whole.kind == HealthKind::Leak {
        return whole;
    }
    let recent = series.recent();
    if !recent.is_empty() {
        let judged = judge_points(&recent, series.counts_blocks());
        if matches!(judged.kind, HealthKind::Leak | HealthKind::Growing) && beyond(series.whole(), &recent) {
            return judged;
        }
        if whole.kind == HealthKind::WarmingUp {
            return judged;
        }
    }
    if matches!(whole.kind, HealthKind::Sawtooth | HealthKind::Growing) {
        return whole;
    }
    reserved_growth(series, &whole, wasteful).or_else(|| outside_growth(series)).unwrap_or(whole)
}

/// Whether the last steps have risen beyond everything that was there before them: what fills again each epoch has not.
fn beyond(whole: &[Point], recent: &[Point]) -> bool {
    let began = recent.first().map_or(0, |point| point.step);
    let before = whole.iter().filter(|point| point.step < began).map(|point| point.most_blocks).max();
    let last_third = &recent[recent.len() - recent.len() / 3..];
    let now = last_third.iter().map(|point| point.blocks).min();
    now > before
}

fn judge_points(points: &[Point], counts_blocks: bool) -> Judgement {
    let part = after_jumps(points);
    let points = part.points;
    let Some((warm_up, window)) = leaks::judged(points.len()) else {
        return Judgement::quiet(HealthKind::WarmingUp, Confidence::Low, &part);
    };
    let floor = floor(points.iter().map(|point| point.blocks));
    let falls = falls(points);
    // Between two bursts the level says nothing: judge up to the last one, unless it was long ago.
    let longest = longest_tooth(&falls);
    let last_fall = falls.last().copied().filter(|&fall| points.len() - fall <= 2 * longest && fall >= warm_up + 3);
    let end = last_fall.unwrap_or(window.end);
    let levels: Vec<u64> = points.iter().map(|point| point.allocated).collect();
    let slope_from = |first: usize, last: usize, levels: &[u64]| {
        slope_of(last + 1 - first, |index| (points[first + index].step as f64, levels[first + index] as f64))
    };
    let growth_from = |first: usize| match last_fall {
        Some(_) => slope_from(first, end, &self::floor(levels.iter().copied())),
        None => slope_from(first, points.len() - 1, &levels),
    };
    let growth = growth_from(warm_up);
    let rise = Rise::of(&floor, warm_up, end);
    let judged = end - warm_up;
    let steps = points[end].step - points[warm_up].step;
    let quiet = Judgement::quiet(HealthKind::Steady, leaks::confidence(judged, 1.0), &part);
    let base = Judgement { growth, steps, ..quiet };
    // A level that only comes back to where it was, as a load does that has its days, is none either.
    let was_there = rise.thirds[0] == 0 && points[..rise.first].iter().any(|point| point.blocks >= floor[end]);
    let balance = rise.is_leak().filter(|_| counts_blocks && !part.repeats(floor[end]) && !was_there);
    if let Some(balance) = balance {
        let late = rise.thirds[0] == 0;
        let growth = if late { growth_from(rise.first) } else { growth };
        let confidence = if late { Confidence::Medium } else { leaks::confidence(judged, balance) };
        if growth > 0.0 {
            let (from, to) = (floor[warm_up], floor[end]);
            let began = late.then(|| points[rise.first].step);
            return Judgement { kind: HealthKind::Leak, confidence, growth, began, from, to, ..base };
        }
    }
    if let Some((growth, most)) = garbage(points) {
        let confidence = Confidence::Medium;
        return Judgement { kind: HealthKind::Sawtooth, confidence, growth, to: most, ..base };
    }
    let still = rise.thirds == [0; 3] || !counts_blocks;
    let per_point = slope(&levels[warm_up..]);
    if still && falls.is_empty() && is_trend(&levels[warm_up..], per_point, judged) {
        let (from, to) = (levels[warm_up], levels[levels.len() - 1]);
        return Judgement { kind: HealthKind::Growing, confidence: Confidence::Medium, from, to, ..base };
    }
    base
}

/// At each point the level that is never undercut from there on.
fn floor(levels: impl DoubleEndedIterator<Item = u64>) -> Vec<u64> {
    let mut least = u64::MAX;
    let mut floor: Vec<u64> = levels
        .rev()
        .map(|level| {
            least = least.min(level);
            least
        })
        .collect();
    floor.reverse();
    floor
}

/// Where the number of live blocks falls by more than it rises in a few steps.
fn falls(points: &[Point]) -> Vec<usize> {
    let mut rises: Vec<f64> = points
        .windows(2)
        .filter(|pair| pair[1].blocks > pair[0].blocks)
        .map(|pair| (pair[1].blocks - pair[0].blocks) as f64)
        .collect();
    let typical = median(&mut rises).max(1.0);
    let fell = |pair: &[Point]| pair[0].blocks.saturating_sub(pair[1].blocks) as f64 >= 3.0 * typical;
    points.windows(2).enumerate().filter(|(_, pair)| fell(pair)).map(|(index, _)| index + 1).collect()
}

fn longest_tooth(falls: &[usize]) -> usize {
    let first = falls.first().copied().unwrap_or(0);
    falls.windows(2).map(|pair| pair[1] - pair[0]).chain([first]).max().unwrap_or(0)
}

/// How the floor rises between two points.
struct Rise {
    thirds: [usize; 3],
    /// Points at which it rose.
    count: usize,
    /// The point before the first rise.
    first: usize,
    /// Points since the first rise.
    since_first: usize,
    /// Whether the time since the last rise is like that between others.
    goes_on: bool,
}

impl Rise {
    fn of(floor: &[u64], start: usize, end: usize) -> Self {
        let length = end - start;
        let part = |third: usize| {
            let (from, to) = (start + length * third / 3, start + length * (third + 1) / 3);
            usize::try_from(floor[to] - floor[from]).unwrap_or(usize::MAX)
        };
        let rises: Vec<usize> = (start + 1..=end).filter(|&index| floor[index] > floor[index - 1]).collect();
        let longest = rises.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let (first, last) = (rises.first().copied().unwrap_or(end.max(1)), rises.last().copied().unwrap_or(start));
        Self {
            thirds: [part(0), part(1), part(2)],
            count: rises.len(),
            first: first - 1,
            since_first: end - first,
            goes_on: end - last <= 2 * longest,
        }
    }

    /// The balance of a leak: in all parts alike, or in nearly every step from some step on; `None` for anything else.
    fn is_leak(&self) -> Option<f64> {
        if self.count < 4 || !self.goes_on {
            return None;
        }
        if self.thirds[0] == 0 {
            return grew_in_most(self.count, self.since_first).then_some(1.0);
        }
        let balance = balance(&self.thirds);
        (balance >= BALANCED).then_some(balance)
    }
}

/// Bytes a step that pile up until the collector gives them back, and the most that it gave back at once.
fn garbage(points: &[Point]) -> Option<(f64, u64)> {
    let given = |pair: &[Point]| pair[1].collected.saturating_sub(pair[0].collected);
    let bursts: Vec<u64> = points.windows(2).map(given).filter(|&bytes| bytes > 0).collect();
    let most = bursts.iter().copied().max()?;
    let level = points.iter().map(|point| point.most_allocated).max().unwrap_or(0);
    if bursts.len() < 2 || (most as f64) < GARBAGE_SHARE * level as f64 {
        return None;
    }
    let (first, last) = (points.first()?, points.last()?);
    let rate = last.collected.saturating_sub(first.collected) as f64 / (last.step - first.step).max(1) as f64;
    Some((rate, most))
}

/// Reserved memory that has grown although live memory has not.
fn reserved_growth(series: &Series, whole: &Judgement, wasteful: bool) -> Option<Judgement> {
    let last = series.last()?;
    let (from, to) = (series.first_reserved(), last.reserved);
    let grown = to.saturating_sub(from);
    let points = series.whole();
    let (warm_up, window) = leaks::judged(points.len())?;
    let live = (whole.growth * whole.steps as f64).max(0.0);
    if grown < FEWEST_BYTES.get() || live > 0.5 * grown as f64 {
        return None;
    }
    let reserved: Vec<u64> = points.iter().map(|point| point.reserved).collect();
    let rises = floor(reserved.iter().copied());
    let rise = Rise::of(&rises, warm_up, window.end);
    let climbs = rise.thirds.iter().all(|&part| part > 0)
        && (rises[window.end] - rises[warm_up]) >= FEWEST_BYTES.get()
        && rise.count >= 4
        && rise.goes_on;
    if !climbs && !wasteful {
        return None;
    }
    let at = |index: usize| (points[warm_up + index].step as f64, reserved[warm_up + index] as f64);
    let growth = slope_of(points.len() - warm_up, at).max(0.0);
    let confidence = if wasteful { Confidence::High } else { Confidence::Medium };
    Some(Judgement { kind: HealthKind::ReservedGrowth, confidence, growth, from, to, ..whole.clone() })
}

/// The fewest bytes of growth outside the allocator that are worth a word: contexts and libraries take as much at once.
const FEWEST_OUTSIDE: u64 = 32 << 20;

fn outside_growth(series: &Series) -> Option<Judgement> {
    let points = series.outside();
    let (warm_up, window) = leaks::judged(points.len())?;
    let floor = floor(points.iter().map(|&(_, bytes)| bytes));
    let rise = Rise::of(&floor, warm_up, window.end);
    let balance = rise.is_leak()?;
    let (from, to) = (floor[warm_up], floor[window.end]);
    if rise.thirds[0] == 0 || to - from < FEWEST_OUTSIDE {
        return None;
    }
    let growth = slope_of(points.len() - warm_up, |index| {
        let (step, bytes) = points[warm_up + index];
        (step as f64, bytes as f64)
    });
    Some(Judgement {
        kind: HealthKind::OutsideGrowth,
        confidence: leaks::confidence(window.len(), balance).min(Confidence::Medium),
        growth,
        steps: points[window.end].0 - points[warm_up].0,
        since: None,
        began: None,
        from,
        to,
        seen: points[points.len() - 1].0,
    })
}
