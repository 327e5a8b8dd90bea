//! The allocator's settings.

use gpuheap_record::{AllocatorSettings, ROUNDUP_INTERVALS};

use super::objects::{Dict, Objects};
use super::word::Word;
use crate::pickle::{Kind, Value};

/// Limits that no real snapshot reaches: shared texts and dicts must not multiply here.
const MAX_SETTINGS: usize = 256;
const MAX_PAIRS: usize = 64;
const LONG_TEXT: usize = 4096;
const SHORT_TEXT: usize = 80;

/// The first `length` characters of a text.
fn start_of(text: &str, length: usize) -> String {
    text.chars().take(length).collect()
}

impl Objects {
    /// The settings in a dict; `None` if it is no dict of settings.
    pub(super) fn settings(&self, value: Value) -> Option<AllocatorSettings> {
        let pairs = self.pairs_of(value)?;
        let mut settings = AllocatorSettings { known: true, ..AllocatorSettings::default() };
        for &(key, value) in pairs.iter().take(MAX_SETTINGS) {
            let Some(name) = self.texts.get(key) else { continue };
            let label = key.label();
            if [Word::CudaAllocConf, Word::AllocConf, Word::HipAllocConf].iter().any(|&word| word as u8 == label) {
                // The older name wins, as in the allocator, unless it says nothing.
                let conf = self.texts.get(value).unwrap_or_default();
                if settings.conf.is_empty() || (label == Word::CudaAllocConf as u8 && !conf.is_empty()) {
                    conf.clone_into(&mut settings.conf);
                }
            } else if label == Word::MaxSplitSize as u8 {
                // -1 is written for "unlimited". A limit above every size there can be is none either.
                settings.max_split_size = self
                    .float_of(value)
                    .filter(|&size| (0.0..1e15).contains(&size))
                    .and(value.as_int().and_then(|size| u64::try_from(size).ok()));
            } else if label == Word::GarbageCollectionThreshold as u8 {
                let threshold = self.float_of(value).filter(|threshold| threshold.is_finite());
                settings.garbage_collection_threshold = threshold.unwrap_or(0.0);
            } else if label == Word::ExpandableSegments as u8 {
                settings.expandable_segments = value.as_bool().unwrap_or(value.as_int().is_some_and(|n| n != 0));
            } else if label == Word::RoundupPower2Divisions as u8 {
                settings.roundup_power2_divisions = self.divisions(value);
            }
            settings.all.push((start_of(name, LONG_TEXT), self.setting(value)));
        }
        Some(settings)
    }

    /// The pairs of a dict that was kept open.
    pub(super) fn pairs_of(&self, value: Value) -> Option<&[(Value, Value)]> {
        match self.dict_of(value)? {
            Dict::Open(slot) | Dict::Kept(slot) => self.open.get(slot as usize).map(Vec::as_slice),
            Dict::Empty => Some(&[]),
            _ => None,
        }
    }

    /// Divisions by interval: keys are the lower ends of the intervals in MB, powers of two from 1 on.
    fn divisions(&self, value: Value) -> [u64; ROUNDUP_INTERVALS] {
        let mut divisions = [0; ROUNDUP_INTERVALS];
        if let Some(same) = value.as_int().and_then(|same| u64::try_from(same).ok()) {
            return [same; ROUNDUP_INTERVALS];
        }
        for &(key, value) in self.pairs_of(value).unwrap_or_default() {
            let size = match self.texts.get(key) {
                Some(text) => text.parse::<u64>().ok(),
                None => key.as_int().and_then(|size| u64::try_from(size).ok()),
            };
            let interval = size.filter(|size| size.is_power_of_two()).map_or(usize::MAX, |size| size.ilog2() as usize);
            if let (Some(place), Some(value)) = (divisions.get_mut(interval), value.as_int()) {
                *place = u64::try_from(value).unwrap_or(0);
            }
        }
        divisions
    }

    /// The value of a setting as a text.
    fn setting(&self, value: Value) -> String {
        if let Some(text) = self.texts.get(value) {
            return start_of(text, LONG_TEXT);
        }
        match self.pairs_of(value) {
            Some(pairs) if pairs.len() <= MAX_PAIRS => {
                let pairs =
                    pairs.iter().map(|&(key, value)| format!("{}:{}", self.describe(key), self.describe(value)));
                pairs.collect::<Vec<_>>().join(",")
            }
            _ => self.describe(value),
        }
    }

    /// A value as a short text, for messages.
    pub(super) fn describe(&self, value: Value) -> String {
        match value.kind() {
            Kind::None => "None".to_owned(),
            Kind::Bool => if value.as_bool() == Some(true) { "True" } else { "False" }.to_owned(),
            Kind::Int => value.as_int().unwrap_or_default().to_string(),
            Kind::Wide => self.wide.get(value.id() as usize).copied().unwrap_or_default().to_string(),
            Kind::Float => format!("{:?}", self.floats.get(value.id() as usize).copied().unwrap_or_default()),
            Kind::Text => start_of(self.texts.get(value).unwrap_or_default(), SHORT_TEXT),
            Kind::List => "a list".to_owned(),
            Kind::Dict => "a dict".to_owned(),
            Kind::Tuple | Kind::Made => "a tuple".to_owned(),
            Kind::Opaque => "another object".to_owned(),
        }
    }
}
