//! What traces of plans have shown, as the search counts on it: plans need more or less than the rules say, and treatments
//! in doubt are left out by turns.

use super::{Candidate, Found, Planner, Scope};
use crate::levers::checkpoint::Treatment;
use crate::plan::Chain;
use crate::plan::corrections::{Combination, Trait, kinds_in, subsets};
use crate::plan::spec::Spec;

impl Planner<'_> {
    /// A plan, traced as it will run, reserves `reserved` bytes: the next plans of its combination count on the difference,
    /// and so do those that share levers which may be at fault. Both are bytes of which the error bar reaches as far as
    /// that of the plan, see [`needs`](Self::needs).
    pub fn correct(&mut self, found: &Found, reserved: u64) {
        let missed = i128::from(reserved) - i128::from(self.bar.reserved(&found.replayed, 0));
        let missed = i64::try_from(missed).unwrap_or(if missed > 0 { i64::MAX } else { i64::MIN });
        if let Some(candidate) = self.candidates.get(found.index) {
            let combination = self.combination(candidate.spec, &kinds_in(&found.treatments));
            self.corrections.learn(combination, missed, reserved);
            self.doubted = subsets(&self.corrections.doubted());
        }
    }

    /// What a plan takes of a device beside the context, in bytes, as far as traces have corrected the rules. Where the
    /// error bar of its reserved bytes reaches further than their size alone says, it is those that reach as far.
    #[must_use]
    pub fn needs(&self, found: &Found) -> u64 {
        let missed = self.candidates.get(found.index).map_or(0, |candidate| {
            self.corrections.of(&self.combination(candidate.spec, &kinds_in(&found.treatments)))
        });
        self.bar.reserved(&found.replayed, missed).saturating_add(found.exchanges)
    }

    /// The chain of blocks of a combination, as it is and without treatments that are in doubt: rules for them are wrong by
    /// more than for the others, so that both are solved with a budget of their own.
    pub(super) fn chains(&self, candidate: &Candidate, scope: Scope) -> Vec<Chain> {
        let possible = self.not_refused(&candidate.chain);
        let plain = possible.without(&[Treatment::Selective, Treatment::Offload]);
        let chain = if scope == Scope::Plain { &plain } else { &possible };
        let mut chains: Vec<Chain> = Vec::new();
        for without in &self.doubted {
            let chain = chain.without(without);
            if !chains.contains(&chain) {
                chains.push(chain);
            }
        }
        chains
    }

    /// What rules miss at least, whichever treatments of a chain are chosen.
    pub(super) fn least_missed(&self, spec: Spec, chain: &Chain) -> i64 {
        let all: Vec<Treatment> = chain.links.iter().flat_map(|link| &link.choices).map(|one| one.treatment).collect();
        let kinds = subsets(&kinds_in(&all)).into_iter();
        kinds.map(|kinds| self.corrections.of(&self.combination(spec, &kinds))).min().unwrap_or(0)
    }

    /// A combination with treatments of blocks, and the levers in it that go by rules.
    pub(super) fn combination(&self, spec: Spec, kinds: &[Treatment]) -> Combination {
        let mut traits = Vec::new();
        traits.extend((self.prepared[spec.prepared].factor > 1).then_some(Trait::Parts));
        traits.extend(spec.form.map(Trait::Form));
        traits.extend(spec.half_state.then_some(Trait::HalfState));
        traits.extend(spec.offload.then_some(Trait::StateOnHost));
        traits.extend(spec.chunks.map(|_| Trait::ChunkedLoss));
        traits.extend(spec.shard.map(|_| Trait::Shard));
        traits.extend(kinds.iter().map(|&kind| Trait::Treated(kind)));
        let levers = &self.prepared[spec.prepared].levers;
        let traced = self.prepared.iter().position(|other| !other.is_base && other.levers == *levers);
        Combination { spec, traced: traced.unwrap_or(spec.prepared), traits }
    }
}
