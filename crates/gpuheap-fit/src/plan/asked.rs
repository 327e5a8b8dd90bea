//! Levers that a plan must have.

use super::Chain;
use super::prepare::Limits;
use crate::levers::checkpoint::Treatment;
use crate::levers::{Lever, OptimizerForm, ShardForm};

/// Leaves to the blocks that a lever names no other choice. `None` where there is no such block or choice.
pub(super) fn force(chain: &mut Chain, names: &[&str], limits: &Limits) -> Option<()> {
    for lever in &limits.set {
        let (modules, treatment) = match lever {
            Lever::Checkpoint { modules } => (modules, Treatment::Recompute),
            Lever::SelectiveCheckpoint { modules, .. } => (modules, Treatment::Selective),
            Lever::OffloadActivations { modules } => (modules, Treatment::Offload),
            _ => continue,
        };
        let all = modules.iter().any(|module| module == "all");
        for (link, name) in chain.links.iter_mut().zip(names) {
            if all || modules.iter().any(|module| module == name) {
                link.choices.retain(|choice| choice.treatment == treatment);
                link.choices.first()?;
            } else if limits.forbids(lever.name()) {
                link.choices.retain(|choice| choice.treatment != treatment);
            }
        }
        let known = |module: &String| module == "all" || names.contains(&module.as_str());
        if names.is_empty() || !modules.iter().all(known) {
            return None;
        }
    }
    Some(())
}

pub(super) fn undo(treatments: &mut [Treatment], which: Treatment) {
    treatments.iter_mut().filter(|treatment| **treatment == which).for_each(|treatment| *treatment = Treatment::Keep);
}

pub(super) fn conf_of(lever: &Lever) -> Option<&str> {
    if let Lever::Allocator { conf } = lever { Some(conf) } else { None }
}

pub(super) fn form_of(lever: &Lever) -> Option<OptimizerForm> {
    if let Lever::Optimizer { form } = lever { Some(*form) } else { None }
}

pub(super) fn chunks_of(lever: &Lever) -> Option<u32> {
    if let Lever::Loss { chunks, .. } = lever { Some(*chunks) } else { None }
}

pub(super) fn shard_of(lever: &Lever) -> Option<ShardForm> {
    if let Lever::Shard { form, .. } = lever { Some(*form) } else { None }
}
