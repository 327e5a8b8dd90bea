//! A profile of the Firefox Profiler: its
//! [processed format](https://github.com/firefox-devtools/profiler/blob/main/docs-developer/processed-profile-format.md)
//! in version 55, as JSON. Counters of memory, markers for what happened at one moment, and native allocations: every
//! block that is made or freed up to the chosen moment, so that the profiler's "retained memory" is what is held then.
//! Times are milliseconds since the first event.

use std::io::Write;

use foldhash::HashMap;
use gpuheap_explain::Analysis;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::clock::Clock;
use crate::marks::{Detail, Mark, marks, moment_text};
use crate::names::{Names, Place, Shown};
use crate::series::Series;
use crate::{Error, Options};

/// Ticks with counters.
const POINTS: usize = 20_000;
/// The version of the format.
const VERSION: u32 = 55;
/// The only process.
const PID: &str = "1";
/// The type of all markers.
const MARKER: &str = "gpuheap";

#[derive(Serialize)]
struct Profile {
    meta: Value,
    libs: [Value; 0],
    threads: [Thread; 1],
    pages: [Value; 0],
    #[serde(rename = "profilerOverhead")]
    profiler_overhead: [Value; 0],
    counters: Vec<Counter>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Thread {
    frame_table: FrameTable,
    func_table: FuncTable,
    markers: Markers,
    name: String,
    #[serde(rename = "isMainThread")]
    is_main: bool,
    native_symbols: Value,
    paused_ranges: [Value; 0],
    pid: &'static str,
    process_name: String,
    process_shutdown_time: f64,
    process_startup_time: f64,
    process_type: &'static str,
    register_time: f64,
    resource_table: Value,
    samples: Value,
    native_allocations: Allocations,
    stack_table: StackTable,
    string_array: Vec<String>,
    tid: &'static str,
    unregister_time: Option<f64>,
    show_markers_in_timeline: bool,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct FrameTable {
    length: usize,
    address: Vec<i32>,
    inline_depth: Vec<u32>,
    category: Vec<u32>,
    subcategory: Vec<u32>,
    func: Vec<usize>,
    native_symbol: Vec<Option<usize>>,
    #[serde(rename = "innerWindowID")]
    inner_window_id: Vec<u32>,
    line: Vec<Option<u32>>,
    column: Vec<Option<u32>>,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct FuncTable {
    length: usize,
    name: Vec<usize>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    resource: Vec<i32>,
    file_name: Vec<Option<usize>>,
    line_number: Vec<Option<u32>>,
    column_number: Vec<Option<u32>>,
}

#[derive(Serialize, Default)]
struct StackTable {
    length: usize,
    prefix: Vec<Option<usize>>,
    frame: Vec<usize>,
}

/// Allocations with positive weights, frees with negative ones.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Allocations {
    time: Vec<f64>,
    weight: Vec<i64>,
    weight_type: &'static str,
    stack: Vec<usize>,
    memory_address: Vec<u64>,
    thread_id: Vec<u32>,
    length: usize,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Markers {
    length: usize,
    category: Vec<u32>,
    data: Vec<Value>,
    end_time: Vec<Option<f64>>,
    name: Vec<usize>,
    phase: Vec<u32>,
    start_time: Vec<f64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Counter {
    category: &'static str,
    name: String,
    description: String,
    main_thread_index: usize,
    pid: &'static str,
    samples: CounterSamples,
}

/// What changed since the sample before.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct CounterSamples {
    length: usize,
    count: Vec<i64>,
    number: Vec<u32>,
    time_deltas: Vec<f64>,
}

pub(crate) fn write(analysis: &Analysis, options: &Options, tick: u32, out: &mut dyn Write) -> Result<(), Error> {
    let clock = Clock::new(analysis);
    let names = Names::new(analysis.recording());
    let mut tables = Tables::new(&names);
    let allocations = allocations(analysis, &clock, tick, &mut tables);
    let markers = markers(marks(analysis), &clock, &mut tables);
    let end = clock.offset_ms(analysis.last_tick());
    let device = analysis.report().source.device;
    let thread = Thread {
        frame_table: tables.frames,
        func_table: tables.funcs,
        markers,
        name: format!("held {}", moment_text(tick)),
        is_main: true,
        native_symbols: json!({ "length": 0, "address": [], "functionSize": [], "libIndex": [], "name": [] }),
        paused_ranges: [],
        pid: PID,
        process_name: format!("GPU memory, device {device}{}", clock.note()),
        process_shutdown_time: end,
        process_startup_time: 0.0,
        process_type: "default",
        register_time: 0.0,
        resource_table: json!({ "length": 0, "lib": [], "name": [], "host": [], "type": [] }),
        samples: json!({
            "length": 0, "weightType": "samples", "stack": [], "timeDeltas": [], "weight": [], "threadCPUDelta": [],
        }),
        native_allocations: allocations,
        stack_table: tables.stacks,
        string_array: tables.strings,
        tid: PID,
        unregister_time: None,
        show_markers_in_timeline: true,
    };
    let profile = Profile {
        meta: meta(options, &clock),
        libs: [],
        threads: [thread],
        pages: [],
        profiler_overhead: [],
        counters: counters(analysis, &clock),
    };
    serde_json::to_writer(&mut *out, &profile)?;
    out.write_all(b"\n")?;
    Ok(())
}

fn meta(options: &Options, clock: &Clock) -> Value {
    let field = |key: &str, label: &str, format: &str| json!({ "key": key, "label": label, "format": format });
    json!({
        "categories": [{ "name": "Other", "color": "grey", "subcategories": ["Other"] }],
        "debug": false,
        "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] },
        "interval": 1.0,
        "preprocessedProfileVersion": VERSION,
        "processType": 0,
        "product": options.generator,
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
        "startTime": clock.start_ns as f64 / 1e6,
        "symbolicated": true,
        "pausedRanges": [],
        "version": 24,
        "usesOnlyOneStackType": true,
        "sourceCodeIsNotOnSearchfox": true,
        "initialVisibleThreads": [0],
        "initialSelectedThreads": [0],
        "markerSchema": [{
            "name": MARKER,
            "display": ["marker-chart", "marker-table", "timeline-overview"],
            "chartLabel": "{marker.name}",
            "tooltipLabel": "{marker.name}",
            "tableLabel": "{marker.name}",
            "fields": [
                field("allocated_bytes", "Allocated", "bytes"),
                field("reserved_bytes", "Reserved", "bytes"),
                field("asked_bytes", "Asked for", "bytes"),
                field("bytes", "Bytes", "bytes"),
                field("site", "Site", "string"),
                field("remedy", "Remedy", "string"),
                field("id", "Finding", "string"),
            ],
        }],
    })
}

/// Every change up to a tick.
fn allocations(analysis: &Analysis, clock: &Clock, tick: u32, tables: &mut Tables<'_>) -> Allocations {
    /// One end of a block's life. The order is that of time; a free comes before an allocation at the same tick.
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    struct Change {
        tick: u32,
        is_birth: bool,
        id: u32,
        stack: usize,
        address: u64,
        bytes: i64,
    }
    let mut changes = Vec::new();
    for allocation in analysis.allocations() {
        let after = |event: u32| event.saturating_add(1);
        let (born, freed) = (allocation.born.map_or(0, after), allocation.freed.map_or(u32::MAX, after));
        if born > tick || born >= freed {
            continue;
        }
        let stack = tables.stack(analysis, Place::of(&allocation));
        let bytes = i64::try_from(allocation.size.get()).unwrap_or(i64::MAX);
        let change = |tick, is_birth, bytes| Change {
            tick,
            is_birth,
            id: allocation.id,
            stack,
            address: allocation.address,
            bytes,
        };
        changes.push(change(born, true, bytes));
        if freed <= tick {
            changes.push(change(freed, false, -bytes));
        }
    }
    changes.sort_unstable();
    Allocations {
        time: changes.iter().map(|change| clock.offset_ms(change.tick)).collect(),
        weight: changes.iter().map(|change| change.bytes).collect(),
        weight_type: "bytes",
        stack: changes.iter().map(|change| change.stack).collect(),
        memory_address: changes.iter().map(|change| change.address).collect(),
        thread_id: vec![0; changes.len()],
        length: changes.len(),
    }
}

fn markers(marks: Vec<Mark>, clock: &Clock, tables: &mut Tables<'_>) -> Markers {
    let mut markers = Markers::default();
    for mark in marks {
        let mut data = Map::from_iter([("type".to_owned(), MARKER.into())]);
        data.extend(mark.details.into_iter().map(|(name, detail)| {
            let value = match detail {
                Detail::Bytes(bytes) => bytes.into(),
                Detail::Text(text) => text.into(),
            };
            (name.to_owned(), value)
        }));
        markers.length += 1;
        markers.category.push(0);
        markers.data.push(Value::Object(data));
        markers.end_time.push(None);
        markers.name.push(tables.string(&mark.name));
        markers.phase.push(0);
        markers.start_time.push(clock.offset_ms(mark.tick));
    }
    markers
}

fn counters(analysis: &Analysis, clock: &Clock) -> Vec<Counter> {
    let series = Series::new(analysis, POINTS);
    let counter = |name: &str, description: String, values: &[u64]| {
        let mut samples = CounterSamples { length: values.len(), ..CounterSamples::default() };
        let (mut bytes, mut ms) = (0, 0.0);
        for (&tick, &value) in series.ticks.iter().zip(values) {
            let (value, now) = (i64::try_from(value).unwrap_or(i64::MAX), clock.offset_ms(tick));
            samples.count.push(value - bytes);
            samples.number.push(0);
            samples.time_deltas.push(now - ms);
            (bytes, ms) = (value, now);
        }
        let name = name.to_owned();
        Counter { category: "Memory", name, description, main_thread_index: 0, pid: PID, samples }
    };
    let mut counters = vec![
        counter("allocated", "Memory that the program holds".to_owned(), &series.allocated),
        counter("reserved", "Memory taken from the driver".to_owned(), &series.reserved),
    ];
    for (class, values) in &series.classes {
        counters.push(counter(class.title(), format!("Memory for {}", class.title()), values));
    }
    counters
}

/// What threads refer to by rows.
struct Tables<'a> {
    names: &'a Names<'a>,
    strings: Vec<String>,
    string_rows: HashMap<String, usize>,
    funcs: FuncTable,
    func_rows: HashMap<(usize, usize), usize>,
    frames: FrameTable,
    frame_rows: HashMap<Shown, usize>,
    stacks: StackTable,
    stack_rows: HashMap<(Option<usize>, usize), usize>,
    places: HashMap<Place, usize>,
}

impl<'a> Tables<'a> {
    fn new(names: &'a Names<'a>) -> Self {
        Self {
            names,
            strings: Vec::new(),
            string_rows: HashMap::default(),
            funcs: FuncTable::default(),
            func_rows: HashMap::default(),
            frames: FrameTable::default(),
            frame_rows: HashMap::default(),
            stacks: StackTable::default(),
            stack_rows: HashMap::default(),
            places: HashMap::default(),
        }
    }

    fn string(&mut self, text: &str) -> usize {
        if let Some(&row) = self.string_rows.get(text) {
            return row;
        }
        self.strings.push(text.to_owned());
        self.string_rows.insert(text.to_owned(), self.strings.len() - 1);
        self.strings.len() - 1
    }

    fn func(&mut self, frame: Shown) -> usize {
        let file = self.names.file(frame);
        let (name, file_row) = (self.string(self.names.function(frame)), self.string(file));
        if let Some(&row) = self.func_rows.get(&(name, file_row)) {
            return row;
        }
        let table = &mut self.funcs;
        table.name.push(name);
        table.is_js.push(false);
        table.relevant_for_js.push(false);
        table.resource.push(-1);
        table.file_name.push((!file.is_empty()).then_some(file_row));
        table.line_number.push(None);
        table.column_number.push(None);
        table.length += 1;
        self.func_rows.insert((name, file_row), table.length - 1);
        table.length - 1
    }

    fn frame(&mut self, frame: Shown) -> usize {
        if let Some(&row) = self.frame_rows.get(&frame) {
            return row;
        }
        let func = self.func(frame);
        let table = &mut self.frames;
        table.address.push(-1);
        table.inline_depth.push(0);
        table.category.push(0);
        table.subcategory.push(0);
        table.func.push(func);
        table.native_symbol.push(None);
        table.inner_window_id.push(0);
        table.line.push(Some(self.names.line(frame)).filter(|&line| line > 0));
        table.column.push(None);
        table.length += 1;
        self.frame_rows.insert(frame, table.length - 1);
        table.length - 1
    }

    fn stack(&mut self, analysis: &Analysis, place: Place) -> usize {
        if let Some(&row) = self.places.get(&place) {
            return row;
        }
        let frames: Vec<Shown> = place.frames(analysis.recording()).collect();
        let mut prefix = None;
        for frame in frames.into_iter().rev() {
            let frame = self.frame(frame);
            let next = self.stacks.length;
            let row = *self.stack_rows.entry((prefix, frame)).or_insert(next);
            if row == next {
                self.stacks.prefix.push(prefix);
                self.stacks.frame.push(frame);
                self.stacks.length += 1;
            }
            prefix = Some(row);
        }
        let row = prefix.unwrap_or(0);
        self.places.insert(place, row);
        row
    }
}
