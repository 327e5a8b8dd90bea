//! `cargo xtask bench fit`: what an answer of `gpuheap fit` costs once the model is traced.

use super::{Bar, Limit, judge};
use crate::failure::Failure;
use crate::workspace::{self, Workspace};

/// The most milliseconds that one what-if may take.
const WHATIF_BAR: f64 = 1.0;
/// The most seconds that a plan over all levers may take for a model of 1.4 billion parameters.
const PLAN_BAR: f64 = 5.0;

const WHATIF: &str = "long, milliseconds of a what-if: the most alive";
const PLAN: &str = "1.4 B parameters, seconds of a plan within half of its need";
const BENCH: [&str; 6] = ["bench", "--locked", "--package", "gpuheap-fit", "--bench", "answers"];

/// Measures, prints, and with `strict` fails if a bar is missed.
pub(crate) fn run(workspace: &Workspace, strict: bool) -> Result<(), Failure> {
    let said =
        workspace::output(&mut workspace.cargo(BENCH)).ok_or_else(|| Failure::new("The benchmark `answers` failed"))?;
    println!("{said}");
    let figure = |name: &'static str| {
        let found = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse().ok());
        found.ok_or_else(|| Failure::new(format!("The benchmark did not say `{name}`")))
    };
    let bars = [
        Bar { name: WHATIF, value: figure(WHATIF)?, limit: Limit::AtMost(WHATIF_BAR) },
        Bar { name: PLAN, value: figure(PLAN)?, limit: Limit::AtMost(PLAN_BAR) },
    ];
    judge(&bars, strict)
}
