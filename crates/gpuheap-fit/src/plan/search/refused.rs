//! Levers that a program refuses: the model cannot be traced with them, so no plan has them from then on.

use super::{Candidate, Found, Planner, Scope};
use crate::levers::Lever;
use crate::levers::checkpoint::Treatment;
use crate::plan::Chain;
use crate::plan::corrections::{Trait, kinds_in};

/// Whether a lever is at fault.
type Pick<'a> = dyn Fn(&Lever, Trait) -> bool + 'a;

impl Planner<'_> {
    /// No trace can be made of a plan; `why` says so in words. Leaves out what is at fault from now on: the lever that the
    /// words name, else those that no trace was made with yet, else the one whose rule is trusted least. Gives the levers,
    /// or none where nothing can be left out.
    pub(crate) fn refuse(&mut self, found: &Found, why: &str) -> Vec<Lever> {
        let Some(candidate) = self.candidates.get(found.index) else { return Vec::new() };
        let traits = self.combination(candidate.spec, &kinds_in(&found.treatments)).traits;
        let levers: Vec<(Lever, Trait)> = found
            .levers
            .iter()
            .filter_map(|lever| Some((lever.clone(), trait_of(lever)?)))
            .filter(|(lever, one)| traits.contains(one) && !self.is_asked_for(lever))
            .collect();
        let named = |lever: &Lever| why.contains(&format!("the lever `{}`", lever.name()));
        let new = |one: Trait| self.corrections.is_new(one);
        let least = levers.iter().map(|(_, one)| one.trust()).min();
        let picks: [&Pick<'_>; 3] =
            [&|lever, _| named(lever), &|_, one| new(one) && !one.is_exact(), &|_, one| Some(one.trust()) == least];
        let left_out = picks
            .iter()
            .map(|pick| -> Vec<_> { levers.iter().filter(|(lever, one)| pick(lever, *one)).cloned().collect() });
        let left_out = left_out.into_iter().find(|some| !some.is_empty()).unwrap_or_default();
        self.refused.extend(left_out.iter().map(|(_, one)| *one));
        left_out.into_iter().map(|(lever, _)| lever).collect()
    }

    /// Whether a lever has to be in every plan.
    pub(super) fn is_asked_for(&self, lever: &Lever) -> bool {
        self.limits.set.iter().any(|asked| asked.name() == lever.name())
    }

    /// Whether a combination is among those of a scope, and has nothing that was refused.
    pub(super) fn is_in(&self, scope: Scope, candidate: &Candidate) -> bool {
        let traits = self.combination(candidate.spec, &[]).traits;
        traits.iter().all(|one| !self.refused.contains(one) && (scope == Scope::All || one.is_exact()))
    }

    /// A chain of blocks without the treatments that were refused.
    pub(super) fn not_refused(&self, chain: &Chain) -> Chain {
        let treatments: Vec<Treatment> = self
            .refused
            .iter()
            .filter_map(|one| if let Trait::Treated(treatment) = one { Some(*treatment) } else { None })
            .collect();
        chain.without(&treatments)
    }
}

/// What of a combination a lever is.
fn trait_of(lever: &Lever) -> Option<Trait> {
    Some(match lever {
        Lever::Accumulate { .. } => Trait::Parts,
        Lever::Optimizer { form } => Trait::Form(*form),
        Lever::OptimizerState { .. } => Trait::HalfState,
        Lever::OffloadOptimizer {} => Trait::StateOnHost,
        Lever::Loss { .. } => Trait::ChunkedLoss,
        Lever::Checkpoint { .. } => Trait::Treated(Treatment::Recompute),
        Lever::SelectiveCheckpoint { .. } => Trait::Treated(Treatment::Selective),
        Lever::OffloadActivations { .. } => Trait::Treated(Treatment::Offload),
        _ => return None,
    })
}
