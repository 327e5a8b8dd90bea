//! Tables in which every distinct value stands once.

use std::hash::Hash;
use std::marker::PhantomData;

use foldhash::fast::RandomState;
use indexmap::{Equivalent, IndexSet};

use crate::id::{FrameId, PoolId, StreamId, StringId, TypedId};
use crate::stack::Frame;

/// A set of values with a typed id for each, in the order in which they were first seen.
#[derive(Clone, Debug)]
pub struct Table<Id, T> {
    values: IndexSet<T, RandomState>,
    id: PhantomData<Id>,
}

/// Every string of a recording (function names, files, annotations). Id 0 is the empty string.
pub type StringTable = Table<StringId, Box<str>>;
/// Every frame of a recording.
pub type FrameTable = Table<FrameId, Frame>;
/// Every stream of a recording, by its raw handle. Id 0 is handle 0, the default stream.
pub type StreamTable = Table<StreamId, u64>;
/// Every pool of a recording, by the pair that identifies it. Id 0 is `(0, 0)`, the default pool.
pub type PoolTable = Table<PoolId, (u64, u64)>;

impl<Id: TypedId, T: Hash + Eq> Table<Id, T> {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self { values: IndexSet::default(), id: PhantomData }
    }

    /// The id of `value`, which is added if it is new.
    ///
    /// # Panics
    /// When the table holds 2³² values. Importers bound their tables by the size of the input long before.
    pub fn insert(&mut self, value: T) -> Id {
        let (index, _) = self.values.insert_full(value);
        Id::try_from_index(index).expect("a table holds fewer than 2^32 values")
    }

    /// The id of `value`, if it is in the table.
    pub fn find<Q: ?Sized + Hash + Equivalent<T>>(&self, value: &Q) -> Option<Id> {
        self.values.get_index_of(value).and_then(Id::try_from_index)
    }

    /// The value of `id`, or `None` if the table has no such row.
    #[must_use]
    pub fn get(&self, id: Id) -> Option<&T> {
        self.values.get_index(id.index())
    }

    /// How many distinct values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// All values with their ids, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        self.values.iter().enumerate().filter_map(|(index, value)| Some((Id::try_from_index(index)?, value)))
    }
}

impl StringTable {
    /// The id of `text`, which is added if it is new.
    pub fn intern(&mut self, text: &str) -> StringId {
        match self.find(text) {
            Some(id) => id,
            None => self.insert(text.into()),
        }
    }

    /// The text of `id` (empty if the table has no such row).
    #[must_use]
    pub fn text(&self, id: StringId) -> &str {
        self.get(id).map_or("", |text| text)
    }
}

impl<Id: TypedId, T: Hash + Eq> Default for Table<Id, T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_an_id() {
        let mut strings = StringTable::new();
        let first = strings.intern("forward");
        assert_eq!(strings.intern("backward"), StringId::new(1));
        assert_eq!(strings.intern("forward"), first);
        assert_eq!(strings.text(first), "forward");
        assert_eq!(strings.text(StringId::new(9)), "");
        assert_eq!(strings.len(), 2);
    }
}
