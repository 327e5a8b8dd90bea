//! A plan is worked out from traces without it, by rules of what each lever does. Before it is believed the model is traced
//! once more with the plan applied, as it will run. If that takes more than the budget, another plan is made for less.

use gpuheap_fit::plan::{Limits, Variant};
use gpuheap_fit::scale::Family;
use gpuheap_fit::trace::Trace;
use gpuheap_fit::{Fit, FitOptions, Lever, Peak, Verdict};
use gpuheap_record::Bytes;

use crate::errors::Error;

/// Plans that are tried.
const TURNS: usize = 4;
/// A budget that nothing exceeds.
const ENDLESS: u64 = 1 << 60;
/// The next plan aims so much lower than it would have to, in hundredths.
const SPARE: u64 = 1;

/// Makes plans and traces them.
pub(crate) trait Plans {
    /// What plans are made with.
    fn options(&self) -> &FitOptions;

    /// A plan for a budget.
    fn plan(&mut self, budget: Option<u64>) -> Result<Fit, Error>;

    /// The model with levers applied.
    fn trace(&mut self, levers: &[Lever]) -> Result<Trace, Error>;
}

/// Makes sure of a plan. A model that cannot be traced with it is told of, and its plan is left as it is.
pub(crate) fn confirmed(mut fit: Fit, plans: &mut impl Plans) -> Result<Fit, Error> {
    let budget = fit.budget_bytes;
    let mut aim = budget;
    let mut told = None;
    for _ in 0..TURNS {
        let levers: Vec<Lever> = fit.plan.iter().map(|planned| planned.lever.clone()).collect();
        if levers.is_empty() || fit.verdict != Verdict::Fits {
            break;
        }
        let traced = match plans.trace(&levers) {
            Ok(traced) => traced,
            Err(error) => {
                fit.notes
                    .push(format!("the model could not be traced with the plan, so its peak is by rules: {error}"));
                return Ok(fit);
            }
        };
        let found = as_traced(traced, plans.options(), &fit)?;
        let peak = found.peak;
        if peak.high <= budget {
            fit.peak = Peak { step_us: fit.peak.step_us, ..peak };
            fit.phases = found.phases;
            if let (Some(timelines), Some(traced)) = (&mut fit.timelines, found.timelines) {
                timelines.planned = Some(traced.baseline);
            }
            fit.notes.push("the peak is of a trace with the plan applied".to_owned());
            return Ok(fit);
        }
        told = Some((Bytes::new(fit.peak.device_bytes), Bytes::new(peak.device_bytes)));
        let by = u128::from(aim) * u128::from(budget) / u128::from(peak.high) * u128::from(100 - SPARE) / 100;
        aim = u64::try_from(by).unwrap_or(0);
        fit = plans.plan(Some(aim))?;
        fit.budget_bytes = budget;
        if fit.verdict == Verdict::FitsWithSpill {
            // What is over the lower aim need not be over the budget: the next trace tells.
            fit.plan.retain(|planned| !matches!(planned.lever, Lever::Spill { .. }));
            fit.verdict = Verdict::Fits;
        }
    }
    if let Some((planned, traced)) = told {
        if fit.verdict == Verdict::Fits {
            fit.verdict = Verdict::DoesNotFit;
        }
        fit.notes.push(format!(
            "a plan that takes {planned} by rules took {traced} when the model was traced with it, and none was found that fits"
        ));
    }
    Ok(fit)
}

/// What a trace with the plan applied takes, with the plan's settings of the allocator.
fn as_traced(trace: Trace, options: &FitOptions, fit: &Fit) -> Result<Fit, Error> {
    let family = Family::new(vec![trace]).map_err(Error::Fit)?;
    let limits = Limits {
        conf: Some(fit.conf.clone()),
        gpus: options.limits.gpus,
        without: vec!["all".to_owned()],
        workspace: options.limits.workspace.clone(),
        ..Limits::default()
    };
    let options = FitOptions { budget: Some(ENDLESS), limits, front: false, ..options.clone() };
    gpuheap_fit::fit(&[Variant { levers: Vec::new(), family }], &options, &mut |_, _| ()).map_err(Error::Fit)
}
