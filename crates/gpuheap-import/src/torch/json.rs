//! The JSON form: the same objects, built by the parser as it goes.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use gpuheap_record::Recording;

use super::notes::{Notes, Oddity};
use super::objects::Objects;
use crate::budget;
use crate::error::{At, Cause};
use crate::input::Input;
use crate::pickle::{Host, Outcome, Value};

/// How many items of a list are handed over at a time.
const BATCH: usize = 256;
/// Between how many lists and dicts memory is checked.
const CHECK: u32 = 4096;

pub(super) fn read(input: &mut Input<'_>) -> Outcome<Recording> {
    let mut objects = Objects::default();
    let consumed = std::cell::Cell::new(0);
    let mut reader = Tally { input, consumed: &consumed };
    let mut state = State { objects: &mut objects, consumed: &consumed, fault: None, opened: 0 };
    let mut parser = serde_json::Deserializer::from_reader(&mut reader);
    let parsed = Node(&mut state).deserialize(&mut parser);
    let fault = state.fault.take();
    let top = match (parsed, fault) {
        (Ok(top), _) => top,
        (Err(error), Some(fault)) => return Err(Box::new(fault.on_line(error.line() as u64))),
        (Err(error), None) => return Err(json_error(error, consumed.get()).into()),
    };
    let end = parser.end();
    drop(parser);
    if let Err(error) = end {
        if error.is_io() {
            return Err(json_error(error, consumed.get()).into());
        }
        objects.notes.count(Oddity::LongTrailing);
        super::trailing(input, &mut Notes::default())?;
    }
    objects.finish(top, consumed.get())
}

fn json_error(error: serde_json::Error, consumed: u64) -> Cause {
    if error.is_io() {
        return Cause::Input { offset: consumed, source: error.into() };
    }
    Cause::Json { line: error.line() as u64, column: error.column() as u64, source: error }
}

/// Counts what the parser took.
struct Tally<'a, 'b> {
    input: &'a mut Input<'b>,
    consumed: &'a std::cell::Cell<u64>,
}

impl std::io::Read for Tally<'_, '_> {
    #[inline]
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        let got = self.input.read(target)?;
        self.consumed.set(self.consumed.get() + got as u64);
        Ok(got)
    }
}

struct State<'a> {
    objects: &'a mut Objects,
    consumed: &'a std::cell::Cell<u64>,
    /// What stopped the parser, if it was not the JSON.
    fault: Option<Box<Cause>>,
    opened: u32,
}

impl State<'_> {
    /// Passes on the result of the objects; an error goes around the parser, which can only carry texts.
    fn keep<T, E: de::Error>(&mut self, result: Outcome<T>) -> Result<T, E> {
        result.map_err(|cause| {
            self.fault = Some(cause);
            E::custom("stopped")
        })
    }

    fn check<E: de::Error>(&mut self) -> Result<(), E> {
        self.opened += 1;
        if self.opened < CHECK && self.objects.taken() <= budget::SLICE {
            return Ok(());
        }
        self.opened = 0;
        let consumed = self.consumed.get();
        let left = budget::limit(consumed).checked_sub(self.objects.heap_bytes());
        if let Some(left) = left {
            self.objects.allow(left);
        }
        self.keep(left.map(|_| ()).ok_or_else(|| Box::new(Cause::Memory { at: At::Byte(consumed) })))
    }
}

/// Any value.
struct Node<'a, 'b>(&'a mut State<'b>);

impl<'de> DeserializeSeed<'de> for Node<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_, '_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::int(value).unwrap_or_else(|| self.0.objects.wide(i128::from(value))))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        let small = i64::try_from(value).ok().and_then(Value::int);
        Ok(small.unwrap_or_else(|| self.0.objects.wide(i128::from(value))))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(self.0.objects.float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(if text.len() > crate::input::WINDOW { Value::OPAQUE } else { self.0.objects.text(text.as_bytes()) })
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::NONE)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let state = self.0;
        state.check()?;
        let list = state.objects.list();
        let mut batch = Vec::new();
        let mut count = 0_usize;
        while let Some(item) = items.next_element_seed(Node(state))? {
            batch.push(item);
            count += 1;
            if batch.len() == BATCH {
                let appended = state.objects.append(list, &batch, state.consumed.get());
                state.keep(appended)?;
                batch.clear();
            }
        }
        let at = state.consumed.get();
        // JSON has no tuples: two integers are what a pool's pair becomes.
        let made = if count == 2 && batch.iter().all(|item| item.as_int().is_some()) {
            state.objects.tuple(&batch, at)
        } else {
            state.objects.append(list, &batch, at).and_then(|()| state.objects.complete(list, at))
        };
        state.keep(made)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let state = self.0;
        state.check()?;
        let dict = state.objects.dict();
        let mut pairs = Vec::new();
        while let Some(key) = entries.next_key_seed(Node(state))? {
            let value = entries.next_value_seed(Node(state))?;
            pairs.extend([key, value]);
        }
        let at = state.consumed.get();
        let made = state.objects.set_items(dict, &pairs, at).and_then(|()| state.objects.complete(dict, at));
        state.keep(made)
    }
}
