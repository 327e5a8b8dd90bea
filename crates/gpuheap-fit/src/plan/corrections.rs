//! What traces of plans say about the rules by which their peaks were worked out.

use super::search::Spec;

/// Fields of a combination that must be the same for one to say something about another.
const NEAR: usize = 5;

/// By combination: reserved bytes of the peak that rules miss; negative where they count too many.
#[derive(Clone, Debug, Default)]
pub(super) struct Corrections {
    known: Vec<(Spec, i64)>,
}

impl Corrections {
    /// A plan of this combination reserves `missed` bytes more than rules say.
    pub(super) fn learn(&mut self, spec: Spec, missed: i64) {
        self.known.retain(|(known, _)| *known != spec);
        self.known.push((spec, missed));
    }

    /// What rules miss for a combination: what they missed for it, or for the last one that differs in one lever.
    pub(super) fn of(&self, spec: &Spec) -> i64 {
        let exact = self.known.iter().rev().find(|(known, _)| known == spec);
        let near = || self.known.iter().rev().find(|(known, _)| known.alike(spec) >= NEAR);
        exact.or_else(near).map_or(0, |&(_, missed)| missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levers::OptimizerForm;

    #[test]
    fn what_is_known_of_one_combination_is_taken_for_its_neighbours() {
        let spec =
            Spec { prepared: 1, form: None, half_state: false, offload: false, chunks: None, shard: None, rank: 0 };
        let near = Spec { form: Some(OptimizerForm::Fused), ..spec };
        let far = Spec { chunks: Some(8), ..near };
        let mut corrections = Corrections::default();
        assert_eq!(corrections.of(&spec), 0);
        corrections.learn(spec, 100);
        assert_eq!((corrections.of(&spec), corrections.of(&near), corrections.of(&far)), (100, 100, 0));
        corrections.learn(near, -7);
        corrections.learn(spec, 50);
        assert_eq!((corrections.of(&spec), corrections.of(&near), corrections.of(&far)), (50, -7, -7));
    }
}
