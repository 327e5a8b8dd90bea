//! Numbers, texts and pairs as the rows need them.

use gpuheap_record::{Context, ContextId, PoolId, StreamId, StringId};

use super::notes::Oddity;
use super::objects::Objects;
use super::word::Word;
use crate::error::{At, Cause};
use crate::pickle::{Kind, Outcome, Value};

/// The last answers of the tables that every event asks.
pub(crate) struct Caches {
    stream: (Value, StreamId),
    context: ((Value, Value), ContextId),
    pool: (Value, PoolId),
}

/// PyTorch has 32 streams for each device and priority, and a pool for each graph.
const MOST_STREAMS_OR_POOLS: usize = 4096;

impl Default for Caches {
    fn default() -> Self {
        let (none, zero) = (Value::NONE, Value::small(0));
        Self {
            stream: (zero, StreamId::new(0)),
            context: ((none, none), ContextId::new(0)),
            pool: (none, PoolId::new(0)),
        }
    }
}

impl Objects {
    /// An integer, whatever form it has in the file.
    #[inline]
    pub(super) fn integer(&self, value: Value) -> Option<i128> {
        if let Some(value) = value.as_int() {
            return Some(i128::from(value));
        }
        match value.kind() {
            Kind::Wide => self.wide.get(value.id() as usize).copied(),
            Kind::Float => {
                let float = self.float_of(value)?;
                #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
                (float.is_finite() && float.abs() < 1e18).then_some(float as i128)
            }
            Kind::Bool => value.as_bool().map(i128::from),
            _ => None,
        }
    }

    pub(super) fn float_of(&self, value: Value) -> Option<f64> {
        match value.kind() {
            Kind::Float => self.floats.get(value.id() as usize).copied(),
            #[expect(clippy::cast_precision_loss, reason = "settings are small")]
            _ => self.integer(value).map(|value| value as f64),
        }
    }

    /// An integer between 0 and `max`; anything else is an error. `None` counts as 0.
    #[inline]
    pub(super) fn number(&self, key: Word, value: Value, max: u64, at: u64) -> Outcome<u64> {
        if let Some(value) = value.as_int()
            && value >= 0
            && value.cast_unsigned() <= max
        {
            return Ok(value.cast_unsigned());
        }
        if value.kind() == Kind::None {
            return Ok(0);
        }
        let number = self.integer(value).and_then(|number| u64::try_from(number).ok());
        number.filter(|&number| number <= max).ok_or_else(|| self.out_of_range(key, value, at).into())
    }

    #[cold]
    pub(super) fn out_of_range(&self, key: Word, value: Value, at: u64) -> Cause {
        Cause::OutOfRange { field: key.text(), value: self.describe(value), at: At::Byte(at) }
    }

    /// An address or a handle. Those with the top bit set are negative numbers in older files.
    #[inline]
    pub(super) fn address(&self, key: Word, value: Value, at: u64) -> Outcome<u64> {
        if let Some(value) = value.as_int() {
            return Ok(value.cast_unsigned());
        }
        if value.kind() == Kind::None {
            return Ok(0);
        }
        let number = self.integer(value);
        let unsigned = number.and_then(|number| u64::try_from(number).ok());
        let signed = number.and_then(|number| i64::try_from(number).ok()).map(i64::cast_unsigned);
        unsigned.or(signed).ok_or_else(|| self.out_of_range(key, value, at).into())
    }

    /// Fails if a range of memory goes past the last address.
    pub(super) fn check_range(key: Word, address: u64, size: u64, at: u64) -> Outcome<()> {
        if address.checked_add(size).is_some() {
            return Ok(());
        }
        let value = format!("{address:#x} with {size} bytes");
        Err(Box::new(Cause::OutOfRange { field: key.text(), value, at: At::Byte(at) }))
    }

    /// Fails if there are more streams than any program has: each costs far more than it takes in the file.
    fn check_count(key: Word, count: usize, at: u64) -> Outcome<()> {
        if count <= MOST_STREAMS_OR_POOLS {
            return Ok(());
        }
        let value = format!("more than {MOST_STREAMS_OR_POOLS} different ones");
        Err(Box::new(Cause::OutOfRange { field: key.text(), value, at: At::Byte(at) }))
    }

    pub(super) fn string(&mut self, value: Value) -> StringId {
        self.texts.string(value, &mut self.recording.strings).unwrap_or_default()
    }

    #[inline]
    pub(super) fn stream(&mut self, value: Value, at: u64) -> Outcome<StreamId> {
        if value != self.caches.stream.0 {
            let handle = self.address(Word::Stream, value, at)?;
            self.caches.stream = (value, self.recording.streams.insert(handle));
            Self::check_count(Word::Stream, self.recording.streams.len(), at)?;
        }
        Ok(self.caches.stream.1)
    }

    #[inline]
    pub(super) fn context(&mut self, compile: Value, user: Value) -> ContextId {
        if (compile, user) != self.caches.context.0 {
            let context = Context { compile: self.compile_context(compile), user: self.string(user) };
            self.caches.context = ((compile, user), self.recording.contexts.insert(context));
        }
        self.caches.context.1
    }

    /// The context that differs from `before` in what is given.
    pub(super) fn change_context(
        &mut self,
        before: ContextId,
        compile: Option<Value>,
        user: Option<Value>,
    ) -> ContextId {
        let mut context = self.recording.contexts.get(before).copied().unwrap_or_default();
        if let Some(compile) = compile {
            context.compile = self.compile_context(compile);
        }
        if let Some(user) = user {
            context.user = self.string(user);
        }
        self.recording.contexts.insert(context)
    }

    fn compile_context(&mut self, text: Value) -> StringId {
        if text.label() == Word::NotAvailable as u8 { StringId::default() } else { self.string(text) }
    }

    /// The pool that a pair of integers names; `None` for no pool, and for what is not a pair.
    pub(super) fn pool(&mut self, key: Word, value: Value) -> Option<PoolId> {
        if value.kind() != Kind::Tuple {
            if value.kind() != Kind::None {
                self.notes.count(Oddity::Part(key.text()));
            }
            return None;
        }
        if value != self.caches.pool.0 {
            let pair = self.pairs.get_index(value.id() as usize).copied()?;
            if self.recording.pools.len() > MOST_STREAMS_OR_POOLS && self.recording.pools.find(&pair).is_none() {
                self.notes.count(Oddity::Part(key.text()));
                return None;
            }
            self.caches.pool = (value, self.recording.pools.insert(pair));
        }
        Some(self.caches.pool.1)
    }
}
