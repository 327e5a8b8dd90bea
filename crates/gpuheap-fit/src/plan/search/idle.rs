//! Levers that a plan does not need: without them it fits as well, and is no slower. The same of single blocks.

use super::{Found, Planner};
use crate::levers::Lever;
use crate::levers::checkpoint::Treatment;

/// Times that differ by less are the same: a part of the step.
const SAME: f64 = 1e-6;

impl Planner<'_> {
    /// A plan without the levers that do nothing for it within `cap` bytes.
    pub(super) fn without_idle(&self, mut found: Found, cap: u64) -> Found {
        loop {
            let spared = found.levers.iter().filter(|lever| !self.is_asked_for(lever));
            let less = spared
                .filter_map(|lever| self.without(&found, lever))
                .find(|less| self.needs(less) <= cap && less.time.total_us <= found.time.total_us * (1.0 + SAME));
            match less {
                // One lever fewer each time, so that this ends.
                Some(less) if less.levers.len() < found.levers.len() => found = less,
                _ => return found,
            }
        }
    }

    /// A plan with as few blocks treated as `cap` bytes allow. Choices are made by sums, and room is left in steps for what
    /// the allocator reserves beside: some of it may not be needed. Blocks that are treated alike are tried from both ends
    /// of the chain, and as many at once as go.
    pub(super) fn relaxed(&self, mut found: Found, cap: u64) -> Found {
        let Some(candidate) = self.candidates.get(found.index) else { return found };
        let is_forced = self.limits.set.iter().any(Lever::is_about_blocks);
        let Some((_, settings)) = self.confs.iter().find(|(known, _)| *known == found.conf) else { return found };
        if is_forced || candidate.chain.links.len() != found.treatments.len() {
            return found;
        }
        for kind in [Treatment::Recompute, Treatment::Selective, Treatment::Offload] {
            for from_the_end in [false, true] {
                let mut count = found.treatments.iter().filter(|&&one| one == kind).count();
                while count > 0 {
                    let mut treatments = found.treatments.clone();
                    let mut blocks: Vec<&mut Treatment> = treatments.iter_mut().filter(|one| **one == kind).collect();
                    let from = if from_the_end { blocks.len() - count } else { 0 };
                    blocks.iter_mut().skip(from).take(count).for_each(|one| **one = Treatment::Keep);
                    let less = self.found(found.index, &treatments, found.optimal, &found.conf, settings);
                    match less.filter(|less| self.needs(less) <= cap && less.time.total_us < found.time.total_us) {
                        Some(less) => {
                            found = less;
                            count = count.min(found.treatments.iter().filter(|&&one| one == kind).count());
                        }
                        None => count /= 2,
                    }
                }
            }
        }
        found
    }

    /// A plan without one of its levers, where that is one that the search may choose.
    fn without(&self, found: &Found, lever: &Lever) -> Option<Found> {
        let mut spec = self.candidates.get(found.index)?.spec;
        let mut treatments = found.treatments.clone();
        let mut conf = found.conf.clone();
        if !self.take_out(lever, &mut spec, &mut treatments, &mut conf)? {
            // What was traced with a lever may be without it only if that was traced, too: another combination.
            return None;
        }
        let index = self.candidates.iter().position(|candidate| candidate.spec == spec)?;
        let settings = &self.confs.iter().find(|(known, _)| *known == conf)?.1;
        self.found(index, &treatments, found.optimal, &conf, settings)
    }
}
