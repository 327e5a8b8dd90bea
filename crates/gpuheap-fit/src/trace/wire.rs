//! A trace as it stands in the file.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::{Batch, Model, Optimizer, Source, Unknown};

/// The object in the file.
#[derive(Deserialize)]
pub(super) struct WireTrace {
    #[serde(default)]
    pub(super) schema: String,
    #[serde(default)]
    pub(super) source: Source,
    #[serde(default)]
    pub(super) applied: Vec<crate::Lever>,
    #[serde(default)]
    pub(super) batch: Batch,
    #[serde(default)]
    pub(super) model: Model,
    #[serde(default)]
    pub(super) optimizer: Option<Optimizer>,
    #[serde(default)]
    pub(super) modules: Vec<WireModule>,
    #[serde(default)]
    pub(super) ops: Vec<String>,
    pub(super) storages: WireStorages,
    pub(super) events: Events,
    #[serde(default)]
    pub(super) unknown: Vec<Unknown>,
    #[serde(default)]
    pub(super) micro_batches: Option<u32>,
    #[serde(default)]
    pub(super) ranks: Vec<WireTrace>,
}

#[derive(Deserialize)]
pub(super) struct WireModule {
    pub(super) name: String,
    #[serde(default)]
    pub(super) class: String,
    #[serde(default = "nobody")]
    pub(super) parent: i64,
}

fn nobody() -> i64 {
    -1
}

#[derive(Deserialize)]
pub(super) struct WireStorages {
    pub(super) bytes: Vec<i64>,
    pub(super) class: Vec<String>,
    #[serde(default)]
    pub(super) module: Vec<Option<i64>>,
    #[serde(default)]
    pub(super) dtype: Vec<String>,
    #[serde(default)]
    pub(super) name: Vec<String>,
    #[serde(default)]
    pub(super) stream: Vec<i64>,
}

/// An event as written; ids are not checked yet.
pub(super) enum WireEvent {
    Phase(String),
    Step(i64),
    Enter(i64, i64),
    Leave(i64, i64),
    Alloc(i64),
    Free(i64),
    Op(Box<WireCall>),
    Saved(i64),
    Record(i64, i64),
    Wait(i64, i64),
    /// Of a kind that is not known: a newer tracer may write more.
    Other,
}

pub(super) struct WireCall {
    pub(super) op: i64,
    pub(super) module: i64,
    pub(super) thread: i64,
    pub(super) flops: f64,
    pub(super) read: f64,
    pub(super) written: f64,
    pub(super) inputs: Vec<i64>,
    pub(super) outputs: Vec<i64>,
    pub(super) stream: i64,
}

/// All events; an error says which of them is wrong.
pub(super) struct Events(pub(super) Vec<WireEvent>);

impl<'de> Deserialize<'de> for Events {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(AllEvents)
    }
}

struct AllEvents;

impl<'de> Visitor<'de> for AllEvents {
    type Value = Events;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Events, A::Error> {
        // The length that a file claims is not believed.
        let mut events = Vec::with_capacity(list.size_hint().unwrap_or(0).min(1 << 16));
        loop {
            match list.next_element::<WireEvent>() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => return Ok(Events(events)),
                Err(error) => return Err(A::Error::custom(format_args!("event {}: {error}", events.len()))),
            }
        }
    }
}

impl<'de> Deserialize<'de> for WireEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(OneEvent)
    }
}

struct OneEvent;

impl<'de> Visitor<'de> for OneEvent {
    type Value = WireEvent;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an event, such as [\"alloc\", 3]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<WireEvent, A::Error> {
        let kind: std::borrow::Cow<'de, str> = next(&mut list, "the kind of event")?;
        let event = match &*kind {
            "phase" => WireEvent::Phase(next(&mut list, "the name of the phase")?),
            "step" => WireEvent::Step(next(&mut list, "the number of the step")?),
            "enter" => WireEvent::Enter(next(&mut list, "a module")?, next(&mut list, "a pass")?),
            "leave" => WireEvent::Leave(next(&mut list, "a module")?, next(&mut list, "a pass")?),
            "alloc" => WireEvent::Alloc(next(&mut list, "a storage")?),
            "free" => WireEvent::Free(next(&mut list, "a storage")?),
            "saved" => WireEvent::Saved(next(&mut list, "a storage")?),
            "record" => WireEvent::Record(next(&mut list, "an event")?, next(&mut list, "a stream")?),
            "wait" => WireEvent::Wait(next(&mut list, "a stream")?, next(&mut list, "an event")?),
            "op" => WireEvent::Op(Box::new(WireCall {
                op: next(&mut list, "an operator")?,
                module: next::<Option<i64>, A>(&mut list, "a module")?.unwrap_or(-1),
                thread: next(&mut list, "a thread")?,
                flops: next::<Option<f64>, A>(&mut list, "operations")?.unwrap_or(0.0),
                read: next(&mut list, "bytes read")?,
                written: next(&mut list, "bytes written")?,
                inputs: next(&mut list, "inputs")?,
                outputs: next(&mut list, "outputs")?,
                // Not written for the default stream.
                stream: list.next_element()?.unwrap_or(0),
            })),
            _ => WireEvent::Other,
        };
        // More fields are those of a newer tracer.
        while list.next_element::<serde::de::IgnoredAny>()?.is_some() {}
        Ok(event)
    }
}

fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(list: &mut A, what: &str) -> Result<T, A::Error> {
    list.next_element()?.ok_or_else(|| A::Error::custom(format_args!("{what} is missing")))
}
