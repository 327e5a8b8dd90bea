//! Whether every lever that a plan must have can be in one.

use super::Planner;
use crate::blocks::Uses;
use crate::error::Error;
use crate::levers::{Lever, OptimizerForm, ShardForm};
use crate::plan::prepare::Prepared;

impl Planner<'_> {
    /// Whether every lever that has to be there can be.
    pub(super) fn check_set(&mut self) -> Result<(), Error> {
        let failed = |lever: &Lever, why: &str| Error::Lever { lever: lever.name().to_owned(), why: why.to_owned() };
        let set = &self.limits.set;
        let has = |name: &str| set.iter().any(|lever| lever.name() == name);
        self.limits.check()?;
        for lever in set {
            match lever {
                Lever::Optimizer { form: OptimizerForm::InBackward } if has("accumulate") => {
                    return Err(failed(lever, "each gradient is used up at once, so gradients cannot add up"));
                }
                Lever::OffloadOptimizer {} if has("optimizer_state") => {
                    return Err(failed(lever, "the state cannot be on the host and in other numbers on the device"));
                }
                Lever::Shard { form: ShardForm::Tensor | ShardForm::Pipeline, .. }
                    if !self.has(|prepared| prepared.levers.contains(lever)) =>
                {
                    return Err(failed(lever, "no trace was made with it"));
                }
                Lever::Accumulate { factor } if !self.has(|prepared| prepared.factor == *factor) => {
                    return Err(failed(lever, "the batch has no such parts, or was traced at one size only"));
                }
                _ if lever.is_traced() && !self.has(|prepared| prepared.levers.contains(lever)) => {
                    return Err(failed(lever, "no trace was made with it"));
                }
                Lever::Checkpoint { modules }
                | Lever::SelectiveCheckpoint { modules, .. }
                | Lever::OffloadActivations { modules } => {
                    let known = self.block_names();
                    let missing =
                        modules.iter().find(|&name| known.is_empty() || (name != "all" && !known.contains(name)));
                    if let Some(missing) = missing {
                        let known = crate::levers::group(&known);
                        let known = if known.is_empty() { "there are none".to_owned() } else { known };
                        return Err(failed(lever, &format!("there is no block called `{missing}`: {known}")));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn block_names(&self) -> Vec<String> {
        let Ok((program, ..)) = self.baseline() else { return Vec::new() };
        let uses = Uses::new(&program);
        self.blocks_of(&program, &uses).iter().map(|block| program.trace.module_name(block.module).to_owned()).collect()
    }

    fn has(&self, what: impl Fn(&Prepared) -> bool) -> bool {
        self.prepared.iter().any(|prepared| !prepared.is_base && what(prepared))
    }
}
