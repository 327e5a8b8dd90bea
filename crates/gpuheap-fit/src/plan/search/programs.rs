//! The program of a combination of levers, and what its time is worked out by.

use super::Planner;
use crate::bar::replay_with_bar;
use crate::blocks::{Block, Uses, blocks_with};
use crate::cost::{CostModel, StepTime};
use crate::device::add_workspaces;
use crate::error::Error;
use crate::levers::checkpoint::{Treatment, treat};
use crate::levers::{Lever, accumulate, loss, optimizer, shard};
use crate::plan::ranks;
use crate::plan::spec::Spec;
use crate::program::Program;
use crate::replay::{Replayed, config};
use crate::trace::Trace;

impl Planner<'_> {
    /// The model as it is: its program on this device.
    pub fn baseline(&self) -> Result<(Program<'_>, Replayed, StepTime), Error> {
        let Some(prepared) = self.prepared.first() else {
            return Err(Error::OneBatch { traced: 0, wanted: self.limits.batch.unwrap_or(0) });
        };
        let program = self.with_workspaces(&prepared.trace);
        let given = self.limits.conf.as_deref().unwrap_or("");
        let replayed = replay_with_bar(&program, &config(given)?, self.device);
        let time = self.cost(&prepared.trace).step(&program);
        Ok((program, replayed, time))
    }

    pub(super) fn with_workspaces<'t>(&self, trace: &'t Trace) -> Program<'t> {
        let mut program = Program::new(trace);
        add_workspaces(&mut program, self.device, self.limits.workspace.as_deref());
        program
    }

    /// The program of a combination.
    pub(super) fn build(&self, spec: Spec) -> Option<Program<'_>> {
        let prepared = &self.prepared[spec.prepared];
        let trace = if spec.rank == 0 { &prepared.trace } else { prepared.others.get(spec.rank - 1)? };
        let mut program = self.with_workspaces(trace);
        if let Some(chunks) = spec.chunks {
            program = loss::chunked(&program, chunks, self.device)?;
        }
        if spec.half_state {
            program = optimizer::half_state(&program, self.device)?;
        }
        if spec.offload {
            program = optimizer::offload(&program, self.device)?;
        }
        if let Some(form) = spec.form {
            program = optimizer::optimizer(&program, form, self.device)?;
        }
        if let Some(form) = spec.shard {
            let largest = shard::largest_block(&program);
            program = shard::shard(&program, form, self.limits.gpus.max(2), largest, self.device)?;
        }
        accumulate::accumulate(&program, prepared.factor, self.device)
    }

    pub(super) fn treated(&self, spec: Spec, treatments: &[Treatment]) -> Option<Program<'_>> {
        let program = self.build(spec)?;
        if treatments.is_empty() {
            return Some(program);
        }
        let uses = Uses::new(&program);
        let blocks = self.blocks_of(&program, &uses);
        if blocks.len() != treatments.len() && treatments.iter().any(|&treatment| treatment != Treatment::Keep) {
            return None;
        }
        Some(treat(&program, &uses, &blocks, treatments, self.device).program)
    }

    /// The chain of blocks, with those that were asked for by name.
    pub(super) fn blocks_of(&self, program: &Program<'_>, uses: &Uses) -> Vec<Block> {
        let named = self.limits.set.iter().filter_map(|lever| match lever {
            Lever::Checkpoint { modules }
            | Lever::SelectiveCheckpoint { modules, .. }
            | Lever::OffloadActivations { modules } => Some(modules),
            _ => None,
        });
        let named: Vec<&str> = named.flatten().map(String::as_str).filter(|&name| name != "all").collect();
        blocks_with(program, uses, &named)
    }

    pub(super) fn cost(&self, trace: &Trace) -> CostModel {
        CostModel::new(trace, self.device, self.calibration)
    }

    /// The time of a step where ranks differ.
    pub(super) fn over_ranks(&self, spec: Spec) -> Option<StepTime> {
        let count = self.prepared[spec.prepared].others.len() + 1;
        let programs = (0..count).map(|rank| self.build(Spec { rank, ..spec })).collect::<Option<Vec<_>>>()?;
        let costs: Vec<CostModel> = programs.iter().map(|program| self.cost(program.trace)).collect();
        let stages: Vec<(&CostModel, &Program<'_>)> = costs.iter().zip(&programs).collect();
        Some(ranks::step(&stages))
    }
}
