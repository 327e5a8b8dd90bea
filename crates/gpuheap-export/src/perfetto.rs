//! A trace of Perfetto: `TracePacket`s as published in
//! [`protos/perfetto/trace`](https://github.com/google/perfetto/tree/main/protos/perfetto/trace), the field numbers from
//! there. Counters of allocated and reserved memory and of each class (unit: bytes), a slice for each of the large
//! blocks, instants for what happened at one moment. Times are nanoseconds of Unix time.

pub(crate) mod proto;

use std::io::Write;

use foldhash::HashMap;
use gpuheap_explain::{AllocationView, Analysis};

use self::proto::{
    Clock as ClockReading, ClockSnapshot, CounterDescriptor, DebugAnnotation, InternedData, InternedString,
    TracePacket, TrackDescriptor, TrackEvent, annotation, event, packet, unit,
};
use crate::clock::Clock;
use crate::large::Large;
use crate::marks::{Detail, MarkKind, marks, site_text};
use crate::names::{Names, Place};
use crate::series::Series;
use crate::{Error, Options};

/// Ticks with counters.
const POINTS: usize = 100_000;
/// Blocks with a slice of their own.
const MOST_BLOCKS: usize = 4000;
/// Frames of each stack.
const MOST_FRAMES: usize = 64;

/// The tracks, by the numbers that name them in the trace.
mod track {
    pub(super) const ROOT: u64 = 1;
    pub(super) const ALLOCATED: u64 = 2;
    pub(super) const RESERVED: u64 = 3;
    pub(super) const CLASSES: u64 = 4;
    pub(super) const BLOCKS: u64 = 5;
    pub(super) const FIRST_MARK: u64 = 10;
    pub(super) const FIRST_CLASS: u64 = 100;
    pub(super) const FIRST_LANE: u64 = 1000;
}

pub(crate) fn write(analysis: &Analysis, options: &Options, out: &mut dyn Write) -> Result<(), Error> {
    let clock = Clock::new(analysis);
    let mut trace = Trace { out, buffer: Vec::new(), start_ns: clock.start_ns };
    trace.start(&clock)?;
    let large = Large::new(analysis, &clock, MOST_BLOCKS);
    let source = &analysis.report().source;
    let root = format!("GPU memory, device {}{}", source.device, clock.note());
    trace.track(track::ROOT, None, 0, &root, Some(&options.generator))?;
    counters(analysis, &clock, &mut trace)?;
    for (rank, kind) in MarkKind::ALL.into_iter().enumerate() {
        trace.track(track::FIRST_MARK + rank as u64, Some(track::ROOT), rank, kind.title(), None)?;
    }
    for mark in marks(analysis) {
        let annotations = mark.details.into_iter().map(|(name, detail)| match detail {
            Detail::Bytes(bytes) => DebugAnnotation::new(name, annotation::Value::Uint(bytes)),
            Detail::Text(text) => DebugAnnotation::new(name, annotation::Value::String(text)),
        });
        let event = TrackEvent {
            r#type: event::INSTANT,
            track_uuid: track::FIRST_MARK + mark.kind as u64,
            categories: vec![mark.kind.title().to_owned()],
            debug_annotations: annotations.collect(),
            name: Some(mark.name),
            ..TrackEvent::default()
        };
        trace.event(clock.offset_ns(mark.tick), event)?;
    }
    blocks(analysis, &clock, &large, &mut trace)
}

fn counters(analysis: &Analysis, clock: &Clock, trace: &mut Trace<'_>) -> Result<(), Error> {
    let series = Series::new(analysis, POINTS);
    trace.counter_track(track::ALLOCATED, track::ROOT, 10, "allocated")?;
    trace.counter_track(track::RESERVED, track::ROOT, 11, "reserved")?;
    trace.track(track::CLASSES, Some(track::ROOT), 12, "by class", None)?;
    let mut columns = vec![(track::ALLOCATED, &series.allocated), (track::RESERVED, &series.reserved)];
    for (rank, (class, values)) in series.classes.iter().enumerate() {
        let uuid = track::FIRST_CLASS + *class as u64;
        trace.counter_track(uuid, track::CLASSES, rank, class.title())?;
        columns.push((uuid, values));
    }
    for (point, &tick) in series.ticks.iter().enumerate() {
        for &(track_uuid, values) in &columns {
            let value = values[point];
            // A counter holds until its next value; the last one says how far it reaches.
            if point == 0 || values[point - 1] != value || point + 1 == series.ticks.len() {
                let counter_value = Some(i64::try_from(value).unwrap_or(i64::MAX));
                let event = TrackEvent { r#type: event::COUNTER, track_uuid, counter_value, ..TrackEvent::default() };
                trace.event(clock.offset_ns(tick), event)?;
            }
        }
    }
    Ok(())
}

fn blocks(analysis: &Analysis, clock: &Clock, large: &Large, trace: &mut Trace<'_>) -> Result<(), Error> {
    let title = format!("large blocks ({} of {})", large.shown, large.of);
    trace.track(track::BLOCKS, Some(track::ROOT), 20, &title, None)?;
    let names = Names::new(analysis.recording());
    let mut stacks: HashMap<Place, u64> = HashMap::default();
    for (lane, slices) in large.lanes.iter().enumerate() {
        let track_uuid = track::FIRST_LANE + lane as u64;
        trace.track(track_uuid, Some(track::BLOCKS), lane, &format!("large blocks {}", lane + 1), None)?;
        for slice in slices {
            let Some(allocation) = analysis.allocation(slice.id) else { continue };
            let place = Place::of(&allocation);
            let next = stacks.len() as u64 + 1;
            let stack = *stacks.entry(place).or_insert(next);
            let mut packet = TracePacket::default();
            if stack == next {
                packet.interned_data = Some(InternedData::of_value(stack, stack_text(analysis, &names, place)));
            }
            let event = TrackEvent { r#type: event::SLICE_BEGIN, track_uuid, ..block(analysis, &allocation, stack) };
            trace.packet(clock.offset_ns(slice.from), packet, event)?;
            let end = TrackEvent { r#type: event::SLICE_END, track_uuid, ..TrackEvent::default() };
            trace.event(clock.offset_ns(slice.to), end)?;
        }
    }
    Ok(())
}

/// What is said of a block.
fn block(analysis: &Analysis, allocation: &AllocationView, stack: u64) -> TrackEvent {
    use annotation::Value;
    let site = analysis.site(allocation.stack).map(|site| site_text(&site));
    let mut annotations = vec![
        DebugAnnotation::new("id", Value::Uint(u64::from(allocation.id))),
        DebugAnnotation::new("size_bytes", Value::Uint(allocation.size.get())),
        DebugAnnotation::new("requested_bytes", Value::Uint(allocation.requested.get())),
        DebugAnnotation::new("address", Value::Pointer(allocation.address)),
        DebugAnnotation::new("class", Value::String(allocation.class.title().to_owned())),
        DebugAnnotation::new("rule", Value::String(allocation.rule.to_owned())),
        DebugAnnotation::new("stack", Value::StringIid(stack)),
    ];
    annotations.extend(site.clone().map(|site| DebugAnnotation::new("site", Value::String(site))));
    annotations.push(match allocation.freed {
        Some(event) => DebugAnnotation::new("freed_event", Value::Uint(u64::from(event))),
        None => DebugAnnotation::new("freed", Value::String("never".to_owned())),
    });
    TrackEvent {
        categories: vec![allocation.class.name().to_owned()],
        debug_annotations: annotations,
        name: Some(site.unwrap_or_else(|| analysis.label(allocation))),
        ..TrackEvent::default()
    }
}

/// A line a frame, innermost first.
fn stack_text(analysis: &Analysis, names: &Names<'_>, place: Place) -> String {
    let mut text = String::new();
    for frame in place.frames(analysis.recording()).take(MOST_FRAMES) {
        if !text.is_empty() {
            text.push('\n');
        }
        names.push_frame(&mut text, frame);
    }
    text
}

/// Writes packets, each as soon as it is there.
struct Trace<'a> {
    out: &'a mut dyn Write,
    buffer: Vec<u8>,
    start_ns: u64,
}

impl Trace<'_> {
    /// Says that nothing came before, and that the clock of the trace shows Unix time.
    fn start(&mut self, clock: &Clock) -> Result<(), Error> {
        let snapshot = clock.is_timed.then(|| ClockSnapshot {
            clocks: [packet::CLOCK_BOOTTIME, packet::CLOCK_REALTIME]
                .into_iter()
                .map(|clock_id| ClockReading { clock_id, timestamp: self.start_ns })
                .collect(),
        });
        self.write(&TracePacket {
            clock_snapshot: snapshot,
            trusted_packet_sequence_id: packet::SEQUENCE,
            sequence_flags: packet::STATE_CLEARED,
            ..TracePacket::default()
        })
    }

    fn track(
        &mut self,
        uuid: u64,
        parent: Option<u64>,
        rank: usize,
        name: &str,
        description: Option<&str>,
    ) -> Result<(), Error> {
        self.describe(TrackDescriptor {
            uuid,
            name: name.to_owned(),
            parent_uuid: parent,
            child_ordering: packet::CHILDREN_BY_RANK,
            sibling_order_rank: i32::try_from(rank).unwrap_or(i32::MAX),
            description: description.map(str::to_owned),
            counter: None,
        })
    }

    fn counter_track(&mut self, uuid: u64, parent: u64, rank: usize, name: &str) -> Result<(), Error> {
        self.describe(TrackDescriptor {
            uuid,
            name: name.to_owned(),
            parent_uuid: Some(parent),
            child_ordering: packet::CHILDREN_BY_RANK,
            sibling_order_rank: i32::try_from(rank).unwrap_or(i32::MAX),
            description: None,
            counter: Some(CounterDescriptor { unit: unit::SIZE_BYTES }),
        })
    }

    fn describe(&mut self, track: TrackDescriptor) -> Result<(), Error> {
        self.write(&TracePacket {
            timestamp: Some(self.start_ns),
            trusted_packet_sequence_id: packet::SEQUENCE,
            track_descriptor: Some(track),
            ..TracePacket::default()
        })
    }

    /// Writes an event at nanoseconds since the start.
    fn event(&mut self, offset_ns: u64, event: TrackEvent) -> Result<(), Error> {
        self.packet(offset_ns, TracePacket::default(), event)
    }

    fn packet(&mut self, offset_ns: u64, packet: TracePacket, event: TrackEvent) -> Result<(), Error> {
        self.write(&TracePacket {
            timestamp: Some(self.start_ns + offset_ns),
            trusted_packet_sequence_id: packet::SEQUENCE,
            sequence_flags: packet::NEEDS_STATE,
            track_event: Some(event),
            ..packet
        })
    }

    /// A trace is a message with packets as its field 1, so that packets can be written one after the other.
    fn write(&mut self, packet: &TracePacket) -> Result<(), Error> {
        self.buffer.clear();
        prost::encoding::message::encode(1, packet, &mut self.buffer);
        self.out.write_all(&self.buffer)?;
        Ok(())
    }
}

impl InternedData {
    /// A value of annotations, by its number.
    fn of_value(iid: u64, text: String) -> Self {
        Self { debug_annotation_string_values: vec![InternedString { iid, str: text.into_bytes() }] }
    }
}
