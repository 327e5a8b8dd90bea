//! Which ways to spread the work over devices have to be traced, so that a plan can be chosen among them.

use super::asked::shard_of;
use super::prepare::{Limits, Variant};
use crate::levers::{Lever, ShardForm};

/// The ways that are traced for a model whose trace as it is `base` has, each with all levers of one entry of `beside`:
/// those that were asked for, if any, else FSDP2, tensor parallelism and a pipeline. Copies of the model follow by a
/// rule. A pipeline is tried with more parts of the batch as well, and with all its blocks made again, since what its
/// stages hold follows by no rule.
#[must_use]
pub fn ways(beside: &[Vec<Lever>], limits: &Limits, base: &Variant) -> Vec<Vec<Lever>> {
    let gpus = limits.gpus;
    // What may change of the program itself does not matter here: "all" leaves the levers beside sharding out.
    if gpus <= 1 || limits.without.iter().any(|name| name == "shard") {
        return Vec::new();
    }
    let asked = limits.set.iter().find(|lever| shard_of(lever).is_some());
    let forms = match asked {
        Some(lever) if shard_of(lever) == Some(ShardForm::Data) => Vec::new(),
        Some(lever) => vec![lever.clone()],
        None => {
            let all = [ShardForm::Fsdp2, ShardForm::Tensor, ShardForm::Pipeline];
            all.map(|form| Lever::Shard { form, gpus, stages: Vec::new(), micro_batches: None }).to_vec()
        }
    };
    beside.iter().flat_map(|others| forms.iter().flat_map(|form| with(form, others, limits, base))).collect()
}

/// One form with other levers, and what else is tried of it.
fn with(form: &Lever, others: &[Lever], limits: &Limits, base: &Variant) -> Vec<Vec<Lever>> {
    let joined = |form: Lever, more: Option<Lever>| -> Vec<Lever> {
        std::iter::once(form).chain(others.iter().cloned()).chain(more).collect()
    };
    let mut found = vec![joined(form.clone(), None)];
    let Lever::Shard { form: ShardForm::Pipeline, gpus, stages, micro_batches: None } = form else { return found };
    let may = !limits.forbids("checkpoint") && !limits.set.iter().any(Lever::is_about_blocks);
    let modules = if may { base.block_names() } else { Vec::new() };
    let again = (!modules.is_empty()).then_some(Lever::Checkpoint { modules });
    found.extend(again.clone().map(|again| joined(form.clone(), Some(again))));
    let more = gpus.saturating_mul(4);
    let batch = limits.batch.or_else(|| base.family.largest().map(|trace| trace.batch.size)).unwrap_or(0);
    if batch > 0 && batch.is_multiple_of(u64::from(more)) {
        let shorter =
            Lever::Shard { form: ShardForm::Pipeline, gpus: *gpus, stages: stages.clone(), micro_batches: Some(more) };
        found.push(joined(shorter.clone(), None));
        found.extend(again.map(|again| joined(shorter, Some(again))));
    }
    found
}

/// What to say of a way that could not be traced, where others could.
#[must_use]
pub fn not_considered(levers: &[Lever], why: &str) -> String {
    let names: Vec<String> = levers.iter().map(Lever::title).collect();
    format!("not considered: {}: {why}", names.join(", "))
}
