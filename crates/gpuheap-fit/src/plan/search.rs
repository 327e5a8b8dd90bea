//! All levers together: every combination that makes sense, the chain of blocks solved exactly within each.
//!
//! A combination without treated blocks is never slower than the same with them, so combinations are tried fastest first
//! and the search ends at the first that cannot beat what was found. What is found has gone through the allocator.

mod explore;
mod found;
mod idle;
mod learned;
mod programs;
mod refused;
mod set;
mod shares;

use gpuheap_alloc::torch::Config;

use crate::bar::Bar;
use crate::cost::HIDDEN;
use crate::device::{Calibration, Device};
use crate::error::Error;
use crate::levers::checkpoint::Treatment;
use crate::plan::Chain;
use crate::plan::asked::conf_of;
use crate::plan::corrections::{Corrections, Trait};
use crate::plan::prepare::{Limits, Prepared, Variant, prepare};
use crate::replay::config;

pub use explore::Candidate;
pub use found::Found;

/// How often a choice is made again for a smaller budget, because the allocator reserves more than is alive.
const TIGHTER: usize = 12;
/// The settings of the allocator that are tried where none are given.
const CONFS: [&str; 2] = ["", "expandable_segments:True"];
/// How often a still smaller plan is looked for, at most.
const SMALLER: usize = 32;
/// What the search steps the budget by, in bytes, when it looks for the smallest; at most, when it leaves room.
const GRAIN: u64 = 16 << 20;
/// The part of the budget that is left as room at once, at least: 1 in so many.
const FINE: u64 = 512;

/// Which plans are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    All,
    /// Those whose every lever has an exact rule.
    Plain,
}

/// Searches.
#[derive(Debug)]
pub struct Planner<'a> {
    device: &'a Device,
    calibration: Option<&'a Calibration>,
    bar: Bar,
    limits: &'a Limits,
    prepared: Vec<Prepared>,
    confs: Vec<(String, Config)>,
    candidates: Vec<Candidate>,
    corrections: Corrections,
    /// What is left out of chains of blocks, by turns: treatments that traces have cast doubt on.
    doubted: Vec<Vec<Treatment>>,
    /// What no plan has because the model cannot be traced with it.
    refused: Vec<Trait>,
}

impl<'a> Planner<'a> {
    /// Prepares the search over `variants`, of which the first is the model as it is.
    pub fn new(
        variants: &[Variant],
        device: &'a Device,
        calibration: Option<&'a Calibration>,
        limits: &'a Limits,
    ) -> Result<Self, Error> {
        let confs: Vec<&str> = match limits.conf.as_deref().or_else(|| limits.set.iter().find_map(conf_of)) {
            Some(conf) => vec![conf],
            None if limits.forbids("allocator") => vec![CONFS[0]],
            None => CONFS.to_vec(),
        };
        let confs = confs.into_iter().map(|conf| Ok((conf.to_owned(), config(conf)?)));
        let confs = confs.collect::<Result<Vec<_>, Error>>()?;
        let prepared = prepare(variants, limits)?;
        let mut planner = Self {
            device,
            calibration,
            bar: Bar::new(device, calibration),
            limits,
            prepared,
            confs,
            candidates: Vec::new(),
            corrections: Corrections::default(),
            doubted: vec![Vec::new()],
            refused: Vec::new(),
        };
        planner.check_set()?;
        Ok(planner)
    }

    /// How many combinations there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.candidates.len()
    }

    /// The fastest plan that reserves at most `cap` bytes. Of equally fast ones, the one with fewer levers.
    #[must_use]
    pub fn fastest(&self, cap: u64) -> Option<Found> {
        self.fastest_of(cap, Scope::All)
    }

    /// The same of plans whose every lever has an exact rule.
    #[must_use]
    pub fn fastest_plain(&self, cap: u64) -> Option<Found> {
        self.fastest_of(cap, Scope::Plain)
    }

    fn fastest_of(&self, cap: u64, scope: Scope) -> Option<Found> {
        let mut best: Option<Found> = None;
        for (index, candidate) in self.candidates.iter().enumerate() {
            if !self.is_in(scope, candidate) {
                continue;
            }
            // What is no faster than a plan in hand is not worth a look.
            if best.as_ref().is_some_and(|best| candidate.base_us > best.time.total_us * 1.0001) {
                break;
            }
            for (conf, config) in &self.confs {
                let Some(found) = self.within(index, conf, config, cap, scope) else { continue };
                let better = best.as_ref().is_none_or(|best| {
                    let gain = best.time.total_us - found.time.total_us;
                    // A thousandth of the time is not worth another lever.
                    let worth = 0.001 * best.time.total_us;
                    gain > worth || (gain > -worth && found.levers.len() < best.levers.len())
                });
                if better {
                    best = Some(found);
                }
            }
        }
        best.map(|best| self.relaxed(self.without_idle(best, cap), cap))
    }

    /// The least that any plan reserves, and that plan.
    #[must_use]
    pub fn smallest(&self) -> Option<Found> {
        self.smallest_of(Scope::All)
    }

    /// The same of plans whose every lever has an exact rule.
    #[must_use]
    pub fn smallest_plain(&self) -> Option<Found> {
        self.smallest_of(Scope::Plain)
    }

    /// The least by what is alive at once, then whatever still fits below that: other choices can reserve less of what
    /// lies idle between blocks.
    fn smallest_of(&self, scope: Scope) -> Option<Found> {
        let mut best = self.least_of(scope)?;
        for _ in 0..SMALLER {
            let Some(less) = self.needs(&best).checked_sub(1).and_then(|cap| self.fastest_of(cap, scope)) else {
                break;
            };
            best = less;
        }
        Some(best)
    }

    fn least_of(&self, scope: Scope) -> Option<Found> {
        let mut best: Option<Found> = None;
        let mut order: Vec<(u64, u64, usize, usize)> = Vec::new();
        let chains: Vec<(usize, Chain)> = self
            .candidates
            .iter()
            .enumerate()
            .filter(|(_, candidate)| self.is_in(scope, candidate))
            .flat_map(|(index, candidate)| self.chains(candidate, scope).into_iter().map(move |chain| (index, chain)))
            .collect();
        for (at, (index, chain)) in chains.iter().enumerate() {
            let missed = self.least_missed(self.candidates[*index].spec, chain);
            let least = Self::least_alive(chain);
            order.extend(least.map(|least| (least.saturating_add_signed(missed), least, *index, at)));
        }
        order.sort_unstable();
        for (corrected, least, index, at) in order {
            if best.as_ref().is_some_and(|best| self.needs(best) <= corrected) {
                break;
            }
            let Some(solved) = chains[at].1.solve(least, 1.0) else { continue };
            for (conf, config) in &self.confs {
                let Some(found) = self.found(index, &solved.treatments, solved.optimal, conf, config) else { continue };
                if best.as_ref().is_none_or(|best| self.needs(&found) < self.needs(best)) {
                    best = Some(found);
                }
            }
        }
        best.map(|best| {
            let needs = self.needs(&best);
            self.without_idle(best, needs)
        })
    }

    /// The best choice for the blocks of a combination whose replay reserves at most `cap` bytes.
    fn within(&self, index: usize, conf: &str, config: &Config, cap: u64, scope: Scope) -> Option<Found> {
        let candidate = &self.candidates[index];
        let chains = self.chains(candidate, scope);
        let found = chains.iter().filter_map(|chain| {
            let missed = self.least_missed(candidate.spec, chain);
            let mut target = cap.checked_add_signed(missed.checked_neg()?)?;
            for _ in 0..TIGHTER {
                let found = self.solved(index, chain, conf, config, target)?;
                let needs = self.needs(&found);
                if needs <= cap {
                    return Some(found);
                }
                // More is reserved than is alive: leave as much room again.
                target = target.checked_sub((needs - cap).max(GRAIN.min(cap / FINE)))?;
            }
            None
        });
        found.min_by(|one, other| one.time.total_us.total_cmp(&other.time.total_us))
    }

    /// The best choice for the blocks of a combination with which no more than `target` bytes are alive. What copies
    /// beside the work cost is no sum over blocks: they are weighed as if they were hidden, as if the way out were not, and
    /// as if neither were.
    fn solved(&self, index: usize, chain: &Chain, conf: &str, config: &Config, target: u64) -> Option<Found> {
        let weights: &[f64] = if chain.offloads() { &[HIDDEN, 0.5, 1.0] } else { &[1.0] };
        let choices = weights.iter().filter_map(|&weight| chain.solve(target, weight));
        let found = choices.filter_map(|solved| {
            let exact = solved.optimal && !solved.treatments.contains(&Treatment::Offload);
            self.found(index, &solved.treatments, exact, conf, config)
        });
        found.min_by(|one, other| one.time.total_us.total_cmp(&other.time.total_us))
    }

    /// The least that is alive at the peak of a combination, whatever is done to its blocks; to the grain of the search.
    fn least_alive(chain: &Chain) -> Option<u64> {
        let most = chain.links.iter().map(|link| link.before).max().unwrap_or(0).max(chain.waiting).max(chain.outside);
        let within = chain.links.iter().flat_map(|link| &link.choices).map(|choice| choice.within).max().unwrap_or(0);
        let mut enough = most.max(within).div_ceil(GRAIN);
        chain.solve(enough * GRAIN, 1.0)?;
        let mut too_little = 0;
        while enough - too_little > 1 {
            let middle = u64::midpoint(too_little, enough);
            if chain.solve(middle * GRAIN, 1.0).is_some() { enough = middle } else { too_little = middle }
        }
        Some(enough * GRAIN)
    }
}
