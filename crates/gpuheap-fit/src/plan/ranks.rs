//! Several ranks that differ: the stages of a pipeline. The fullest decides whether a plan fits, and all of them how long
//! a step takes.

use crate::cost::{CostModel, StepTime};
use crate::levers::ShardForm;
use crate::program::Program;
use crate::trace::{Phase, Trace};

/// The time of a step of all stages of a pipeline, each with its program. Every stage works on all parts of a batch; its
/// first part comes when those before it have done theirs, and the way back of the last part takes as long.
pub(super) fn step(stages: &[(&CostModel, &Program<'_>)]) -> StepTime {
    let times: Vec<StepTime> = stages.iter().map(|(cost, program)| cost.step(program)).collect();
    let passes: Vec<f64> =
        stages.iter().zip(&times).map(|((cost, program), time)| pass_us(cost, program, *time)).collect();
    let all: f64 = passes.iter().sum();
    let waiting =
        times.iter().zip(&passes).map(|(time, pass)| StepTime { total_us: time.total_us + all - pass, ..*time });
    waiting.max_by(|one, other| one.total_us.total_cmp(&other.total_us)).unwrap_or_default()
}

/// The time that a stage takes for one part of a batch, forward and backward.
fn pass_us(cost: &CostModel, program: &Program<'_>, time: StepTime) -> f64 {
    let phases = cost.phases(program);
    let sum = |wanted: fn(Phase) -> bool| -> f64 {
        phases.iter().filter(|(phase, _)| wanted(*phase)).map(|(_, us)| us).sum()
    };
    let passes = sum(|phase| matches!(phase, Phase::Forward | Phase::Loss | Phase::Backward));
    let all = sum(|_| true);
    let share = if all > 0.0 { passes / all } else { 0.0 };
    time.total_us * share / f64::from(program.trace.micro_batches.max(1))
}

/// Which levers go with a form: PyTorch's engines do not take all.
pub(super) fn goes_with(form: ShardForm, lever: Beside) -> bool {
    match lever {
        Beside::InBackward => false,
        Beside::StateElsewhere => form == ShardForm::Data,
        Beside::ChunkedLoss => matches!(form, ShardForm::Data | ShardForm::Fsdp2),
        Beside::FewBits => form != ShardForm::Tensor,
        Beside::OffloadedActivations => !matches!(form, ShardForm::Tensor),
    }
}

/// What not every form of sharding goes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beside {
    /// The optimizer's step within the backward pass.
    InBackward,
    /// Its state on the host, or in other numbers.
    StateElsewhere,
    /// The loss by chunks.
    ChunkedLoss,
    /// Its state in 8 or 4 bits.
    FewBits,
    /// Activations on the host.
    OffloadedActivations,
}

/// Whether the blocks of a trace can be treated by rules: stages of a pipeline run parts of the batch in turns, and what
/// one keeps while others run does not follow from one passage.
pub(super) fn has_chain(trace: &Trace) -> bool {
    trace.sharded().is_none_or(|(form, _)| form != ShardForm::Pipeline)
}
