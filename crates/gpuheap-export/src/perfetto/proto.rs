//! The messages of a trace, as far as they are written. Names and numbers are Perfetto's.

use prost::Message;

/// Values of [`TracePacket`] and [`TrackDescriptor`].
pub(super) mod packet {
    /// The only sequence of packets.
    pub(in super::super) const SEQUENCE: u32 = 1;
    /// `SEQ_INCREMENTAL_STATE_CLEARED`.
    pub(in super::super) const STATE_CLEARED: u32 = 1;
    /// `SEQ_NEEDS_INCREMENTAL_STATE`.
    pub(in super::super) const NEEDS_STATE: u32 = 2;
    /// `BUILTIN_CLOCK_REALTIME`.
    pub(in super::super) const CLOCK_REALTIME: u32 = 1;
    /// `BUILTIN_CLOCK_BOOTTIME`, the clock of traces that name none.
    pub(in super::super) const CLOCK_BOOTTIME: u32 = 6;
    /// `ChildTracksOrdering.EXPLICIT`.
    pub(in super::super) const CHILDREN_BY_RANK: i32 = 3;
}

/// Values of `TrackEvent.Type`.
pub(super) mod event {
    pub(in super::super) const SLICE_BEGIN: i32 = 1;
    pub(in super::super) const SLICE_END: i32 = 2;
    pub(in super::super) const INSTANT: i32 = 3;
    pub(in super::super) const COUNTER: i32 = 4;
}

/// Values of `CounterDescriptor.Unit`.
pub(super) mod unit {
    pub(in super::super) const SIZE_BYTES: i32 = 3;
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub(super) clock_snapshot: Option<ClockSnapshot>,
    /// Nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub(super) trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    pub(super) sequence_flags: u32,
    #[prost(message, optional, tag = "60")]
    pub(super) track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(super) clocks: Vec<Clock>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Clock {
    #[prost(uint32, tag = "1")]
    pub(super) clock_id: u32,
    #[prost(uint64, tag = "2")]
    pub(super) timestamp: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub(super) uuid: u64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) counter: Option<CounterDescriptor>,
    #[prost(int32, tag = "11")]
    pub(super) child_ordering: i32,
    #[prost(int32, tag = "12")]
    pub(super) sibling_order_rank: i32,
    #[prost(string, optional, tag = "14")]
    pub(super) description: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    #[prost(int32, tag = "3")]
    pub(super) unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, tag = "9")]
    pub(super) r#type: i32,
    #[prost(uint64, tag = "11")]
    pub(super) track_uuid: u64,
    #[prost(string, repeated, tag = "22")]
    pub(super) categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    pub(super) name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub(super) counter_value: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(string, tag = "10")]
    pub(super) name: String,
    #[prost(oneof = "annotation::Value", tags = "3, 6, 7, 17")]
    pub(super) value: Option<annotation::Value>,
}

impl DebugAnnotation {
    pub(super) fn new(name: &str, value: annotation::Value) -> Self {
        Self { name: name.to_owned(), value: Some(value) }
    }
}

/// Values of annotations.
pub(super) mod annotation {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(in super::super) enum Value {
        #[prost(uint64, tag = "3")]
        Uint(u64),
        #[prost(string, tag = "6")]
        String(String),
        #[prost(uint64, tag = "7")]
        Pointer(u64),
        /// The number of a text that was given before.
        #[prost(uint64, tag = "17")]
        StringIid(u64),
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "29")]
    pub(super) debug_annotation_string_values: Vec<InternedString>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedString {
    #[prost(uint64, tag = "1")]
    pub(super) iid: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) str: Vec<u8>,
}
