//! A combination of all levers but those of blocks, by what is chosen for each.

use crate::levers::{OptimizerForm, ShardForm};

/// A combination of all levers but those of blocks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Spec {
    pub(super) prepared: usize,
    pub(super) form: Option<OptimizerForm>,
    pub(super) half_state: bool,
    pub(super) offload: bool,
    pub(super) chunks: Option<u32>,
    /// How the work is spread by rules; what was traced so has it in its levers.
    pub(super) shard: Option<ShardForm>,
    /// Of ranks that differ, which.
    pub(super) rank: usize,
}

impl Spec {
    /// How many of the six choices are the same.
    pub(super) fn alike(&self, other: &Self) -> usize {
        let same = [
            self.prepared == other.prepared,
            self.form == other.form,
            self.half_state == other.half_state,
            self.offload == other.offload,
            self.chunks == other.chunks,
            self.shard == other.shard,
        ];
        same.into_iter().filter(|&same| same).count()
    }
}
