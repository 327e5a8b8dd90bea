//! The failed allocation.

use gpuheap_explain::Report;

use super::holders::table;
use super::page::{LABEL, Page};
use super::palette::Role;
use crate::sentences;

pub(super) fn show(page: &mut Page, report: &Report) {
    let Some(oom) = &report.oom else { return };
    page.heading("Out of memory");
    page.field("Failed", Role::Plain, &sentences::failed(oom));
    if let Some(site) = &oom.site {
        let place = page.site(site, page.width() - LABEL);
        page.field("Where", Role::Code, &place);
    }
    for (label, bytes) in [
        ("Asked", oom.asked_bytes),
        ("Allocated", oom.moment.allocated_bytes),
        ("Pending", oom.pending_bytes),
        ("Reserved", oom.moment.reserved_bytes),
        ("Cached", oom.cached_bytes),
    ] {
        page.field(label, Role::Plain, &format!("{bytes:>8}"));
    }
    page.field("Largest", Role::Plain, &format!("{:>8} free in one piece", oom.largest_free_bytes));
    page.field("Device", Role::Plain, &format!("{:>8} left", oom.device_free_bytes));
    page.field("Least", Role::Plain, &format!("{:>8} without any waste, the request included", oom.ideal_bytes));
    page.field("Limit", Role::Plain, &sentences::limit(oom));
    if let Some(holders) = sentences::holders_at_failure(report, oom) {
        page.heading("What filled the card");
        table(page, holders, oom.moment.allocated_bytes);
    }
}
