//! The [Trace Event Format](https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU) of
//! `chrome://tracing`, as JSON: counters, the large blocks as slices, and what happened at one moment. Times are
//! microseconds since the first event, with three decimals that keep events of one microsecond in order.

use std::io::Write;

use gpuheap_explain::Analysis;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::clock::Clock;
use crate::large::{Large, Slice};
use crate::marks::{Detail, MarkKind, marks, site_text};
use crate::names::{Names, Place};
use crate::series::Series;
use crate::{Error, Options};

/// Ticks with counters: viewers of this format read all of it into memory.
const POINTS: usize = 20_000;
/// Blocks with a slice of their own.
const MOST_BLOCKS: usize = 2000;
/// Frames of each stack.
const MOST_FRAMES: usize = 24;
/// The only process.
const PID: u32 = 1;
/// The threads of marks, by kind, and of the lanes of large blocks from there on.
const FIRST_LANE: usize = 10;

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    cat: &'a str,
    ph: &'a str,
    #[serde(serialize_with = "as_us")]
    ts: u64,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_optional_us")]
    dur: Option<u64>,
    /// How far an instant reaches.
    #[serde(skip_serializing_if = "str::is_empty")]
    s: &'a str,
    pid: u32,
    tid: usize,
    args: Value,
}

pub(crate) fn write(analysis: &Analysis, options: &Options, out: &mut dyn Write) -> Result<(), Error> {
    let clock = Clock::new(analysis);
    let source = &analysis.report().source;
    let large = Large::new(analysis, &clock, MOST_BLOCKS);
    let other = json!({
        "generator": options.generator,
        "device": source.device,
        "start_us": analysis.time_us(0),
        "times": if clock.is_timed { "microseconds since the first event" } else { "none recorded: event n is at n µs" },
        "blocks_shown": large.shown,
        "blocks": large.of,
    });
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":")?;
    serde_json::to_writer(&mut *out, &other)?;
    write!(out, ",\"traceEvents\":[")?;
    let mut trace = Trace { out, is_first: true };
    trace.name("process_name", 0, &format!("GPU memory, device {}{}", source.device, clock.note()))?;
    for kind in MarkKind::ALL {
        trace.name("thread_name", kind as usize + 1, kind.title())?;
    }
    for lane in 0..large.lanes.len() {
        trace.name("thread_name", FIRST_LANE + lane, &format!("large blocks {}", lane + 1))?;
    }
    counters(analysis, &clock, &mut trace)?;
    for mark in marks(analysis) {
        let args: Map<String, Value> = mark
            .details
            .into_iter()
            .map(|(name, detail)| {
                let value = match detail {
                    Detail::Bytes(bytes) => bytes.into(),
                    Detail::Text(text) => text.into(),
                };
                (name.to_owned(), value)
            })
            .collect();
        trace.add(&Event {
            name: &mark.name,
            cat: mark.kind.title(),
            ph: "i",
            ts: clock.offset_ns(mark.tick),
            dur: None,
            s: if mark.kind == MarkKind::Moment { "g" } else { "t" },
            pid: PID,
            tid: mark.kind as usize + 1,
            args: Value::Object(args),
        })?;
    }
    let names = Names::new(analysis.recording());
    for (lane, slices) in large.lanes.iter().enumerate() {
        for slice in slices {
            trace.block(analysis, &clock, &names, FIRST_LANE + lane, slice)?;
        }
    }
    write!(trace.out, "\n]}}\n")?;
    Ok(())
}

fn counters(analysis: &Analysis, clock: &Clock, trace: &mut Trace<'_>) -> Result<(), Error> {
    let series = Series::new(analysis, POINTS);
    for (point, &tick) in series.ticks.iter().enumerate() {
        let ts = clock.offset_ns(tick);
        trace.counter("allocated", ts, json!({ "bytes": series.allocated[point] }))?;
        trace.counter("reserved", ts, json!({ "bytes": series.reserved[point] }))?;
        let classes: Map<String, Value> = series
            .classes
            .iter()
            .map(|(class, values)| (class.name().to_owned(), Value::from(values[point])))
            .collect();
        if !classes.is_empty() {
            trace.counter("by class", ts, Value::Object(classes))?;
        }
    }
    Ok(())
}

/// Writes events, one a line.
struct Trace<'a> {
    out: &'a mut dyn Write,
    is_first: bool,
}

impl Trace<'_> {
    fn add(&mut self, event: &Event<'_>) -> Result<(), Error> {
        self.out.write_all(if self.is_first { b"\n" } else { b",\n" })?;
        self.is_first = false;
        serde_json::to_writer(&mut *self.out, event)?;
        Ok(())
    }

    fn name(&mut self, what: &str, tid: usize, name: &str) -> Result<(), Error> {
        let args = json!({ "name": name });
        self.add(&Event { name: what, cat: "", ph: "M", ts: 0, dur: None, s: "", pid: PID, tid, args })
    }

    fn counter(&mut self, name: &str, ts: u64, args: Value) -> Result<(), Error> {
        self.add(&Event { name, cat: "memory", ph: "C", ts, dur: None, s: "", pid: PID, tid: 0, args })
    }

    fn block(
        &mut self,
        analysis: &Analysis,
        clock: &Clock,
        names: &Names<'_>,
        tid: usize,
        slice: &Slice,
    ) -> Result<(), Error> {
        let Some(allocation) = &analysis.allocation(slice.id) else { return Ok(()) };
        let site = analysis.site(allocation.stack).map(|site| site_text(&site));
        let mut stack = String::new();
        for frame in Place::of(allocation).frames(analysis.recording()).take(MOST_FRAMES) {
            if !stack.is_empty() {
                stack.push('\n');
            }
            names.push_frame(&mut stack, frame);
        }
        let from = clock.offset_ns(slice.from);
        let name = site.unwrap_or_else(|| analysis.label(allocation));
        self.add(&Event {
            name: &name,
            cat: allocation.class.name(),
            ph: "X",
            ts: from,
            dur: Some(clock.offset_ns(slice.to) - from),
            s: "",
            pid: PID,
            tid,
            args: json!({
                "id": allocation.id,
                "size_bytes": allocation.size.get(),
                "requested_bytes": allocation.requested.get(),
                "address": format!("{:#x}", allocation.address),
                "class": allocation.class.title(),
                "rule": allocation.rule,
                "freed": allocation.freed.map_or_else(|| "never".to_owned(), |event| format!("event {event}")),
                "stack": stack,
            }),
        })
    }
}

/// Nanoseconds as microseconds with three decimals.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference to the field")]
fn as_us<S: serde::Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*ns as f64 / 1000.0)
}

#[expect(clippy::ref_option, reason = "serde hands out a reference to the field")]
fn as_optional_us<S: serde::Serializer>(ns: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    as_us(&ns.unwrap_or_default(), serializer)
}
