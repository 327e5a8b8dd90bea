//! Several devices: streams in the replay, and the choice among the ways to spread the work.

use gpuheap_fit::cost::CostModel;
use gpuheap_fit::device::Device;
use gpuheap_fit::levers::ShardForm;
use gpuheap_fit::plan::{Limits, Variant, spread, variants};
use gpuheap_fit::replay::{config, replay};
use gpuheap_fit::trace::{Trace, parse};
use gpuheap_fit::{Error, Fit, FitOptions, Lever, Program, Tracer, Verdict, fit, fit_traced};
use serde_json::{Value, json};

use crate::model::{Model, text};

const MIB: u64 = 1 << 20;
/// Large enough that the device and not the program decides how long a step takes.
const LARGE: Model = Model { layers: 6, batch: 8, sequence: 1024, width: 2048, words: 8000 };

/// Two steps of one storage after another, on the streams that are given.
fn after_each_other(streams: [u64; 2]) -> Trace {
    let events = json!([
        ["step", 1],
        ["alloc", 0],
        ["op", 0, -1, 0, 0, 0, 6400 * MIB, [], [0], streams[0]],
        ["record", 5, streams[0]],
        ["free", 0],
        ["wait", streams[1], 5],
        ["alloc", 1],
        ["op", 0, -1, 0, 0, 0, 6400 * MIB, [], [1], streams[1]],
        ["free", 1]
    ]);
    let trace = json!({
        "schema": "gpuheap.fit.trace/1",
        "ops": ["aten.zero_.default"],
        "storages": {"bytes": [64 * MIB, 64 * MIB], "class": ["temporary", "temporary"], "stream": streams},
        "events": events
    });
    parse(trace.to_string().as_bytes()).unwrap()
}

#[test]
fn memory_of_one_stream_serves_no_other() {
    let reserved = |streams| {
        let trace = after_each_other(streams);
        replay(&Program::new(&trace), &config("").unwrap(), None).reserved
    };
    assert_eq!(reserved([0, 0]), 64 * MIB);
    assert_eq!(reserved([3, 3]), 64 * MIB);
    assert_eq!(reserved([0, 3]), 128 * MIB);
    assert_eq!(replay(&Program::new(&after_each_other([0, 3])), &config("").unwrap(), None).allocated, 64 * MIB);
}

#[test]
fn work_of_streams_overlaps_unless_one_waits() {
    let device = Device::find("H200", None).unwrap();
    let time = |trace: &Trace| CostModel::new(trace, &device, None).step(&Program::new(trace)).total_us;
    let (together, waiting) = (after_each_other([0, 0]), after_each_other([0, 3]));
    assert!((time(&together) - time(&waiting)).abs() < 1e-6, "a stream that waits is no faster");
    let mut beside = waiting.clone();
    beside.events.retain(|event| !matches!(event, gpuheap_fit::trace::Event::Wait(..)));
    let part = time(&beside) / time(&together);
    assert!((0.5 - 1e-6..0.7).contains(&part), "both at once, but for what a step takes to begin: {part}");
}

#[test]
fn streams_that_make_no_sense_are_refused() {
    let trace = json!({
        "schema": "gpuheap.fit.trace/1",
        "storages": {"bytes": [1], "class": ["temporary"], "stream": [70_000]},
        "events": [["step", 1]]
    });
    let message = parse(trace.to_string().as_bytes()).unwrap_err().to_string();
    assert!(message.contains("the stream of a storage is 70000"), "{message}");
}

/// The model with a form applied: what lasts is `lasting` of what it was, arithmetic `work`, and there are exchanges.
fn spread_over_two(form: ShardForm, lasting: f64, work: f64, exchange: &str) -> Value {
    at_batch(8, form, lasting, work, exchange)
}

fn at_batch(batch: u64, form: ShardForm, lasting: f64, work: f64, exchange: &str) -> Value {
    let mut trace: Value = serde_json::from_str(&text(Model { batch, ..LARGE })).unwrap();
    trace["applied"] = json!([Lever::Shard { form, gpus: 2, stages: Vec::new(), micro_batches: None }]);
    let classes = trace["storages"]["class"].clone();
    for (bytes, class) in trace["storages"]["bytes"].as_array_mut().unwrap().iter_mut().zip(classes.as_array().unwrap())
    {
        if ["parameter", "gradient", "optimizer"].contains(&class.as_str().unwrap()) {
            *bytes = scaled(bytes, lasting);
        }
    }
    let ops = trace["ops"].as_array_mut().unwrap();
    ops.push(json!(exchange));
    let number = ops.len() - 1;
    for event in trace["events"].as_array_mut().unwrap() {
        if event[0] == "op" {
            event[4] = json!(event[4].as_f64().unwrap() * work);
            event[5] = scaled(&event[5], work);
            event[6] = scaled(&event[6], work);
        }
    }
    trace["events"].as_array_mut().unwrap().push(json!(["op", number, -1, 0, 0, MIB, MIB, [], []]));
    trace
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "parts of sizes")]
fn scaled(value: &Value, part: f64) -> Value {
    json!((value.as_f64().unwrap() * part) as u64)
}

fn read(trace: &Value) -> Trace {
    parse(trace.to_string().as_bytes()).unwrap()
}

fn base() -> Vec<Trace> {
    [4, 8].map(|batch| parse(text(Model { batch, ..LARGE }).as_bytes()).unwrap()).to_vec()
}

fn options(budget: Option<u64>, set: &[Lever]) -> FitOptions {
    FitOptions {
        device: Device::find("H200", None).unwrap(),
        calibration: None,
        budget,
        limits: Limits { gpus: 2, set: set.to_vec(), without: vec!["all".to_owned()], ..Limits::default() },
        front: false,
        timelines: false,
    }
}

fn form(fit: &Fit) -> Option<ShardForm> {
    fit.plan.iter().find_map(|planned| match &planned.lever {
        Lever::Shard { form, gpus: 2, .. } => Some(*form),
        _ => None,
    })
}

#[test]
fn the_fastest_form_that_fits_is_taken() {
    let fast = spread_over_two(ShardForm::Tensor, 0.75, 0.4, "c10d.scatter_.default");
    let small = spread_over_two(ShardForm::Fsdp2, 0.5, 0.45, "c10d._allgather_base_.default");
    let all = variants(base().into_iter().chain([read(&fast), read(&small)]).collect()).unwrap();
    let found = |budget| fit(&all, &options(budget, &[]), &mut |_, _| {}).unwrap();
    let roomy = found(None);
    assert_eq!((form(&roomy), roomy.verdict), (Some(ShardForm::Tensor), Verdict::Fits));
    let tight = found(Some(roomy.peak.high - MIB));
    assert_eq!((form(&tight), tight.verdict), (Some(ShardForm::Fsdp2), Verdict::Fits));
    assert!(tight.peak.high < roomy.peak.high && tight.step_us > roomy.step_us);
    // A program that sends from rank to rank has channels for it beside the communicator.
    let context = roomy.baseline.device_bytes - roomy.baseline.reserved_bytes;
    let outside = |fit: &Fit| fit.peak.device_bytes - fit.peak.reserved_bytes - context;
    assert_eq!(outside(&tight), 307_298_304);
    assert_eq!(outside(&roomy), 307_298_304 + 400_490_496);
    assert_eq!(outside(&roomy), roomy.context_bytes - context);
    // The model as it is runs on one device and has neither.
    assert_eq!(context, options(None, &[]).device.outside_bytes());
}

#[test]
fn a_form_is_taken_as_asked_for_or_refused() {
    let lever = |form| Lever::Shard { form, gpus: 2, stages: Vec::new(), micro_batches: None };
    let tensor = spread_over_two(ShardForm::Tensor, 0.75, 0.4, "c10d.scatter_.default");
    let all = variants(base().into_iter().chain([read(&tensor)]).collect()).unwrap();
    let asked = |form| fit(&all, &options(None, &[lever(form)]), &mut |_, _| {});
    assert_eq!(form(&asked(ShardForm::Data).unwrap()), Some(ShardForm::Data));
    assert_eq!(form(&asked(ShardForm::Tensor).unwrap()), Some(ShardForm::Tensor));
    let Err(Error::Lever { lever, why }) = asked(ShardForm::Pipeline) else { panic!("no trace has it") };
    assert_eq!((lever.as_str(), why.as_str()), ("shard", "no trace was made with it"));
}

#[test]
fn of_a_pipeline_the_fullest_stage_counts_and_all_wait_for_each_other() {
    let mut first = spread_over_two(ShardForm::Pipeline, 0.4, 0.5, "c10d.send.default");
    let second = spread_over_two(ShardForm::Pipeline, 0.7, 0.3, "c10d.recv_.default");
    first["micro_batches"] = json!(4);
    let mut late = second.clone();
    late["micro_batches"] = json!(4);
    first["ranks"] = json!([late]);
    let all = variants(base().into_iter().chain([read(&first)]).collect()).unwrap();
    let lever = Lever::Shard { form: ShardForm::Pipeline, gpus: 2, stages: Vec::new(), micro_batches: None };
    let found = fit(&all, &options(None, &[lever]), &mut |_, _| {}).unwrap();
    let config = config("").unwrap();
    let reserved = |trace: &Value| replay(&Program::new(&read(trace)), &config, None).reserved;
    assert!(found.peak.reserved_bytes >= reserved(&second), "{} {}", found.peak.reserved_bytes, reserved(&second));
    let device = Device::find("H200", None).unwrap();
    let time = |trace: &Value| {
        let trace = read(trace);
        CostModel::new(&trace, &device, None).step(&Program::new(&trace)).total_us
    };
    // Four parts: the slower stage, and a part of the other before or after it.
    let (slow, quick) = (time(&first), time(&second));
    assert!(found.step_us > slow && found.step_us <= slow + quick / 4.0 + 1.0, "{} {slow} {quick}", found.step_us);
}

#[test]
fn what_is_traced_follows_from_what_is_asked() {
    let base = Variant::new(base()).unwrap();
    let ways = |gpus, set: &[Lever], without: &[&str]| {
        let without = without.iter().map(|&name| name.to_owned()).collect();
        let limits = Limits { gpus, set: set.to_vec(), without, ..Limits::default() };
        spread::ways(&[Vec::new()], &limits, &base)
    };
    assert!(ways(1, &[], &[]).is_empty() && ways(2, &[], &["shard"]).is_empty());
    // Batches of 8 have eight parts: the pipeline with four and with eight, with and without blocks made again.
    assert_eq!(ways(2, &[], &[]).len(), 6);
    assert_eq!(ways(2, &[], &["checkpoint"]).len(), 4);
    let copies = Lever::Shard { form: ShardForm::Data, gpus: 2, stages: Vec::new(), micro_batches: None };
    assert!(ways(2, &[copies], &[]).is_empty());
}

/// A model that FSDP2 takes and others do not.
struct OnlyFsdp2 {
    asked: Vec<Vec<Lever>>,
}

impl Tracer for OnlyFsdp2 {
    type Error = Error;

    fn trace(&mut self, levers: &[Lever], batch: Option<u64>) -> Result<Trace, Error> {
        self.asked.push(levers.to_vec());
        let form =
            levers.iter().find_map(|lever| if let Lever::Shard { form, .. } = lever { Some(*form) } else { None });
        let batch = batch.unwrap_or(8);
        match form {
            None => Ok(parse(text(Model { batch, ..LARGE }).as_bytes()).unwrap()),
            Some(ShardForm::Fsdp2) => {
                let mut trace = at_batch(batch, ShardForm::Fsdp2, 0.5, 0.5, "c10d._allgather_base_.default");
                trace["applied"] = json!(levers);
                Ok(read(&trace))
            }
            Some(_) => {
                let why = "it has no such layers".to_owned();
                Err(Error::Lever { lever: "shard".to_owned(), why })
            }
        }
    }
}

#[test]
fn forms_that_do_not_suit_are_named_and_the_others_considered() {
    let mut tracer = OnlyFsdp2 { asked: Vec::new() };
    let given = options(None, &[]);
    let found = fit_traced(&mut tracer, &given).unwrap();
    assert_eq!((form(&found), found.verdict), (Some(ShardForm::Fsdp2), Verdict::Fits));
    let said = |what: &str| found.notes.iter().any(|note| note.starts_with("not considered") && note.contains(what));
    assert!(said("tensor parallel over 2 GPUs: ") && said("pipeline over 2 GPUs: "), "{:?}", found.notes);
    assert!(found.notes.iter().any(|note| note.contains("trace with the plan applied")), "{:?}", found.notes);
    // The plan is the form alone, of which there is a trace: it is not traced again.
    let alone = |levers: &&Vec<Lever>| matches!(levers.as_slice(), [Lever::Shard { form: ShardForm::Fsdp2, .. }]);
    assert_eq!(tracer.asked.iter().filter(alone).count(), 2, "at the batch and at half of it: {:?}", tracer.asked);
    // What was asked for has to be there.
    let lever = Lever::Shard { form: ShardForm::Tensor, gpus: 2, stages: Vec::new(), micro_batches: None };
    let refused = fit_traced(&mut OnlyFsdp2 { asked: Vec::new() }, &options(None, &[lever])).unwrap_err();
    assert!(refused.to_string().contains("it has no such layers"), "{refused}");
}
