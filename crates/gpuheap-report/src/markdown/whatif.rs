//! What other settings would have done, as Markdown.

use gpuheap_explain::{WhatIf, WhatIfReport};

use super::Page;
use super::inline::{code_cell, fenced, prose};
use crate::sentences::{self, whatif as say};
use crate::text;

const TITLES: [&str; 8] = ["settings", "", "reserved:", "waste:", "segments:", "driver calls:", "retries:", "fits in:"];

pub(crate) fn to_markdown(report: &WhatIfReport) -> String {
    let mut page = Page::default();
    if report.whatif.is_empty() {
        page.block(&format!("### {}", prose(&say::verified(report))));
        if let Some(first) = report.replay.first_mismatch.as_ref().filter(|_| !report.replay.exact) {
            page.block(&format!("First difference: {}", prose(first)));
        }
    } else {
        answer(&mut page, report);
    }
    page.finish()
}

fn answer(page: &mut Page, report: &WhatIfReport) {
    page.block(&format!("### {}", prose(&say::answer(report))));
    match &report.best {
        Some(conf) => page.block(&fenced("sh", &text::conf_line(conf))),
        None => page.block(say::NOTHING_BETTER),
    }
    if let Some(estimate) = say::estimate(report) {
        page.block(&prose(&estimate));
    }
    page.block(&format!("**{}**", say::heading(report)));
    let rows: Vec<Vec<String>> = report.whatif.iter().map(|row| cells(report, row)).collect();
    page.table(&TITLES, &rows);
    page.block(say::LEGEND);
    let failures: Vec<String> = report.whatif.iter().filter_map(failure).collect();
    page.list(&failures);
    page.block(&format!("Recorded in {}.", super::inline::code(sentences::file(&report.source.path))));
}

fn cells(report: &WhatIfReport, row: &WhatIf) -> Vec<String> {
    vec![
        settings(row),
        say::mark(report, row).to_owned(),
        row.peak_reserved_bytes.to_string(),
        say::waste(row),
        text::count(row.segments),
        text::count(row.driver_calls),
        text::count(row.retries),
        if row.oom { "out of memory".to_owned() } else { say::fits_in(row) },
    ]
}

fn settings(row: &WhatIf) -> String {
    if row.conf.is_empty() { text::settings("") } else { code_cell(&row.conf) }
}

fn failure(row: &WhatIf) -> Option<String> {
    Some(format!("{}: {}", settings(row), prose(&say::failure(row)?)))
}
