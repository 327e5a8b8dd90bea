//! The health of a running program, from the allocator's counters at the end of each step.
//!
//! Where a recording tells of every block who made it and when it died, counters tell levels: bytes and blocks alive,
//! bytes reserved. What stays can be told from them all the same. The *floor* at a step is the level that is never
//! undercut afterwards; what rises and falls again does not lift it. A leak lifts the floor of the count of live blocks
//! in every part of the run alike, by the rules that `leaks.rs` has for survivors; a working set that
//! grows replaces blocks by larger ones and leaves their count where it is.
//!
//! Memory is bounded however long the program runs: a thinned series of the whole run, and the last steps one by one.
//! A step costs some nanoseconds, a judgement some tens of microseconds.

mod judge;
mod part;
#[cfg(test)]
mod recordings;
mod sentence;
mod series;
#[cfg(test)]
mod tests;

pub use judge::HealthKind;

use gpuheap_record::Bytes;

use crate::fragmentation;
use crate::report::Confidence;
use judge::Judgement;
use series::Series;

/// The counters at the end of a step.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Sample {
    /// Which step it is; samples may leave out steps.
    pub step: u64,
    /// When, in seconds of any clock that does not go back.
    pub seconds: f64,
    /// Bytes that the allocator has handed out.
    pub allocated: u64,
    /// How many blocks that are; `None` if the allocator does not count them.
    pub blocks: Option<u64>,
    /// Bytes that the allocator has taken from the driver.
    pub reserved: u64,
    /// The most bytes in use at once so far, those that wait for another stream included.
    pub peak_active: Option<u64>,
    /// The most bytes reserved at once so far.
    pub peak_reserved: Option<u64>,
    /// Bytes that Python's collector has given back so far; `None` if nobody measures that.
    pub collected: Option<u64>,
    /// How often the allocator had to empty its cache to serve a request.
    pub retries: u64,
    /// How many requests failed.
    pub ooms: u64,
}

/// What the driver says of the device, at a moment of health.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Surroundings {
    /// Bytes that the driver could still give to anyone.
    pub free: Option<u64>,
    /// Bytes on the device.
    pub total: Option<u64>,
    /// Bytes that other processes hold.
    pub others: Option<u64>,
    /// The most that the allocator may reserve, if it is less than the device has.
    pub limit: Option<u64>,
}

/// What can be said after some steps. Amounts are bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Health {
    /// The step of the last sample.
    pub step: u64,
    /// How many steps the judgement rests upon: from the end of the warm-up on.
    pub steps_judged: u64,
    /// The step from which on it was judged anew because the level had moved at once; `None` for the first.
    pub since: Option<u64>,
    /// What is going on.
    pub kind: HealthKind,
    /// How sure that is.
    pub confidence: Confidence,
    /// Bytes that the allocator has handed out.
    pub allocated: u64,
    /// Blocks that these are.
    pub blocks: Option<u64>,
    /// Bytes that it has taken from the driver.
    pub reserved: u64,
    /// The share of the most reserved memory that was never in use.
    pub waste: Option<f64>,
    /// What the driver could still give.
    pub free: Option<u64>,
    /// What the device has.
    pub total: Option<u64>,
    /// What is in use on the device and is neither reserved nor other processes', as far as these are known: contexts,
    /// libraries, other allocators.
    pub outside: Option<u64>,
    /// What other processes hold.
    pub others: Option<u64>,
    /// Growth of what `kind` is about, per step: of live memory unless it is reserved or outside memory that grows.
    pub growth_per_step: f64,
    /// How many more steps until memory runs out at this slope: at least, and with all cached memory used up first.
    pub steps_left: Option<(u64, u64)>,
    /// The same in seconds, at the pace of the last steps.
    pub seconds_left: Option<(f64, f64)>,
    /// Retries of the allocator so far.
    pub retries: u64,
    /// Failed requests so far.
    pub ooms: u64,
    /// All of it that matters, in one sentence.
    pub sentence: String,
}

/// Follows one device: [`push`](Self::push) after each step, [`health`](Self::health) now and then.
#[derive(Clone, Debug)]
pub struct Monitor {
    unit: String,
    series: Series,
    peak_active: Option<u64>,
    peak_reserved: Option<u64>,
}

impl Monitor {
    /// A new one. `unit` is what a step is, in words: `optimizer step`.
    #[must_use]
    pub fn new(unit: &str) -> Self {
        Self { unit: unit.to_owned(), series: Series::default(), peak_active: None, peak_reserved: None }
    }

    /// Takes the counters after a step. A step that is not later than the one before is left out.
    pub fn push(&mut self, sample: &Sample) {
        // Programs reset their peaks; what once was does not go away.
        self.peak_active = self.peak_active.max(sample.peak_active);
        self.peak_reserved = self.peak_reserved.max(sample.peak_reserved);
        self.series.push(sample);
    }

    /// Judges what has been seen; `None` before the first step.
    pub fn health(&mut self, around: &Surroundings) -> Option<Health> {
        let last = *self.series.last()?;
        let used = around.total.zip(around.free).map(|(total, free)| total.saturating_sub(free));
        let outside =
            used.map(|used| used.saturating_sub(last.reserved).saturating_sub(around.others.unwrap_or_default()));
        if let Some(outside) = outside {
            self.series.push_outside(last.step, outside);
        }
        let waste = self.waste();
        let judgement = judge::judge(&self.series, self.wasteful(&last));
        let steps_left = steps_left(&judgement, &last, around);
        let pace = self.series.seconds_per_step();
        let seconds = |steps: u64| steps as f64 * pace;
        let seconds_left = steps_left.filter(|_| pace > 0.0).map(|(fewest, most)| (seconds(fewest), seconds(most)));
        let mut health = Health {
            step: last.step,
            steps_judged: judgement.steps,
            since: judgement.since,
            kind: judgement.kind,
            confidence: judgement.confidence,
            allocated: last.allocated,
            blocks: last.blocks,
            reserved: last.reserved,
            waste,
            free: around.free,
            total: around.total,
            outside,
            others: around.others,
            growth_per_step: judgement.growth,
            steps_left,
            seconds_left,
            retries: last.retries,
            ooms: last.ooms,
            sentence: String::new(),
        };
        health.sentence = sentence::sentence(&health, &judgement, &self.unit);
        Some(health)
    }

    /// How many samples are kept, for those who care about memory.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.series.kept()
    }

    fn waste(&self) -> Option<f64> {
        let (active, reserved) = self.peak_active.zip(self.peak_reserved)?;
        Some(Bytes::new(reserved.saturating_sub(active)).share_of(Bytes::new(reserved)))
    }

    /// Whether so much is reserved and was never in use that `explain` would say so, and it still is.
    fn wasteful(&self, last: &Sample) -> bool {
        let Some((active, reserved)) = self.peak_active.zip(self.peak_reserved) else { return false };
        let waste = Bytes::new(reserved.saturating_sub(active));
        waste >= fragmentation::FEWEST_BYTES
            && waste.share_of(Bytes::new(reserved)) >= fragmentation::SHARE
            && Bytes::new(last.reserved).share_of(Bytes::new(reserved)) >= 0.8
    }
}

/// How many steps are left at the slope, and how many if all cached memory serves first.
fn steps_left(judgement: &Judgement, last: &Sample, around: &Surroundings) -> Option<(u64, u64)> {
    let free = around.free?;
    let room = match around.limit {
        Some(limit) => free.min(limit.saturating_sub(last.reserved)),
        None => free,
    };
    let cached = last.reserved.saturating_sub(last.allocated);
    let most = match judgement.kind {
        HealthKind::Leak | HealthKind::Growing => room.saturating_add(cached),
        HealthKind::ReservedGrowth | HealthKind::OutsideGrowth => room,
        HealthKind::WarmingUp | HealthKind::Steady | HealthKind::Sawtooth => return None,
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and the cast saturates")]
    let steps = |room: u64| (room as f64 / judgement.growth) as u64;
    (judgement.growth > 0.0).then(|| (steps(room), steps(most)))
}
