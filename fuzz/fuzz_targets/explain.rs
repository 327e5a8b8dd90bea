//! Explains whatever can be read: a report that adds up, however the recording contradicts itself.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use gpuheap_explain::{Analysis, MomentName, Options, Report, Served, WhatIfOptions, accumulated, explain, whatif};
use gpuheap_import::read_from;
use gpuheap_record::{Bytes, Recording};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let options = gpuheap_import::Options::default();
    let Ok(recording) = read_from(bytes, Some(bytes.len() as u64), Path::new("-"), options) else { return };
    let recording = Arc::new(recording);
    let devices: Vec<u32> = recording.devices.iter().map(|device| device.device.get()).take(4).collect();
    for device in devices {
        check(&recording, device);
        check_views(&recording, device);
    }
});

/// Every view can be made, and its classes add up to the counters.
fn check_views(recording: &Arc<Recording>, device: u32) {
    let options = Options { device: Some(device), ..Options::default() };
    let analysis = Analysis::new(Arc::clone(recording), &options).expect("the device is there");
    let page = analysis.page("fuzz", 3, Vec::new());
    let ticks = accumulated(&page.timeline.ticks_delta);
    let last = analysis.last_tick();
    assert_eq!(ticks.last().copied(), Some(i64::from(last)));
    for tick in [0, last / 2, last] {
        let _ = (analysis.segments_at(tick), analysis.timeline(tick, last, 7));
    }
    let served = Served::new(Arc::new(analysis));
    let moment = served.moment(last).expect("the tick is there");
    let classes = moment.classes.iter().fold(0_i64, |sum, &bytes| sum.saturating_add(bytes));
    // Sums of sizes that no device has are cut.
    if classes < 1 << 60 {
        assert_eq!(u64::try_from(classes), Ok(served.analysis().counters(last).0));
    }
}

fn check(recording: &Recording, device: u32) {
    let options = Options { device: Some(device), limit: Some(Bytes::new(1 << 30)), at: Some(MomentName::End) };
    let limited = explain(recording, &options).expect("the device is there");
    let options = Options { device: Some(device), ..Options::default() };
    let report = explain(recording, &options).expect("the device is there");
    assert_eq!(limited.peaks, report.peaks);
    check_sums(&report);
    let options = WhatIfOptions {
        device: Some(device),
        confs: vec![String::new(), "expandable_segments:True,max_split_size_mb:20".to_owned()],
        limit: Some(report.peaks.allocated_bytes),
    };
    whatif(recording, &options, &|_, _| {}).expect("the device and the settings are good");
}

fn check_sums(report: &Report) {
    for (name, parts) in &report.ledgers {
        let moment = match name {
            MomentName::Peak => &report.peak,
            MomentName::PeakReserved => &report.peak_reserved,
            MomentName::End => &report.end,
            MomentName::Oom => &report.oom.as_ref().expect("its ledger is there").moment,
        };
        let sum: Bytes = parts.iter().map(|part| part.bytes).sum();
        assert_eq!(sum, moment.reserved_bytes, "ledger at {name:?}");
        let classes: Bytes = moment.by_class.iter().map(|&(_, bytes)| bytes).sum();
        assert_eq!(classes, moment.allocated_bytes, "classes at {name:?}");
    }
    assert_eq!(report.peaks.allocated_bytes, report.peak.allocated_bytes);
    assert_eq!(report.peaks.reserved_bytes, report.peak_reserved.reserved_bytes);
}
