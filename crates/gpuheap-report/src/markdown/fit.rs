//! Whether a model fits, as Markdown.

use gpuheap_fit::Fit;
use gpuheap_record::Bytes;

use super::Page;
use super::inline::{cell, fenced, prose};
use crate::sentences::fit as say;

pub(crate) fn to_markdown(fit: &Fit) -> String {
    let mut page = Page::default();
    page.block(&format!("### {} {}", say::verdict(fit), prose(&say::headline(fit))));
    page.table(
        &["", "device:", "allocated:", "reserved:", "step:"],
        &[("as it is", &fit.baseline, fit.baseline.step_us), ("planned", &fit.peak, fit.step_us)]
            .iter()
            .filter(|(name, ..)| *name == "as it is" || !fit.plan.is_empty())
            .map(|(name, peak, step)| {
                vec![
                    (*name).to_owned(),
                    say::peak(peak),
                    Bytes::new(peak.allocated_bytes).to_string(),
                    Bytes::new(peak.reserved_bytes).to_string(),
                    say::step(*step),
                ]
            })
            .collect::<Vec<_>>(),
    );
    page.block(&format!("The peak is in {}.", prose(&say::instant(&fit.peak))));
    if !fit.plan.is_empty() {
        let rows: Vec<Vec<String>> = fit
            .plan
            .iter()
            .map(|lever| {
                vec![
                    cell(&lever.what),
                    say::saves(lever),
                    say::change(lever.costs_us, fit.baseline.step_us),
                    cell(&lever.why),
                ]
            })
            .collect();
        page.table(&["change", "saves:", "step:", "why"], &rows);
        let code: Vec<&str> = fit.plan.iter().map(|lever| lever.code.as_str()).collect();
        page.block(&fenced("python", &code.join("\n")));
        if let Some(optimality) = say::optimality(fit) {
            page.block(&prose(&optimality));
        }
    }
    let rows: Vec<Vec<String>> = fit
        .peak
        .holders
        .iter()
        .map(|holder| {
            vec![Bytes::new(holder.bytes).to_string(), holder.class.name().to_owned(), cell(&say::place(holder))]
        })
        .collect();
    page.table(&["held:", "class", "by"], &rows);
    if !fit.front.is_empty() {
        let rows: Vec<Vec<String>> = fit
            .front
            .iter()
            .map(|point| {
                let changes = cell(&say::changes(&point.plan));
                vec![Bytes::new(point.budget_bytes).to_string(), say::step(point.step_us), changes]
            })
            .collect();
        page.table(&["budget:", "step:", "changes"], &rows);
    }
    let notes: Vec<String> = fit.notes.iter().map(|note| prose(note)).collect();
    page.list(&notes);
    page.finish()
}
