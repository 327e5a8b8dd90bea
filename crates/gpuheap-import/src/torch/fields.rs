//! The values of a dict by its keys, and what a dict is by the keys that it has.

use super::word::{self, Keys, Word};
use crate::pickle::{Kind, Value};

/// The known keys of one dict with their values: a slot a key. Cleared by forgetting which slots are in use.
pub(crate) struct Fields {
    keys: Keys,
    slots: [Value; 64],
}

impl Default for Fields {
    fn default() -> Self {
        Self { keys: Keys::default(), slots: [Value::NONE; 64] }
    }
}

impl Fields {
    pub(crate) fn clear(&mut self) {
        self.keys = Keys::default();
    }

    #[inline]
    pub(crate) fn set(&mut self, key: Value, value: Value) {
        let slot = word::slot(if key.kind() == Kind::Text { key.label() } else { word::NO_WORD });
        self.keys.insert(slot);
        if let Some(place) = self.slots.get_mut(usize::from(slot & 63)) {
            *place = value;
        }
    }

    /// The value of `key`, unless the dict lacks it.
    #[inline]
    pub(crate) fn get(&self, key: Word) -> Option<Value> {
        if self.keys.has(key) { self.slots.get(key as usize & 63).copied() } else { None }
    }

    /// Like [`Fields::get`], with `None` of the file taken as no value.
    pub(crate) fn some(&self, key: Word) -> Option<Value> {
        self.get(key).filter(|value| value.kind() != Kind::None)
    }

    pub(crate) fn keys(&self) -> Keys {
        self.keys
    }
}

/// What a dict is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    Event,
    Segment,
    Block,
    Annotation,
    History,
    Frame,
    /// The snapshot itself, or its settings: read when everything is there.
    Late,
    /// Some known keys, not enough to tell.
    Unclear,
    /// No known key.
    Foreign,
}

const SEGMENT: Keys = Keys::of(&[Word::TotalSize, Word::SegmentType, Word::Blocks]);
const FRAME: Keys = Keys::of(&[Word::Filename, Word::Line]);
const LATE: Keys = Keys::of(&[
    Word::Segments,
    Word::DeviceTraces,
    Word::AllocatorSettings,
    Word::ExternalAnnotations,
    Word::HostSegments,
    Word::HostTraces,
    Word::CudaAllocConf,
    Word::AllocConf,
    Word::HipAllocConf,
    Word::MaxSplitSize,
    Word::GarbageCollectionThreshold,
    Word::ExpandableSegments,
    Word::RoundupPower2Divisions,
]);

impl Shape {
    /// What a dict with these keys is, as far as they leave no doubt.
    #[inline]
    pub(crate) const fn of(keys: Keys) -> Self {
        if keys.has(Word::Action) {
            Self::Event
        } else if keys.any(LATE) {
            Self::Late
        } else if keys.any(SEGMENT) {
            Self::Segment
        } else if keys.has(Word::State) {
            Self::Block
        } else if keys.has(Word::Stage) {
            Self::Annotation
        } else if keys.has(Word::RealSize) {
            Self::History
        } else if keys.any(FRAME) {
            Self::Frame
        } else if keys.without(Keys::OTHER).is_empty() {
            Self::Foreign
        } else {
            Self::Unclear
        }
    }

    /// What a dict that has all its keys most likely is.
    pub(crate) const fn of_complete(keys: Keys) -> Self {
        match Self::of(keys) {
            Self::Unclear if keys.has(Word::Size) && keys.has(Word::Addr) => Self::Event,
            Self::Unclear if keys.has(Word::Size) && keys.has(Word::Address) => Self::Block,
            Self::Unclear if keys.has(Word::Name) && keys.has(Word::TimeUs) => Self::Annotation,
            Self::Unclear if keys.has(Word::Name) => Self::Frame,
            shape => shape,
        }
    }
}
