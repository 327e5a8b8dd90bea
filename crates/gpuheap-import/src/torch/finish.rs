//! From the top-level object of the file to the recording.

use std::ops::Range;

use gpuheap_record::{Annotation, DeviceId, DeviceRecording, Events, Recording, Segment};

use super::lists::{Content, List};
use super::notes::Oddity;
use super::objects::{Dict, Objects, shared};
use super::rows::MAX_DEVICE;
use super::word::Word;
use crate::error::{At, Cause};
use crate::pickle::{Kind, Outcome, Value};

/// Whose events or segments they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Device(u32),
    Host,
}

/// What the top-level object says.
#[derive(Default)]
struct Top {
    segments: Option<Value>,
    traces: Option<Value>,
    settings: Option<Value>,
    annotations: Option<Value>,
    host_segments: Option<Value>,
    host_traces: Option<Value>,
}

impl Objects {
    /// The recording, once the whole file is read. `at` is where it ends.
    pub(super) fn finish(mut self, top: Value, at: u64) -> Outcome<Recording> {
        let top = self.top(top)?;
        if let Some(value) = top.settings {
            match self.settings(value) {
                Some(settings) => self.recording.settings = settings,
                None => self.notes.count(Oddity::Part("allocator_settings")),
            }
        }
        let annotations = self.range_of(top.annotations, Content::Annotations, "external_annotations");
        self.take_annotations(annotations);
        let mut traces = self.traces(top.traces, false, at)?;
        traces.extend(self.traces(top.host_traces, true, at)?);
        let segments = self.range_of(top.segments, Content::Segments, "segments");
        let host_segments = self.range_of(top.host_segments, Content::Segments, "host_segments");
        self.take_segments(segments, false, at)?;
        self.take_segments(host_segments, true, at)?;

        let Self { events, mut recording, mut notes, .. } = self;
        give_events(events, traces, &mut recording, at)?;
        recording.devices.retain(|device| !device.events.is_empty() || !device.segments.is_empty());
        if recording.devices.is_empty() && recording.host.is_none() {
            notes.count(Oddity::Nothing);
        }
        recording.notes = notes.into_notes();
        Ok(recording)
    }

    fn top(&mut self, value: Value) -> Outcome<Top> {
        let mut top = Top::default();
        if let Some(pairs) = self.pairs_of(value) {
            for &(key, value) in pairs {
                let place = match key.label() {
                    label if label == Word::Segments as u8 => &mut top.segments,
                    label if label == Word::DeviceTraces as u8 => &mut top.traces,
                    label if label == Word::AllocatorSettings as u8 => &mut top.settings,
                    label if label == Word::ExternalAnnotations as u8 => &mut top.annotations,
                    label if label == Word::HostSegments as u8 => &mut top.host_segments,
                    label if label == Word::HostTraces as u8 => &mut top.host_traces,
                    _ => continue,
                };
                *place = Some(value);
            }
        } else if self.lists.get(value).is_some_and(|list| list.content == Content::Segments) {
            top.segments = Some(value);
        }
        if top.segments.is_some() || top.traces.is_some() {
            return Ok(top);
        }
        Err(Box::new(Cause::NotASnapshot { found: self.describe_top(value) }))
    }

    fn describe_top(&self, value: Value) -> String {
        let keys: Vec<Value> = match (value.kind(), self.dict_of(value)) {
            (Kind::Text, _) => return "a text".to_owned(),
            (Kind::Int | Kind::Wide | Kind::Float, _) => return "a number".to_owned(),
            (Kind::None | Kind::Bool, _) => return format!("only `{}`", self.describe(value)),
            (Kind::List, _) => {
                return match self.lists.get(value).unwrap_or_default().content {
                    Content::Empty => "an empty list",
                    Content::Frames | Content::Stack => "a list of frames",
                    Content::Events => "a list of events",
                    Content::Blocks => "a list of blocks",
                    _ => "a list",
                }
                .to_owned();
            }
            (_, Some(Dict::Empty)) => return "an empty dict".to_owned(),
            (_, Some(Dict::Open(_) | Dict::Kept(_))) => {
                self.pairs_of(value).unwrap_or_default().iter().map(|&(key, _)| key).collect()
            }
            (_, Some(Dict::Foreign)) if self.foreign.0 == value.id() => self.foreign.1.clone(),
            (_, Some(Dict::Event(_))) => return "a single event".to_owned(),
            (_, Some(Dict::Segment(_))) => return "a single segment".to_owned(),
            (_, Some(_)) => return "a dict".to_owned(),
            _ => return self.describe(value),
        };
        let keys: Vec<String> =
            keys.iter().filter(|key| key.kind() == Kind::Text).take(4).map(|&key| self.short(key)).collect();
        if keys.is_empty() { "a dict".to_owned() } else { format!("a dict with the keys {}", keys.join(", ")) }
    }

    fn short(&self, text: Value) -> String {
        let text = self.texts.get(text).unwrap_or_default();
        let short: String = text.chars().take(40).collect();
        if short.len() < text.len() { format!("`{short}…`") } else { format!("`{short}`") }
    }

    /// The rows of a list that should hold `content`.
    fn range_of(&mut self, value: Option<Value>, content: Content, key: &'static str) -> Range<usize> {
        let Some(value) = value.filter(|value| value.kind() != Kind::None) else { return 0..0 };
        match self.lists.get(value) {
            Some(list) if list.content == content => list.range(),
            Some(List { content: Content::Empty, .. }) => 0..0,
            _ => {
                self.notes.count(Oddity::Part(key));
                0..0
            }
        }
    }

    fn take_annotations(&mut self, range: Range<usize>) {
        for row in self.annotations.get(range).unwrap_or_default() {
            let Some(stage) = row.stage else {
                self.notes.count(Oddity::Stage);
                continue;
            };
            let device = row.device.map(DeviceId::new);
            self.recording.annotations.push(Annotation { name: row.name, stage, device, time_us: row.time_us });
        }
        if !self.recording.annotations.is_sorted_by_key(|annotation| annotation.time_us) {
            self.recording.annotations.sort_by_key(|annotation| annotation.time_us);
        }
    }

    /// The rows of the events of each device, from a list with a list for each device.
    fn traces(&mut self, value: Option<Value>, host: bool, at: u64) -> Outcome<Vec<(Range<usize>, Owner)>> {
        let key = if host { "host_traces" } else { "device_traces" };
        let Some(value) = value.filter(|value| value.kind() != Kind::None) else { return Ok(Vec::new()) };
        let list = self.lists.get(value);
        let lists = match list {
            Some(List { content: Content::Empty, .. }) => return Ok(Vec::new()),
            Some(list @ List { content: Content::Events, .. }) => {
                return Ok(vec![(list.range(), if host { Owner::Host } else { Owner::Device(0) })]);
            }
            Some(list @ List { content: Content::Values, .. }) => self.lists.values_of(list).to_vec(),
            _ => {
                self.notes.count(Oddity::Part(key));
                return Ok(Vec::new());
            }
        };
        let mut traces = Vec::new();
        for (ordinal, &value) in lists.iter().enumerate() {
            match self.lists.get(value) {
                Some(List { content: Content::Empty, .. }) => {}
                Some(list @ List { content: Content::Events, .. }) => {
                    let ordinal = u32::try_from(ordinal).ok().filter(|&ordinal| u64::from(ordinal) <= MAX_DEVICE);
                    let Some(ordinal) = ordinal else {
                        let value = lists.len().to_string();
                        return Err(Box::new(Cause::OutOfRange { field: key, value, at: At::Byte(at) }));
                    };
                    traces.push((list.range(), if host { Owner::Host } else { Owner::Device(ordinal) }));
                }
                _ => self.notes.count(Oddity::Entry(key)),
            }
        }
        Ok(traces)
    }

    fn take_segments(&mut self, range: Range<usize>, host: bool, at: u64) -> Outcome<()> {
        let rows = self.segments.get_mut(range).unwrap_or_default();
        let mut without_address = 0;
        for row in rows.iter() {
            if row.taken {
                return Err(shared("segment", at).into());
            }
            without_address += u64::from(!row.has_address);
        }
        // Segments come sorted within each device; where they do not, they are sorted here.
        rows.sort_by_key(|row| (row.device, row.segment.address));
        for row in rows {
            row.taken = true;
            let mut segment = std::mem::take(&mut row.segment);
            sort_blocks(&mut segment);
            let device =
                if host { self.recording.host.get_or_insert_default() } else { self.recording.device_mut(row.device) };
            device.segments.push(segment);
        }
        self.notes.add(Oddity::SegmentAddress, without_address);
        Ok(())
    }
}

fn sort_blocks(segment: &mut Segment) {
    if !segment.blocks.is_sorted_by_key(|block| block.address) {
        segment.blocks.sort_by_key(|block| block.address);
    }
}

/// Cuts the events of the file into those of each device. Mostly there is one device, and nothing to cut.
fn give_events(
    mut events: Events,
    mut traces: Vec<(Range<usize>, Owner)>,
    recording: &mut Recording,
    at: u64,
) -> Outcome<()> {
    traces.sort_by_key(|(range, _)| (range.start, range.end));
    if traces.windows(2).any(|pair| matches!(pair, [(first, _), (second, _)] if first.end > second.start)) {
        return Err(shared("event", at).into());
    }
    for (range, owner) in traces.into_iter().rev() {
        events.keep_first(range.end);
        let mut taken = events.split_off(range.start);
        taken.shrink_to_fit();
        match owner {
            Owner::Device(ordinal) => recording.device_mut(ordinal).events = taken,
            Owner::Host => {
                let host: &mut DeviceRecording = recording.host.get_or_insert_default();
                if host.events.is_empty() {
                    host.events = taken;
                } else {
                    // Host memory has no devices: lists of several threads follow each other.
                    for id in host.events.ids() {
                        taken.push(host.events.get(id));
                    }
                    host.events = taken;
                }
            }
        }
    }
    Ok(())
}
