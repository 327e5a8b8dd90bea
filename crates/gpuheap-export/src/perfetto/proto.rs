//! The messages of a trace, as far as they are written. Names and numbers are Perfetto's.

use prost::Message;

/// Values of [`TracePacket`] and [`TrackDescriptor`].
pub(crate) mod packet {
    /// The only sequence of packets.
    pub(crate) const SEQUENCE: u32 = 1;
    /// `SEQ_INCREMENTAL_STATE_CLEARED`.
    pub(crate) const STATE_CLEARED: u32 = 1;
    /// `SEQ_NEEDS_INCREMENTAL_STATE`.
    pub(crate) const NEEDS_STATE: u32 = 2;
    /// `BUILTIN_CLOCK_REALTIME`.
    pub(crate) const CLOCK_REALTIME: u32 = 1;
    /// `BUILTIN_CLOCK_BOOTTIME`, the clock of traces that name none.
    pub(crate) const CLOCK_BOOTTIME: u32 = 6;
    /// `ChildTracksOrdering.EXPLICIT`.
    pub(crate) const CHILDREN_BY_RANK: i32 = 3;
}

/// Values of `TrackEvent.Type`.
pub(crate) mod event {
    pub(crate) const SLICE_BEGIN: i32 = 1;
    pub(crate) const SLICE_END: i32 = 2;
    pub(crate) const INSTANT: i32 = 3;
    pub(crate) const COUNTER: i32 = 4;
}

/// Values of `CounterDescriptor.Unit`.
pub(crate) mod unit {
    pub(crate) const SIZE_BYTES: i32 = 3;
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub(crate) clock_snapshot: Option<ClockSnapshot>,
    /// Nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub(crate) timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub(crate) trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    pub(crate) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(crate) interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    pub(crate) sequence_flags: u32,
    #[prost(message, optional, tag = "60")]
    pub(crate) track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(crate) clocks: Vec<Clock>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Clock {
    #[prost(uint32, tag = "1")]
    pub(crate) clock_id: u32,
    #[prost(uint64, tag = "2")]
    pub(crate) timestamp: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub(crate) uuid: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(uint64, optional, tag = "5")]
    pub(crate) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(crate) counter: Option<CounterDescriptor>,
    #[prost(int32, tag = "11")]
    pub(crate) child_ordering: i32,
    #[prost(int32, tag = "12")]
    pub(crate) sibling_order_rank: i32,
    #[prost(string, optional, tag = "14")]
    pub(crate) description: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct CounterDescriptor {
    #[prost(int32, tag = "3")]
    pub(crate) unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(crate) debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, tag = "9")]
    pub(crate) r#type: i32,
    #[prost(uint64, tag = "11")]
    pub(crate) track_uuid: u64,
    #[prost(string, repeated, tag = "22")]
    pub(crate) categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    pub(crate) name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub(crate) counter_value: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DebugAnnotation {
    #[prost(string, tag = "10")]
    pub(crate) name: String,
    #[prost(oneof = "annotation::Value", tags = "3, 6, 7, 17")]
    pub(crate) value: Option<annotation::Value>,
}

impl DebugAnnotation {
    pub(crate) fn new(name: &str, value: annotation::Value) -> Self {
        Self { name: name.to_owned(), value: Some(value) }
    }
}

/// Values of annotations.
pub(crate) mod annotation {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Value {
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
pub(crate) struct InternedData {
    #[prost(message, repeated, tag = "29")]
    pub(crate) debug_annotation_string_values: Vec<InternedString>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InternedString {
    #[prost(uint64, tag = "1")]
    pub(crate) iid: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) str: Vec<u8>,
}
