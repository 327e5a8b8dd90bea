//! What changed between two recordings, as Markdown.

use gpuheap_explain::{Diff, Side, SiteChange};
use gpuheap_record::Bytes;

use super::Page;
use super::inline::{cell, code, moved_cell, prose};
use crate::sentences::diff as say;
use crate::text;

pub(crate) fn to_markdown(diff: &Diff) -> String {
    let mut page = Page::default();
    page.block(&format!("### {}", say::headline(diff)));
    page.list(&[side("Before", &diff.before), side("After", &diff.after)]);
    let rows: Vec<Vec<String>> =
        say::sums(diff).into_iter().map(|(name, before, after)| row(name.to_owned(), before, after)).collect();
    page.table(&titles("in all"), &rows);
    if !diff.classes.is_empty() {
        page.block("**By class at the peak of allocated memory**");
        let rows: Vec<Vec<String>> = diff
            .classes
            .iter()
            .map(|change| row(change.class.title().to_owned(), change.before_bytes, change.after_bytes))
            .collect();
        page.table(&titles("class"), &rows);
    }
    page.block("**By line at the peak of allocated memory**");
    let (shown, others) = say::places(&diff.sites, false);
    if shown.is_empty() {
        page.block(say::NO_PLACE_CHANGED);
    } else {
        places(&mut page, shown);
    }
    if others > 0 {
        page.folded(&say::others(others), |page| places(page, &diff.sites[shown.len()..shown.len() + others]));
    }
    if !diff.growth.is_empty() {
        page.block("**Leaked each step, by line**");
        let rows: Vec<Vec<String>> = diff.growth.iter().map(growth).collect();
        page.table(&titles("line"), &rows);
    }
    page.finish()
}

fn side(label: &str, side: &Side) -> String {
    let (name, headline) = text::headline(side.verdict.kind, &side.verdict.headline);
    format!("{label}: {}. **{name}**: {}", code(&say::side(side)), prose(&headline))
}

fn titles(what: &str) -> [&str; 5] {
    [what, "before:", "after:", "change:", ":"]
}

fn row(name: String, before: Bytes, after: Bytes) -> Vec<String> {
    vec![name, before.to_string(), after.to_string(), say::signed(before, after), say::relative(before, after)]
}

fn growth(change: &SiteChange) -> Vec<String> {
    row(place(change), change.before_bytes, change.after_bytes)
}

fn place(change: &SiteChange) -> String {
    match say::place(change) {
        Some((site, from)) => moved_cell(site, from),
        None => cell(&change.label),
    }
}

fn places(page: &mut Page, places: &[SiteChange]) {
    let rows: Vec<Vec<String>> = places
        .iter()
        .map(|change| {
            let mut cells = row(change.class.title().to_owned(), change.before_bytes, change.after_bytes);
            cells.push(place(change));
            cells
        })
        .collect();
    page.table(&["class", "before:", "after:", "change:", ":", "line"], &rows);
}
