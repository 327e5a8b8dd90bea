//! What a recording means, as Markdown: the answer open, everything else in blocks to unfold.

use gpuheap_explain::{Finding, Holder, LedgerPart, Report};
use gpuheap_record::Bytes;

use super::Page;
use super::inline::{self, cell, code, code_cell, prose, site};
use crate::{sentences, terminal, text};

/// The report. It holds everything; most of it is folded.
pub(crate) fn to_markdown(report: &Report) -> String {
    let mut page = Page::default();
    verdict(&mut page, report);
    ledger(&mut page, report);
    facts(&mut page, report);
    for finding in &report.findings {
        page.folded(&format!("{}: {}", finding.id, finding.title), |page| evidence(page, finding));
    }
    oom(&mut page, report);
    if !report.holders.is_empty() {
        let title = format!("Who held memory {}", sentences::moment(report.ledger_at));
        let of = sentences::ledger_moment(report).allocated_bytes;
        page.folded(&title, |page| holders(page, &report.holders, of));
    }
    let drawing = terminal::drawing(report);
    if !drawing.is_empty() {
        page.folded("Memory over time", |page| page.block(&format!("```text\n{}\n```", drawing.trim_matches('\n'))));
    }
    rest(&mut page, report);
    page.finish()
}

fn verdict(page: &mut Page, report: &Report) {
    let (name, headline) = text::headline(report.verdict.kind, &report.verdict.headline);
    page.block(&format!("### {name}: {}", prose(&headline)));
    let sure = text::confidence(report.verdict.confidence);
    page.block(&match &report.verdict.site {
        Some(place) => format!("At {} ({sure} confidence).", site(place)),
        None => format!("({sure} confidence)"),
    });
    if let (Some(main), _) = sentences::main_finding(report) {
        remedy(page, main);
    }
    if let Some(remedy) = sentences::verdict_remedy(report) {
        page.block(&format!("**Change:** {}", prose(remedy)));
    }
    if let Some(oom) = &report.oom {
        page.block(&format!("**Request:** {}.", sentences::request(oom)));
    }
}

fn remedy(page: &mut Page, finding: &Finding) {
    let remedy = &finding.remedy;
    page.block(&format!("**Change:** {}", prose(&sentences::remedy(remedy))));
    if let Some(conf) = &remedy.conf {
        page.block(&inline::fenced("sh", &text::conf_line(conf)));
    }
}

fn ledger(page: &mut Page, report: &Report) {
    if report.ledger.is_empty() {
        return;
    }
    page.block(&format!("**Where the memory was {}**", sentences::moment(report.ledger_at)));
    let (parts, outside) = sentences::ledger(report);
    let reserved: Bytes = parts.iter().map(|part| part.bytes).sum();
    let row =
        |part: &&LedgerPart, share: String| vec![cell(&part.part), part.bytes.to_string(), share, cell(&part.detail)];
    let sum =
        |name: &str, bytes: Bytes| vec![format!("**= {name}**"), format!("**{bytes}**"), String::new(), String::new()];
    let mut rows: Vec<Vec<String>> = parts.iter().map(|part| row(part, text::share(part.bytes, reserved))).collect();
    rows.push(sum("reserved", reserved));
    if !outside.is_empty() {
        rows.extend(outside.iter().map(|part| row(part, String::new())));
        let all = reserved + outside.iter().map(|part| part.bytes).sum::<Bytes>();
        rows.push(sum(sentences::whole(&outside), all));
    }
    page.table(&["part", "bytes:", "share:", "what"], &rows);
}

fn facts(page: &mut Page, report: &Report) {
    let mut facts = vec![
        format!("Peaks: {}", sentences::peaks(report)),
        format!("Steps: {}", prose(&sentences::steps(&report.steps))),
        format!("Replay: {}", prose(&sentences::replay(&report.replay))),
    ];
    facts.extend(report.source.notes.iter().map(|note| format!("Note: {}", prose(&sentences::note(note)))));
    page.list(&facts);
}

fn evidence(page: &mut Page, finding: &Finding) {
    let mut items = Vec::new();
    if let Some(place) = &finding.site {
        items.push(format!("Where: {}", site(place)));
    }
    items.push(match finding.bytes_per_step {
        Some(per_step) => format!("Costs: {}, {per_step} more each step", finding.bytes),
        None => format!("Costs: {}", finding.bytes),
    });
    items.push(format!("Confidence: {}", text::confidence(finding.confidence)));
    items.extend(finding.evidence.iter().map(|seen| format!("Seen: {}", prose(seen))));
    page.list(&items);
    remedy(page, finding);
    if !finding.stack.is_empty() {
        let lines: Vec<String> = finding.stack.iter().map(|frame| text::site(frame, usize::MAX)).collect();
        page.block(&inline::fenced("text", &lines.join("\n")));
    }
}

fn oom(page: &mut Page, report: &Report) {
    let Some(oom) = &report.oom else { return };
    page.folded("Out of memory", |page| {
        let mut items = vec![format!("Failed: {}", sentences::failed(oom))];
        items.extend(oom.site.as_ref().map(|place| format!("Where: {}", site(place))));
        items.extend([
            format!("Asked: {}", oom.asked_bytes),
            format!("Allocated: {}", oom.moment.allocated_bytes),
            format!("Pending: {}", oom.pending_bytes),
            format!("Reserved: {}", oom.moment.reserved_bytes),
            format!("Cached: {}, at most {} in one piece", oom.cached_bytes, oom.largest_free_bytes),
            format!("Left on the device: {}", oom.device_free_bytes),
            format!("Least without any waste, the request included: {}", oom.ideal_bytes),
            format!("Limit: {}", sentences::limit(oom)),
        ]);
        page.list(&items);
        if let Some(of_failure) = sentences::holders_at_failure(report, oom) {
            holders(page, of_failure, oom.moment.allocated_bytes);
        }
    });
}

fn holders(page: &mut Page, holders: &[Holder], of: Bytes) {
    let rows: Vec<Vec<String>> = holders
        .iter()
        .map(|holder| {
            vec![
                holder.bytes.to_string(),
                text::share(holder.bytes, of),
                text::count(holder.blocks),
                holder.class.title().to_owned(),
                holder.site.as_ref().map_or_else(|| cell(&holder.label), inline::site_cell),
            ]
        })
        .collect();
    page.table(&["held:", "of allocated:", "blocks:", "class", "by"], &rows);
}

fn rest(page: &mut Page, report: &Report) {
    if !report.classes.is_empty() {
        page.folded("How memory was classed", |page| {
            let row = |rule: &gpuheap_explain::ClassRule| {
                vec![rule.class.title().to_owned(), rule.bytes.to_string(), text::count(rule.blocks), cell(rule.rule)]
            };
            let rows: Vec<Vec<String>> = report.classes.iter().map(row).collect();
            page.table(&["class", "bytes:", "blocks:", "rule"], &rows);
        });
    }
    page.folded("Moments", |page| {
        let rows: Vec<Vec<String>> = sentences::moments(report)
            .iter()
            .map(|(moment, name)| {
                vec![
                    (*name).to_owned(),
                    sentences::event(moment),
                    sentences::after_start(report, moment),
                    moment.allocated_bytes.to_string(),
                    moment.reserved_bytes.to_string(),
                ]
            })
            .collect();
        page.table(&["moment", "event:", "after:", "allocated:", "reserved:"], &rows);
    });
    if !report.whatif.is_empty() {
        page.folded("With other settings", |page| {
            let row = |row: &gpuheap_explain::WhatIf| {
                vec![
                    code_cell(&sentences::whatif_settings(row)),
                    row.peak_reserved_bytes.to_string(),
                    text::count(row.segments),
                    text::count(row.retries),
                    sentences::whatif_result(row).to_owned(),
                ]
            };
            let rows: Vec<Vec<String>> = report.whatif.iter().map(row).collect();
            page.table(&["settings", "reserved:", "segments:", "retries:", "result"], &rows);
        });
    }
    page.folded("Source", |page| {
        page.list(&[
            format!("File: {}", code(sentences::file(&report.source.path))),
            format!("Format: {}, {}", prose(&report.source.format), report.source.bytes),
            format!("Device: {}", sentences::device(report)),
            format!("Events: {}", sentences::events(report)),
            format!("Policy: {}", prose(&report.replay.policy)),
            format!("Settings: {}", code(&text::settings(&report.source.conf))),
            format!("History: {}", sentences::history(report)),
        ]);
    });
}
