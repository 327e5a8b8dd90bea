//! The error bar: how far it reaches, and that a verdict keeps to its end.

use gpuheap_fit::device::{Calibration, Device};
use gpuheap_fit::plan::{Limits, Variant};
use gpuheap_fit::trace::parse;
use gpuheap_fit::{Fit, FitOptions, Verdict, fit};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// What the driver may hold more or less than the table says.
const SPREAD: u64 = 72 * MIB;
/// 132 multiprocessors with a tile of 64 KiB each.
const TILES: u64 = 132 << 16;

/// A step in which an operator has `scratch` bytes for itself, where a block of 64 MiB lies idle.
fn trace(op: &str, scratch: u64) -> Value {
    json!({
        "schema": "gpuheap.fit.trace/1",
        "ops": [op],
        "storages": {
            "bytes": [512 * MIB, 64 * MIB, scratch, 16 * MIB],
            "class": ["parameter", "activation", "workspace", "activation"]
        },
        "events": [
            ["alloc", 0], ["step", 1], ["phase", "forward"], ["alloc", 1], ["free", 1], ["alloc", 3],
            ["alloc", 2], ["free", 2], ["op", 0, -1, 0, 1e9, MIB, MIB, [0], [3]], ["free", 3]
        ]
    })
}

fn answer(trace: &Value, budget: Option<u64>, calibration: Option<Calibration>) -> Fit {
    let trace = parse(trace.to_string().as_bytes()).unwrap();
    let options = FitOptions {
        device: Device::find("H200", None).unwrap(),
        calibration,
        budget,
        limits: Limits { gpus: 1, without: vec!["all".to_owned()], ..Limits::default() },
        front: false,
        timelines: false,
    };
    fit(&[Variant::new(vec![trace]).unwrap()], &options, &mut |_, _| {}).unwrap()
}

/// The end of the bar for the size of what is reserved alone.
fn by_size(fit: &Fit) -> u64 {
    fit.context_most_bytes + fit.peak.reserved_bytes + fit.peak.reserved_bytes * 3 / 100
}

#[test]
fn scratch_of_convolutions_that_may_need_another_segment_is_in_the_bar() {
    const CONVOLUTION: &str = "aten.convolution.default";
    // 44 MiB beside what the 16 MiB left over of the idle block: with the tiles that is not enough.
    let tight = answer(&trace(CONVOLUTION, 44 * MIB), None, None);
    assert_eq!(tight.peak.reserved_bytes, (512 + 64) * MIB);
    let most = tight.peak.high - tight.context_most_bytes;
    // One more segment, of 44 MiB and the tiles, in whole pieces of 2 MiB; the inverse rounds by a byte.
    let wanted = (512 + 64) * MIB + (44 * MIB + TILES).next_multiple_of(2 * MIB);
    assert!(wanted - most <= 1, "{most} for {wanted}");
    // Where there is room for them, and where it is no convolution, the size alone counts.
    for fit in
        [answer(&trace(CONVOLUTION, 30 * MIB), None, None), answer(&trace("aten.mul.Tensor", 44 * MIB), None, None)]
    {
        assert_eq!(fit.peak.reserved_bytes, (512 + 64) * MIB);
        assert_eq!(fit.peak.high, by_size(&fit));
    }
}

#[test]
fn what_fits_fits_with_all_of_its_bar() {
    let trace = trace("aten.convolution.default", 44 * MIB);
    let high = answer(&trace, None, None).peak.high;
    assert_eq!(answer(&trace, Some(high), None).verdict, Verdict::Fits);
    assert_eq!(answer(&trace, Some(high - 1), None).verdict, Verdict::DoesNotFit);
}

#[test]
fn the_context_has_a_bar_of_its_own() {
    let trace = trace("aten.mul.Tensor", 44 * MIB);
    let fit = answer(&trace, None, None);
    assert_eq!(fit.context_most_bytes, fit.context_bytes + SPREAD);
    let reserved = fit.peak.reserved_bytes;
    assert_eq!(fit.peak.low, fit.context_bytes - SPREAD + reserved - reserved * 3 / 100);
    // A context that was measured is one program's: another may differ from it as much.
    let known = Calibration { device: "H200".to_owned(), context_bytes: 1 << 30, ..Calibration::default() };
    let fit = answer(&trace, None, Some(known));
    assert_eq!((fit.context_bytes, fit.context_most_bytes), (1 << 30, (1 << 30) + SPREAD));
}
