//! Traces that hold together and make no sense: an error or a sound answer, never a panic, and soon.

use gpuheap_fit::device::Device;
use gpuheap_fit::plan::{Limits, variants};
use gpuheap_fit::trace::{Event, parse};
use gpuheap_fit::{Fit, FitOptions, fit};

use crate::model::{Model, text};

const SMALL: Model = Model { layers: 2, batch: 4, sequence: 16, width: 64, words: 100 };

fn options(gpus: u32, batch: Option<u64>, budget: u64) -> FitOptions {
    FitOptions {
        device: Device::find("H200", None).unwrap(),
        calibration: None,
        budget: Some(budget),
        limits: Limits { gpus, batch, ..Limits::default() },
        front: true,
        timelines: true,
    }
}

/// What is fitted, if anything can be; it adds up.
fn fitted(texts: &[&str], options: &FitOptions) -> Result<Fit, String> {
    let traces = texts.iter().map(|text| parse(text.as_bytes())).collect::<Result<Vec<_>, _>>();
    let variants = variants(traces.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    let fit = fit(&variants, options, &mut |_, _| {}).map_err(|error| error.to_string())?;
    assert!(fit.peak.low <= fit.peak.high && fit.peak.allocated_bytes <= fit.peak.reserved_bytes, "{:?}", fit.peak);
    assert!(fit.step_us.is_finite() && fit.front.iter().all(|point| point.step_us.is_finite()));
    Ok(fit)
}

#[test]
fn storages_that_no_machine_has_are_refused() {
    let many = 20_000;
    let each = |what: &str| vec![what; many].join(",");
    let events: Vec<String> = (0..many).map(|storage| format!("[\"alloc\",{storage}]")).collect();
    let text = format!(
        r#"{{"schema":"gpuheap.fit.trace/1","storages":{{"bytes":[{}],"class":[{}]}},"events":[["step",1],{}]}}"#,
        each("1125899906842624"),
        each("\"parameter\""),
        events.join(",")
    );
    let told = fitted(&[&text], &options(2, None, 1 << 30)).unwrap_err();
    assert!(told.contains("the size of all storages"), "{told}");
}

#[test]
fn sizes_that_a_trace_claims_are_not_believed() {
    let plain = text(SMALL);
    let known = plain.split("\"trainable_bytes\":").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let text = plain.replace(&format!("\"trainable_bytes\":{known}"), &format!("\"trainable_bytes\":{}", u64::MAX));
    assert_ne!(text, plain);
    let half = self::text(Model { batch: 2, ..SMALL });
    let fit = fitted(&[&text, &half], &options(2, None, 1 << 34)).unwrap();
    assert!(fit.peak.allocated_bytes < 1 << 30, "{:?}", fit.peak);
    let unknown = |bytes: u64| format!(r#"{{"what":"x","where":"y","bound_bytes":{bytes}}}"#);
    let text = plain.replace("\"unknown\":[]", &format!("\"unknown\":[{0},{0}]", unknown(u64::MAX)));
    assert_ne!(text, plain);
    let told = fitted(&[&text], &options(1, None, 1 << 34)).unwrap_err();
    assert!(told.contains("out of range"), "{told}");
}

#[test]
fn batches_of_any_size_have_an_answer() {
    let (whole, half) = (text(SMALL), text(Model { batch: 2, ..SMALL }));
    for batch in [0, 1, 3, 1 << 20, 1 << 40, 1 << 62, u64::MAX] {
        for gpus in [0, 1, 2, 3, 1000, u32::MAX] {
            // It need not fit.
            let _ = fitted(&[&whole, &half], &options(gpus, Some(batch), 1 << 34));
        }
    }
}

#[test]
fn a_rank_has_no_ranks_of_its_own() {
    let plain = text(SMALL);
    let within = |text: &str, ranks: &str| text.replacen('{', &format!("{{\"ranks\":[{ranks}],"), 1);
    let deep = within(&plain, &within(&plain, &plain));
    assert!(parse(within(&plain, &plain).as_bytes()).is_ok());
    let told = parse(deep.as_bytes()).unwrap_err().to_string();
    assert!(told.contains("rank"), "{told}");
    let deeper = (0..100).fold(plain.clone(), |text, _| within(&plain, &text));
    assert!(parse(deeper.as_bytes()).is_err());
}

#[test]
fn streams_are_told_apart_and_not_counted_by_their_number() {
    let plain = text(SMALL);
    // An operator on the last stream that there is, and many that the program waits for.
    let waits: String = (0..20_000).map(|_| r#"["wait",65535,7],["record",7,0],"#).collect();
    let text = plain.replacen("[\"step\",2],", &format!("[\"step\",2],[\"record\",7,65535],{waits}"), 1);
    assert_ne!(text, plain);
    let fit = fitted(&[&text], &options(1, None, 1 << 34)).unwrap();
    assert!(fit.step_us > 0.0);
}

/// Numbers that follow from each other, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).unwrap()
    }
}

#[test]
fn traces_that_were_tampered_with_are_refused_or_fitted() {
    let plain = text(SMALL);
    let (front, rest) = plain.split_once("\"events\":[").unwrap();
    let (events, back) = rest.split_once("],\"unknown\"").unwrap();
    let events: Vec<&str> = events.split(",\n").collect();
    let mut random = Random(88_172_645_463_325_252);
    let mut fits = 0;
    for round in 0..150 {
        let mut changed: Vec<String> = events.iter().map(|&event| event.to_owned()).collect();
        for _ in 0..=random.below(6) {
            let at = random.below(changed.len());
            match random.below(7) {
                0 => drop(changed.remove(at)),
                1 => changed.insert(at, format!("[\"record\",{},{}]", random.below(3), random.below(4))),
                2 => changed.insert(at, format!("[\"wait\",{},{}]", random.below(4), random.below(3))),
                3 => changed
                    .insert(at, ["[\"step\",2]", "[\"step\",0]", "[\"step\",4294967294]"][random.below(3)].to_owned()),
                4 => {
                    let phases = ["setup", "load", "zero_grad", "forward", "loss", "backward", "optimizer", "x"];
                    changed.insert(at, format!("[\"phase\",\"{}\"]", phases[random.below(8)]));
                }
                5 => changed.insert(at, format!("[\"enter\",{},{}]", random.below(5), random.below(3))),
                _ => {
                    let other = random.below(changed.len());
                    changed.swap(at, other);
                }
            }
        }
        let text = format!("{front}\"events\":[{}],\"unknown\"{back}", changed.join(",\n"));
        let gpus = [0, 1, 2, 3][round % 4];
        fits += usize::from(fitted(&[&text], &options(gpus, None, 1 << (28 + round % 6))).is_ok());
    }
    assert!(fits > 10, "{fits}");
}

#[test]
fn waits_for_what_was_not_recorded_are_over() {
    let text = r#"{"schema":"gpuheap.fit.trace/1","storages":{"bytes":[],"class":[]},
        "events":[["step",1],["wait",1,5],["record",5,1],["wait",0,5],["wait",5,-9]]}"#;
    let trace = parse(text.as_bytes()).unwrap();
    assert_eq!(trace.events, [Event::Step(1), Event::Record(0, 1), Event::Wait(0, 0)]);
    for event in ["[\"record\",1,65536]", "[\"wait\",-1,5]", "[\"record\",1,-1]"] {
        let text = text.replace("[\"wait\",1,5]", &format!("[\"record\",5,0],{event}"));
        assert!(parse(text.as_bytes()).unwrap_err().to_string().contains("a stream"));
    }
}

#[test]
fn a_budget_without_end_is_not_counted_up_to() {
    let (whole, half) = (text(SMALL), text(Model { batch: 2, ..SMALL }));
    for gpus in [1, 2] {
        assert!(fitted(&[&whole, &half], &options(gpus, None, u64::MAX)).is_ok());
    }
}
