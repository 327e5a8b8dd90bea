//! The code that turns a lever on, for people who do it by hand.

use super::{Lever, OptimizerForm, ShardForm};

/// Lines of Python or of a shell that do what the lever says. `class` is the optimizer's.
#[must_use]
pub fn code(lever: &Lever, class: &str) -> String {
    let class = if class.is_empty() { "AdamW" } else { class };
    match lever {
        Lever::Accumulate { factor } => format!(
            "for micro_batch in split(batch, {factor}):\n    loss = compute_loss(model, micro_batch) / {factor}\n    \
             loss.backward()\noptimizer.step(); optimizer.zero_grad()"
        ),
        Lever::Allocator { conf } => format!("export PYTORCH_CUDA_ALLOC_CONF={conf}"),
        Lever::Autocast { dtype } if dtype == "float16" => {
            "with torch.autocast(\"cuda\", torch.float16):\n    loss = compute_loss(model, batch)\nscaler.scale(loss).backward(); \
             scaler.step(optimizer); scaler.update()  # scaler = torch.amp.GradScaler()"
                .to_owned()
        }
        Lever::Autocast { dtype } => {
            format!("with torch.autocast(\"cuda\", torch.{dtype}):\n    loss = compute_loss(model, batch)")
        }
        Lever::Parameters { dtype } => format!("model.to(torch.{dtype})"),
        Lever::Optimizer { form } => match form {
            OptimizerForm::Foreach => format!("torch.optim.{class}(..., foreach=True)"),
            OptimizerForm::ForLoop => format!("torch.optim.{class}(..., foreach=False)"),
            OptimizerForm::Fused => format!("torch.optim.{class}(..., fused=True)"),
            OptimizerForm::InBackward => format!(
                "steps = {{p: torch.optim.{class}([p], ...) for p in model.parameters()}}\ndef hook(p):\n    \
                 steps[p].step(); steps[p].zero_grad()\nfor p in steps: p.register_post_accumulate_grad_hook(hook)"
            ),
            OptimizerForm::EightBit => format!("torchao.optim.{class}8bit(...)"),
            OptimizerForm::FourBit => format!("torchao.optim.{class}4bit(...)"),
        },
        Lever::OptimizerState { dtype } => format!("plan.apply(model, optimizer)  # state in torch.{dtype}"),
        Lever::OffloadOptimizer {} => "plan.apply(model, optimizer)  # state on the host between steps".to_owned(),
        Lever::Loss { chunks, .. } => format!("plan.apply(model, optimizer)  # head and loss in {chunks} chunks"),
        Lever::Checkpoint { modules } => format!("{}\n    block.forward = partial(checkpoint, block.forward, use_reentrant=False)", each(modules)),
        Lever::SelectiveCheckpoint { modules, keep } => format!(
            "keep = [{}]\ncontext = partial(create_selective_checkpoint_contexts, keep)\n{}\n    block.forward = \
             partial(checkpoint, block.forward, use_reentrant=False, context_fn=context)",
            keep.iter().map(|op| format!("torch.ops.{op}")).collect::<Vec<_>>().join(", "),
            each(modules)
        ),
        Lever::OffloadActivations { modules } => format!(
            "{}\n    # run block.forward within torch.autograd.graph.save_on_cpu(pin_memory=True)",
            each(modules)
        ),
        Lever::Compile { activation_memory_budget } => format!(
            "torch._functorch.config.activation_memory_budget = {activation_memory_budget}\nmodel = torch.compile(model)"
        ),
        Lever::Shard { form, gpus, .. } => {
            let what = match form {
                ShardForm::Data => "model = DistributedDataParallel(model, gradient_as_bucket_view=True)",
                ShardForm::Fsdp2 => "for block in blocks: fully_shard(block)\nfully_shard(model)",
                ShardForm::Tensor => {
                    "parallelize_module(model, mesh, {first: ColwiseParallel(), second: RowwiseParallel(), ...})"
                }
                ShardForm::Pipeline => "applied = plan.apply(model, optimizer); applied.step(batch)  # a stage, Schedule1F1B",
            };
            format!("torchrun --standalone --nproc-per-node={gpus} train.py\ntorch.distributed.init_process_group()\n{what}")
        }
        Lever::Quantize { dtype, .. } => format!("torchao.quantization.quantize_(model, ...)  # {dtype}"),
        Lever::Prune { amount } => format!(
            "torch.nn.utils.prune.l1_unstructured(module, \"weight\", {amount}); torch.nn.utils.prune.remove(module, \"weight\")"
        ),
        Lever::Sparse24 {} => "weight = torch.sparse.to_sparse_semi_structured(weight)".to_owned(),
        Lever::InferenceMode {} => "with torch.inference_mode():\n    evaluate(model)".to_owned(),
        Lever::Spill { bytes } => format!("gpuheap run --spill {bytes} -- python train.py"),
    }
}

fn each(modules: &[String]) -> String {
    let names = modules.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    format!("for name in [{names}]:\n    block = model.get_submodule(name)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_spills_is_told_how_much() {
        // Nothing spills unless that is asked for.
        assert!(code(&Lever::Spill { bytes: 4096 }, "").contains("--spill 4096"));
    }
}
