//! What each lever of a plan saves and costs.

use super::{Found, Planner};
use crate::levers::Lever;
use crate::levers::checkpoint::Treatment;
use crate::plan::asked::undo;
use crate::plan::spec::Spec;
use crate::replay::{config, replay};

impl Planner<'_> {
    /// What one lever of a plan saves and costs: the plan against itself without it, where that makes sense; bytes of the
    /// peak and microseconds, either of which can be negative.
    #[must_use]
    pub fn share_of(&self, found: &Found, lever: &Lever) -> Option<(i64, f64)> {
        let mut spec = Spec { rank: found.rank, ..self.candidates.get(found.index)?.spec };
        let mut treatments = found.treatments.clone();
        let mut conf = found.conf.clone();
        if let Lever::Shard { .. } = lever {
            // The whole batch on one device.
            (spec.shard, spec.rank, spec.prepared) = (None, 0, self.unsharded(spec.prepared)?);
        } else if !self.take_out(lever, &mut spec, &mut treatments, &mut conf)? {
            // What was traced with the lever.
            spec.prepared = self.sibling(spec.prepared, self.prepared[spec.prepared].factor, Some(lever))?;
        }
        let is_rank = !self.prepared[spec.prepared].others.is_empty();
        let program = self.treated(spec, &treatments)?;
        let without = replay(&program, &config(&conf).ok()?, None);
        let time = if is_rank { self.over_ranks(spec)? } else { self.cost(program.trace).step(&program) };
        let saves = i64::try_from(without.reserved).ok()? - i64::try_from(found.replayed.reserved).ok()?;
        Some((saves, found.time.total_us - time.total_us))
    }

    /// Takes a lever out of a choice, if it is one that the search chooses; nothing if there is no such choice without it.
    pub(super) fn take_out(
        &self,
        lever: &Lever,
        spec: &mut Spec,
        treatments: &mut [Treatment],
        conf: &mut String,
    ) -> Option<bool> {
        match lever {
            Lever::Allocator { .. } => conf.clear(),
            Lever::Optimizer { .. } => spec.form = None,
            Lever::OptimizerState { .. } => spec.half_state = false,
            Lever::OffloadOptimizer {} => spec.offload = false,
            Lever::Loss { .. } => spec.chunks = None,
            Lever::Accumulate { .. } => spec.prepared = self.sibling(spec.prepared, 1, None)?,
            Lever::Checkpoint { .. } => undo(treatments, Treatment::Recompute),
            Lever::SelectiveCheckpoint { .. } => undo(treatments, Treatment::Selective),
            Lever::OffloadActivations { .. } => undo(treatments, Treatment::Offload),
            _ => return Some(false),
        }
        Some(true)
    }

    /// The same trace with another number of micro-batches, or without a lever.
    pub(super) fn sibling(&self, index: usize, factor: u32, less: Option<&Lever>) -> Option<usize> {
        let levers: Vec<&Lever> = self.prepared[index].levers.iter().filter(|&lever| Some(lever) != less).collect();
        self.prepared
            .iter()
            .position(|prepared| prepared.factor == factor && prepared.levers.iter().collect::<Vec<_>>() == levers)
    }

    /// The model as it is, where a trace has no levers but its sharding.
    fn unsharded(&self, index: usize) -> Option<usize> {
        let rest = self.prepared[index].levers.iter().filter(|lever| !matches!(lever, Lever::Shard { .. }));
        let base = self.prepared.first().filter(|base| base.is_base)?;
        rest.eq(base.levers.iter()).then_some(0)
    }
}
