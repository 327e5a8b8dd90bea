//! What the forms of a fit say in the same words.

use gpuheap_explain::VerdictKind;
use gpuheap_fit::holders::Holder;
use gpuheap_fit::{Basis, Fit, Lever, Peak, PlannedLever, Verdict};
use gpuheap_record::Bytes;

use crate::text;

/// The verdict in capitals.
pub(crate) fn verdict(fit: &Fit) -> &'static str {
    match fit.verdict {
        Verdict::Fits if is_reckoned(fit) => "FITS BY RULES",
        Verdict::Fits => "FITS",
        Verdict::FitsWithSpill => "FITS WITH SPILL",
        Verdict::DoesNotFit => "DOES NOT FIT",
    }
}

/// Whether a plan is said to fit that no trace was made with.
fn is_reckoned(fit: &Fit) -> bool {
    fit.peak_from == Basis::Rules && !fit.plan.is_empty()
}

/// The colour of a verdict is that of a kind of report.
pub(crate) fn kind(fit: &Fit) -> VerdictKind {
    match fit.verdict {
        Verdict::Fits if is_reckoned(fit) => VerdictKind::Fragmentation,
        Verdict::Fits => VerdictKind::Healthy,
        Verdict::FitsWithSpill => VerdictKind::Fragmentation,
        Verdict::DoesNotFit => VerdictKind::Oom,
    }
}

/// The rest of the first sentence.
pub(crate) fn headline(fit: &Fit) -> String {
    let budget = Bytes::new(fit.budget_bytes);
    let each = if fit.gpus > 1 { format!(" on each of {} devices", fit.gpus) } else { String::new() };
    let changes = match fit.plan.len() {
        0 => "as it is".to_owned(),
        1 => "with 1 change".to_owned(),
        count => format!("with {count} changes"),
    };
    match fit.verdict {
        Verdict::Fits => {
            let spare = Bytes::new(fit.budget_bytes.saturating_sub(fit.peak.device_bytes));
            format!("in {budget}{each} {changes}, {spare} to spare")
        }
        Verdict::FitsWithSpill => format!("in {budget}{each} {changes}: what is over lies on the host"),
        Verdict::DoesNotFit => {
            let least =
                fit.smallest_budget_bytes.map(|least| format!("; the least that works is {}", Bytes::new(least)));
            format!("in {budget}{each}, whatever is changed{}", least.unwrap_or_default())
        }
    }
}

/// A peak with its error bar.
pub(crate) fn peak(peak: &Peak) -> String {
    format!("{} ({} to {})", Bytes::new(peak.device_bytes), Bytes::new(peak.low), Bytes::new(peak.high))
}

/// What a peak is made of.
pub(crate) fn parts(fit: &Fit, peak: &Peak) -> String {
    let [allocated, reserved, context] = [peak.allocated_bytes, peak.reserved_bytes, fit.context_bytes].map(Bytes::new);
    let more = fit.context_most_bytes.saturating_sub(fit.context_bytes);
    let most = if more > 0 { format!(" (or {} more)", Bytes::new(more)) } else { String::new() };
    format!("{allocated} allocated, {reserved} reserved, {context}{most} for the context and libraries")
}

/// The instant that binds.
pub(crate) fn instant(peak: &Peak) -> String {
    let phase = peak.phase.name().replace('_', " ");
    let step = if peak.step > 0 { format!(" of step {}", peak.step) } else { String::new() };
    let module = if peak.module.is_empty() { String::new() } else { format!(", in `{}`", peak.module) };
    format!("{phase}{step}{module}")
}

/// A time of a step, in words.
pub(crate) fn step(microseconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and saturates")]
    let whole = microseconds.max(0.0).round() as u64;
    text::duration(whole)
}

/// How much slower or faster the plan is.
pub(crate) fn slower(fit: &Fit) -> String {
    change(fit.step_us - fit.baseline.step_us, fit.baseline.step_us)
}

/// A change of time against all of it.
pub(crate) fn change(more_us: f64, of_us: f64) -> String {
    let percent = if of_us > 0.0 { more_us / of_us * 100.0 } else { 0.0 };
    if percent.abs() < 0.5 { "±0 %".to_owned() } else { format!("{percent:+.0} %") }
}

/// What a lever saves; what it takes is negative.
pub(crate) fn saves(lever: &PlannedLever) -> String {
    let bytes = Bytes::new(lever.saves_bytes.unsigned_abs());
    if lever.saves_bytes < 0 { format!("-{bytes}") } else { bytes.to_string() }
}

/// What the figures of single changes are, where there are several.
pub(crate) fn shares(fit: &Fit) -> Option<&'static str> {
    (fit.plan.len() > 1).then_some(
        "What a change saves and costs is the plan against itself without it, by rules: changes overlap, so that these do \
         not add up.",
    )
}

/// The place of a holder.
pub(crate) fn place(holder: &Holder) -> String {
    if holder.module.is_empty() { "all of the model".to_owned() } else { holder.module.clone() }
}

/// How good the plan is, if there is one.
pub(crate) fn optimality(fit: &Fit) -> Option<String> {
    if fit.plan.is_empty() {
        return None;
    }
    let best = match fit.verdict {
        Verdict::Fits => "The fastest of",
        _ => "The smallest of",
    };
    let over = &fit.optimality.over;
    if over.starts_with("the only ") {
        return Some(format!("This is {over}."));
    }
    Some(if fit.optimality.kind == "optimal" {
        format!("{best} {over}, by the predicted times.")
    } else {
        format!("{best} {over}: a faster one may exist.")
    })
}

/// The smallest budget, where it is not the answer already.
pub(crate) fn smallest(fit: &Fit) -> Option<String> {
    let least = fit.smallest_budget_bytes.filter(|_| fit.verdict != Verdict::DoesNotFit)?;
    Some(format!("{} is the smallest budget that some plan keeps to", Bytes::new(least)))
}

/// The levers of a point of the front.
pub(crate) fn changes(levers: &[Lever]) -> String {
    if levers.is_empty() {
        return "none".to_owned();
    }
    levers.iter().map(Lever::title).collect::<Vec<_>>().join("; ")
}
