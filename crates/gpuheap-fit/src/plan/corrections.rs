//! What traces of plans say about the rules by which their peaks were worked out.
//!
//! A rule that is wrong is wrong in every combination that its lever is part of, and there are more of those than can be
//! traced. So what a trace finds amiss is held against all combinations that share a lever which may be at fault: one that
//! no trace has shown to be right.

use super::spec::Spec;
use crate::levers::OptimizerForm;
use crate::levers::checkpoint::Treatment;

/// Fields of a combination that must be the same for one to say something about another.
const NEAR: usize = 5;
/// A rule is right if it misses no more than this part of what is reserved: 1 in so many.
const RIGHT: u64 = 32;
/// Treatments of blocks that go by rules.
const KINDS: [Treatment; 3] = [Treatment::Recompute, Treatment::Selective, Treatment::Offload];

/// A lever of a combination whose effect is worked out by a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trait {
    /// The batch in parts.
    Parts,
    Form(OptimizerForm),
    HalfState,
    StateOnHost,
    ChunkedLoss,
    Shard,
    Treated(Treatment),
}

impl Trait {
    /// Whether its rule only leaves out or repeats what the trace has.
    pub(super) fn is_exact(self) -> bool {
        self.trust() > 0
    }

    /// How late it is blamed: the batch in parts was traced at two sizes, a fused optimizer has one call for many, whole
    /// blocks made again have all calls of the trace twice.
    pub(super) fn trust(self) -> u8 {
        match self {
            Self::Parts => 3,
            Self::Form(OptimizerForm::Fused) => 2,
            Self::Treated(Treatment::Recompute) => 1,
            _ => 0,
        }
    }
}

/// A combination, and what in it goes by rules.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Combination {
    pub(super) spec: Spec,
    /// The levers of the trace that it is worked out from, by the first trace that has just these. What rules miss for one
    /// form of the program says nothing about another, such as its layers in parts on two devices.
    pub(super) traced: usize,
    pub(super) traits: Vec<Trait>,
}

impl Combination {
    /// Whether both are of one form of the program.
    fn is_of_the_form_of(&self, other: &Self) -> bool {
        self.traced == other.traced && self.spec.shard == other.spec.shard
    }

    /// Whether it differs from another in one lever at most, and in none of blocks.
    fn is_near(&self, other: &Self) -> bool {
        let treated = |of: &Self| -> Vec<Trait> {
            of.traits.iter().copied().filter(|one| matches!(one, Trait::Treated(_))).collect()
        };
        self.spec.alike(&other.spec) >= NEAR && treated(self) == treated(other)
    }
}

/// What a trace said of a combination.
#[derive(Clone, Debug)]
struct Known {
    of: Combination,
    /// Reserved bytes of the peak that rules miss; negative where they count too many.
    missed: i64,
    is_right: bool,
}

/// All that traces said.
#[derive(Clone, Debug, Default)]
pub(super) struct Corrections {
    known: Vec<Known>,
}

impl Known {
    /// Whether a plan that fits by rules may not fit.
    fn is_wrong(&self) -> bool {
        self.missed > 0 && !self.is_right
    }
}

impl Corrections {
    /// A plan of this combination reserves `reserved` bytes, `missed` more than rules say.
    pub(super) fn learn(&mut self, of: Combination, missed: i64, reserved: u64) {
        self.known.retain(|known| known.of != of);
        self.known.push(Known { of, missed, is_right: missed.unsigned_abs() <= reserved / RIGHT });
    }

    /// What rules miss for a combination: what they missed for it. Else the most that they missed with a lever that it has
    /// and that may be at fault, or what they missed for the last one that differs in one lever.
    pub(super) fn of(&self, combination: &Combination) -> i64 {
        if let Some(exact) = self.known.iter().rev().find(|known| known.of == *combination) {
            return exact.missed;
        }
        let of_the_form = || self.known.iter().filter(|known| known.of.is_of_the_form_of(combination));
        let blamed = of_the_form().filter(|known| known.is_wrong());
        let blamed = blamed.filter(|known| self.suspects(known).iter().any(|one| combination.traits.contains(one)));
        let near = of_the_form().rev().find(|known| {
            let suspects = self.suspects(known);
            let is_free = suspects.is_empty() || suspects.iter().any(|one| combination.traits.contains(one));
            known.of.is_near(combination) && (known.is_right || is_free)
        });
        blamed.map(|known| known.missed).max().max(near.map(|known| known.missed)).unwrap_or(0)
    }

    /// Whether no trace was made with a lever so far.
    pub(super) fn is_new(&self, one: Trait) -> bool {
        self.known.iter().all(|known| !known.of.traits.contains(&one))
    }

    /// Treatments of blocks that may be at fault where rules missed something.
    pub(super) fn doubted(&self) -> Vec<Treatment> {
        let wrong = self.known.iter().filter(|known| known.is_wrong());
        let suspects: Vec<Trait> = wrong.flat_map(|known| self.suspects(known)).collect();
        KINDS.into_iter().filter(|&kind| suspects.contains(&Trait::Treated(kind))).collect()
    }

    /// The levers that may be at fault for what a trace found: those that no trace has shown to be right, or of those the
    /// ones that are wrong by themselves; of several the ones whose rules are trusted least.
    fn suspects(&self, known: &Known) -> Vec<Trait> {
        let open = self.open(known);
        let alone = |one: &Trait| {
            let mut others = self.known.iter().filter(|other| other.of.is_of_the_form_of(&known.of));
            others.any(|other| other.is_wrong() && self.open(other) == [*one])
        };
        let guilty: Vec<Trait> = open.iter().copied().filter(alone).collect();
        if !guilty.is_empty() {
            return guilty;
        }
        let least = open.iter().map(|one| one.trust()).min();
        open.into_iter().filter(|one| Some(one.trust()) == least).collect()
    }

    /// The levers of a combination that no trace has shown to be right.
    fn open(&self, known: &Known) -> Vec<Trait> {
        let is_cleared = |one: &Trait| {
            let mut others = self.known.iter().filter(|other| other.of.is_of_the_form_of(&known.of));
            others.any(|other| other.is_right && other.of.traits.contains(one))
        };
        known.of.traits.iter().copied().filter(|one| !is_cleared(one)).collect()
    }
}

/// The treatments by rules among these, each once.
pub(super) fn kinds_in(treatments: &[Treatment]) -> Vec<Treatment> {
    KINDS.into_iter().filter(|kind| treatments.contains(kind)).collect()
}

/// All choices of some of these treatments, none of them first.
pub(super) fn subsets(treatments: &[Treatment]) -> Vec<Vec<Treatment>> {
    let mut all = vec![Vec::new()];
    for &treatment in treatments {
        let with: Vec<Vec<Treatment>> = all.iter().map(|some| [some.as_slice(), &[treatment]].concat()).collect();
        all.extend(with);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: Spec =
        Spec { prepared: 1, form: None, half_state: false, offload: false, chunks: None, shard: None, rank: 0 };
    const OFFLOAD: Trait = Trait::Treated(Treatment::Offload);

    fn with(spec: Spec, traits: &[Trait]) -> Combination {
        Combination { spec, traced: 0, traits: traits.to_vec() }
    }

    #[test]
    fn what_is_known_of_one_combination_is_taken_for_its_neighbours() {
        let spec = with(SPEC, &[]);
        let fused = Spec { form: Some(OptimizerForm::Fused), ..SPEC };
        let near = with(fused, &[Trait::Form(OptimizerForm::Fused)]);
        let far = with(Spec { chunks: Some(8), ..fused }, &[Trait::Form(OptimizerForm::Fused), Trait::ChunkedLoss]);
        let mut corrections = Corrections::default();
        assert_eq!(corrections.of(&spec), 0);
        corrections.learn(spec.clone(), 100, 1000);
        assert_eq!((corrections.of(&spec), corrections.of(&near), corrections.of(&far)), (100, 100, 0));
        corrections.learn(near.clone(), -7, 1000);
        corrections.learn(spec.clone(), 50, 1000);
        assert_eq!((corrections.of(&spec), corrections.of(&near), corrections.of(&far)), (50, -7, -7));
    }

    #[test]
    fn what_is_known_of_one_form_is_not_held_against_another() {
        let here = with(SPEC, &[OFFLOAD]);
        let spread = Combination { traced: 2, ..with(Spec { prepared: 2, ..SPEC }, &[OFFLOAD]) };
        let mut corrections = Corrections::default();
        corrections.learn(here.clone(), 400, 1000);
        assert_eq!((corrections.of(&here), corrections.of(&spread)), (400, 0));
        // Nor does it clear one that is wrong there.
        corrections.learn(spread.clone(), 300, 1000);
        corrections.learn(here.clone(), 1, 1000);
        let near = Combination { spec: Spec { chunks: Some(8), ..spread.spec }, ..spread };
        assert_eq!((corrections.of(&here), corrections.of(&near)), (1, 300));
    }

    #[test]
    fn a_lever_that_may_be_at_fault_is_doubted_wherever_it_is() {
        let both = with(Spec { chunks: Some(8), ..SPEC }, &[Trait::Parts, Trait::ChunkedLoss, OFFLOAD]);
        let chunked = with(Spec { chunks: Some(8), prepared: 3, ..SPEC }, &[Trait::ChunkedLoss]);
        let offloaded = with(Spec { prepared: 4, half_state: true, ..SPEC }, &[Trait::HalfState, OFFLOAD]);
        let parts = with(SPEC, &[Trait::Parts]);
        let mut corrections = Corrections::default();
        corrections.learn(both, 400, 1000);
        let of = |corrections: &Corrections| [&chunked, &offloaded, &parts].map(|one| corrections.of(one));
        assert_eq!(of(&corrections), [400, 400, 0]);
        // A trace clears one of the two: the other is left.
        corrections.learn(chunked.clone(), 3, 1000);
        assert_eq!(of(&corrections), [3, 400, 0]);
        assert_eq!(corrections.doubted(), [Treatment::Offload]);
        assert_eq!(subsets(&corrections.doubted()), [vec![], vec![Treatment::Offload]]);
    }
}
