//! Whether a model fits: the verdict, the plan, the instant that binds, time against memory.

use gpuheap_explain::Class;
use gpuheap_fit::{Fit, trace};
use gpuheap_record::Bytes;

use super::Style;
use super::page::{Line, Page};
use super::palette::Role;
use super::table::{Cell, Column};
use crate::sentences::{self, fit as say};
use crate::text;

const PLAN: [Column; 4] = [Column::wrapping("change"), Column::new("saves"), Column::new("step"), Column::new("why")];
const HOLDERS: [Column; 3] = [Column::new("held"), Column::new("class"), Column::new("by")];

pub(crate) fn render(fit: &Fit, style: Style) -> String {
    let mut page = Page::new(style);
    verdict(&mut page, fit);
    plan(&mut page, fit);
    holders(&mut page, fit);
    super::front::show(&mut page, fit);
    notes(&mut page, fit);
    page.finish()
}

fn verdict(page: &mut Page, fit: &Fit) {
    let lead = format!("{} ", say::verdict(fit));
    let parts = text::wrap(&page.folded(&say::headline(fit)), page.width() - text::width(&lead), page.width() - 2);
    for (index, part) in parts.iter().enumerate() {
        let line =
            if index == 0 { Line::of(Role::Verdict(say::kind(fit)), &lead) } else { Line::of(Role::Plain, "  ") };
        page.line(line.with(Role::Strong, part));
    }
    let device = if fit.gpus > 1 { format!("{} × {}", fit.gpus, fit.device) } else { fit.device.clone() };
    if fit.plan.is_empty() {
        let now = format!("{}, {} a step", say::peak(&fit.peak), say::step(fit.step_us));
        page.field("Needs", Role::Plain, &now);
    } else {
        let now = format!("{}, {} a step", say::peak(&fit.baseline), say::step(fit.baseline.step_us));
        page.field("As it is", Role::Plain, &now);
        let then = format!("{}, {} a step ({})", say::peak(&fit.peak), say::step(fit.step_us), say::slower(fit));
        page.field("Planned", Role::Plain, &then);
    }
    page.field("That is", Role::Plain, &say::parts(fit, &fit.peak));
    page.field("Peak in", Role::Plain, &say::instant(&fit.peak));
    page.field("Device", Role::Plain, &format!("{device}, batch {}", fit.batch.size));
}

fn plan(page: &mut Page, fit: &Fit) {
    if fit.plan.is_empty() {
        return;
    }
    page.heading("Plan");
    let rows: Vec<Vec<Cell>> = fit
        .plan
        .iter()
        .map(|lever| {
            vec![
                Cell::Text(Role::Code, lever.what.clone()),
                Cell::Number(say::saves(lever)),
                Cell::Number(say::change(lever.costs_us, fit.baseline.step_us)),
                Cell::Text(Role::Faint, lever.why.clone()),
            ]
        })
        .collect();
    page.table(&PLAN, &rows);
    if let Some(optimality) = say::optimality(fit) {
        page.gap();
        page.paragraph("", 0, Role::Faint, &optimality);
    }
    if let Some(shares) = say::shares(fit) {
        page.paragraph("", 0, Role::Faint, shares);
    }
    page.gap();
    for lever in &fit.plan {
        for line in lever.code.lines() {
            let indent = 2 + line.len() - line.trim_start().len();
            page.paragraph(&" ".repeat(indent), indent + 4, Role::Code, line.trim_start());
        }
    }
}

fn holders(page: &mut Page, fit: &Fit) {
    if fit.peak.holders.is_empty() {
        return;
    }
    page.heading("Who holds memory at the peak");
    let rows: Vec<Vec<Cell>> = fit
        .peak
        .holders
        .iter()
        .map(|holder| {
            vec![
                Cell::Number(Bytes::new(holder.bytes).to_string()),
                Cell::Text(Role::Class(class(holder.class)), class(holder.class).title().to_owned()),
                Cell::Text(Role::Plain, say::place(holder)),
            ]
        })
        .collect();
    page.table(&HOLDERS, &rows);
}

fn notes(page: &mut Page, fit: &Fit) {
    page.gap();
    if fit.front.is_empty()
        && let Some(smallest) = say::smallest(fit)
    {
        page.field("Smallest", Role::Plain, &smallest);
    }
    for (index, unknown) in fit.unknown.iter().enumerate() {
        let bound = match unknown.bound_bytes {
            Some(bytes) => format!("at most {}", Bytes::new(bytes)),
            None => "not bounded".to_owned(),
        };
        let label = if index == 0 { "Unknown" } else { "" };
        page.field(label, Role::Plain, &format!("{} in {}: {bound}", unknown.what, unknown.place));
    }
    for (index, note) in fit.notes.iter().enumerate() {
        page.field(if index == 0 { "Notes" } else { "" }, Role::Faint, &sentences::note(note));
    }
}

/// The class of a report that stands for one of a trace.
fn class(class: trace::Class) -> Class {
    match class {
        trace::Class::Parameter | trace::Class::Buffer => Class::Parameters,
        trace::Class::Gradient => Class::Gradients,
        trace::Class::Optimizer => Class::OptimizerState,
        trace::Class::Activation | trace::Class::Loss => Class::Activations,
        trace::Class::Temporary => Class::Temporaries,
        trace::Class::Input => Class::Inputs,
        trace::Class::Workspace => Class::Workspace,
        trace::Class::Unknown => Class::Unknown,
    }
}
