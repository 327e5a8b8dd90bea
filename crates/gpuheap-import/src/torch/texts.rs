//! Every distinct text of the file, while it is read.

use foldhash::fast::RandomState;
use gpuheap_record::{StringId, StringTable};
use hashbrown::HashTable;
use std::hash::BuildHasher;

use super::word;
use crate::pickle::{Kind, Value};

/// A text in [`Texts`].
#[derive(Clone, Copy)]
struct Row {
    start: usize,
    length: u32,
    /// Its id in the recording, once something that stays in the recording used it.
    string: Option<StringId>,
    label: u8,
}

/// The longest text that is kept whole, in bytes: every name and path is shorter on any system.
const MOST_BYTES: usize = 4096;

/// Every distinct text. Keys, actions and much that is never used again pass through here; the recording's own table
/// gets only what its rows refer to.
#[derive(Default)]
pub(crate) struct Texts {
    bytes: String,
    rows: Vec<Row>,
    index: HashTable<u32>,
    hasher: RandomState,
    /// Bytes of the texts that are in the recording as well.
    kept: usize,
}

impl Texts {
    pub(crate) fn intern(&mut self, text: &[u8]) -> Value {
        if text.len() > MOST_BYTES {
            return self.intern_cut(text);
        }
        if let Some(value) = self.find(text) {
            return value;
        }
        match std::str::from_utf8(text) {
            Ok(text) => self.insert(text),
            // Python writes file names that are no UTF-8 as lone surrogates. Nothing here needs them back.
            Err(_) => {
                let text = String::from_utf8_lossy(text);
                self.find(text.as_bytes()).unwrap_or_else(|| self.insert(&text))
            }
        }
    }

    /// A text that is too long for a name or a path: its start.
    #[cold]
    fn intern_cut(&mut self, text: &[u8]) -> Value {
        let start = String::from_utf8_lossy(&text[..MOST_BYTES - 8]);
        let start = start.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let cut: String = start.chars().take(MOST_BYTES / 4).chain(['…']).collect();
        self.find(cut.as_bytes()).unwrap_or_else(|| self.insert(&cut))
    }

    #[inline]
    fn find(&self, text: &[u8]) -> Option<Value> {
        let found = self.index.find(self.hasher.hash_one(text), |&row| {
            self.rows.get(row as usize).is_some_and(|row| self.bytes_of(row) == text)
        });
        found.map(|&row| self.value(row))
    }

    fn insert(&mut self, text: &str) -> Value {
        let Ok(id) = u32::try_from(self.rows.len()) else { return Value::OPAQUE };
        let start = self.bytes.len();
        self.bytes.push_str(text);
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.rows.push(Row { start, length, string: None, label: word::label(text.as_bytes()) });
        let (rows, bytes, hasher) = (&self.rows, self.bytes.as_bytes(), &self.hasher);
        self.index.insert_unique(hasher.hash_one(text.as_bytes()), id, |&row| {
            let row = rows.get(row as usize);
            hasher
                .hash_one(row.and_then(|row| bytes.get(row.start..row.start + row.length as usize)).unwrap_or_default())
        });
        self.value(id)
    }

    fn value(&self, id: u32) -> Value {
        let label = self.rows.get(id as usize).map_or(word::NO_WORD, |row| row.label);
        Value::labelled(Kind::Text, id, label)
    }

    #[inline]
    fn bytes_of(&self, row: &Row) -> &[u8] {
        self.bytes.as_bytes().get(row.start..row.start + row.length as usize).unwrap_or_default()
    }

    pub(crate) fn get(&self, value: Value) -> Option<&str> {
        let row = self.rows.get(value.id_of(Kind::Text)? as usize)?;
        self.bytes.get(row.start..row.start + row.length as usize)
    }

    /// The id of a text in the recording's table, which gets it if it lacks it.
    pub(crate) fn string(&mut self, value: Value, strings: &mut StringTable) -> Option<StringId> {
        let row = self.rows.get_mut(value.id_of(Kind::Text)? as usize)?;
        if row.string.is_none() {
            let text = self.bytes.get(row.start..row.start + row.length as usize)?;
            row.string = Some(strings.intern(text));
            self.kept += text.len();
        }
        row.string
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.kept
            + self.rows.capacity() * size_of::<Row>()
            + self.index.capacity() * (size_of::<u32>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one_value() {
        let mut texts = Texts::default();
        let first = texts.intern(b"train.py");
        let key = texts.intern(b"action");
        assert!(texts.intern(b"train.py") == first);
        assert_eq!(texts.get(first), Some("train.py"));
        assert_eq!(key.label(), word::Word::Action as u8);
        let mut strings = StringTable::new();
        strings.intern("");
        assert_eq!(texts.string(first, &mut strings), Some(StringId::new(1)));
        assert_eq!(texts.string(first, &mut strings), Some(StringId::new(1)));
        assert_eq!(texts.string(Value::NONE, &mut strings), None);
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        let mut texts = Texts::default();
        let broken = texts.intern(b"a\xed\xb2\x80");
        assert_eq!(texts.get(broken), Some("a\u{fffd}\u{fffd}\u{fffd}"));
        assert!(texts.intern(b"a\xed\xb2\x80") == broken);
    }
}
