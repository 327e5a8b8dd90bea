//! A profile of pprof: [`profile.proto`](https://github.com/google/pprof/blob/main/proto/profile.proto), compressed with
//! gzip. The values have the names of Go's heap profiles, so that the tools' defaults fit: what is held at the chosen
//! moment is `inuse_objects` and `inuse_space`, all that was ever allocated `alloc_objects` and `alloc_space`, what is
//! held at the peak and at the end `peak_space` and `end_space`.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use foldhash::HashMap;
use gpuheap_explain::{Analysis, MomentName};
use gpuheap_record::Recording;
use prost::Message;

use crate::clock::Clock;
use crate::held::{Amount, Group, groups};
use crate::marks::moment_text;
use crate::names::{Names, Shown};
use crate::{Error, Options};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    /// Nanoseconds of Unix time.
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

/// All texts are rows of the string table.
#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sample {
    /// Innermost first.
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(crate) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    /// From 1.
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    /// From 1.
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

pub(crate) fn write(analysis: &Analysis, options: &Options, tick: u32, out: &mut dyn Write) -> Result<(), Error> {
    let peak = analysis.tick_of(MomentName::Peak).unwrap_or_default();
    let groups = groups(analysis, &[tick, peak, analysis.last_tick()]);
    let names = Names::new(analysis.recording());
    let mut builder = Builder::new(&names, analysis.recording());
    for group in &groups {
        builder.add(group);
    }
    let clock = Clock::new(analysis);
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    builder.profile.time_nanos = signed(if clock.is_timed { clock.start_ns + clock.offset_ns(tick) } else { 0 });
    builder.profile.duration_nanos = signed(clock.duration_ns());
    let source = &analysis.report().source;
    let comment = format!("{}, device {}, {}", options.generator, source.device, moment_text(tick));
    let comment = builder.string(&comment);
    builder.profile.comment.push(comment);
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&builder.finish().encode_to_vec())?;
    gzip.finish()?;
    Ok(())
}

/// Fills a profile.
struct Builder<'a> {
    names: &'a Names<'a>,
    recording: &'a Recording,
    profile: Profile,
    strings: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<Shown, u64>,
    class_key: i64,
}

impl<'a> Builder<'a> {
    fn new(names: &'a Names<'a>, recording: &'a Recording) -> Self {
        let mut builder = Self {
            names,
            recording,
            profile: Profile::default(),
            strings: HashMap::default(),
            functions: HashMap::default(),
            locations: HashMap::default(),
            class_key: 0,
        };
        // The first string of the table is empty by definition.
        builder.string("");
        let types = [
            ("alloc_objects", "count"),
            ("alloc_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes"),
            ("peak_objects", "count"),
            ("peak_space", "bytes"),
            ("end_objects", "count"),
            ("end_space", "bytes"),
        ];
        for (name, unit) in types {
            let value_type = ValueType { r#type: builder.string(name), unit: builder.string(unit) };
            builder.profile.sample_type.push(value_type);
        }
        builder.profile.period_type =
            Some(ValueType { r#type: builder.string("space"), unit: builder.string("bytes") });
        builder.profile.period = 1;
        builder.profile.default_sample_type = builder.string("inuse_space");
        builder.class_key = builder.string("class");
        builder
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(&row) = self.strings.get(text) {
            return row;
        }
        let row = i64::try_from(self.profile.string_table.len()).unwrap_or(i64::MAX);
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), row);
        row
    }

    fn location(&mut self, frame: Shown) -> u64 {
        if let Some(&id) = self.locations.get(&frame) {
            return id;
        }
        let (name, filename) = (self.string(self.names.function(frame)), self.string(self.names.file(frame)));
        let next = self.profile.function.len() as u64 + 1;
        let function_id = *self.functions.entry((name, filename)).or_insert(next);
        if function_id == next {
            self.profile.function.push(Function { id: next, name, system_name: name, filename });
        }
        let id = self.profile.location.len() as u64 + 1;
        let line = Line { function_id, line: i64::from(self.names.line(frame)) };
        self.profile.location.push(Location { id, line: vec![line] });
        self.locations.insert(frame, id);
        id
    }

    fn add(&mut self, group: &Group) {
        let frames = group.place.frames(self.recording);
        let location_id = frames.map(|frame| self.location(frame)).collect();
        let value = std::iter::once(group.total).chain(group.held.iter().copied()).flat_map(Amount::signed).collect();
        let label = Label { key: self.class_key, str: self.string(group.class.name()) };
        self.profile.sample.push(Sample { location_id, value, label: vec![label] });
    }

    fn finish(self) -> Profile {
        self.profile
    }
}
