//! Explains whatever can be read: a report that adds up, however the recording contradicts itself.
#![no_main]

use std::path::Path;

use gpuheap_explain::{MomentName, Options, Report, WhatIfOptions, explain, whatif};
use gpuheap_import::read_from;
use gpuheap_record::{Bytes, Recording};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let options = gpuheap_import::Options::default();
    let Ok(recording) = read_from(bytes, Some(bytes.len() as u64), Path::new("-"), options) else { return };
    let devices: Vec<u32> = recording.devices.iter().map(|device| device.device.get()).take(4).collect();
    for device in devices {
        check(&recording, device);
    }
});

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
