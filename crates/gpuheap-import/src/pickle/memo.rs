//! The memo: what a pickle stored under a number to refer to it again.

use foldhash::HashMap;

use super::value::Value;

/// Numbered values. Every pickler numbers them 0, 1, 2, …, so they are a dense array; a number far beyond the end
/// (only a crafted file has one) goes to a map instead of making the array that long.
#[derive(Default)]
pub(crate) struct Memo {
    dense: Vec<Value>,
    sparse: HashMap<u32, Value>,
}

impl Memo {
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<Value> {
        match self.dense.get(index as usize) {
            Some(&value) => Some(value),
            None => self.get_sparse(index),
        }
    }

    #[cold]
    fn get_sparse(&self, index: u32) -> Option<Value> {
        self.sparse.get(&index).copied()
    }

    /// Stores `value` under the next free number, as `MEMOIZE` does.
    #[inline]
    pub(crate) fn push(&mut self, value: Value) {
        if self.sparse.is_empty() {
            self.dense.push(value);
        } else {
            // CPython's number is the count of stored values, whatever their numbers.
            self.put(u32::try_from(self.dense.len() + self.sparse.len()).unwrap_or(u32::MAX), value);
        }
    }

    pub(crate) fn put(&mut self, index: u32, value: Value) {
        if let Some(slot) = self.dense.get_mut(index as usize) {
            *slot = value;
        } else if index as usize == self.dense.len() {
            self.sparse.remove(&index);
            self.dense.push(value);
            while !self.sparse.is_empty() {
                let Ok(next) = u32::try_from(self.dense.len()) else { break };
                let Some(value) = self.sparse.remove(&next) else { break };
                self.dense.push(value);
            }
        } else {
            self.sparse.insert(index, value);
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.dense.capacity() * size_of::<Value>() + self.sparse.capacity() * (size_of::<(u32, Value)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_numbers_take_no_room_until_the_array_reaches_them() {
        let mut memo = Memo::default();
        let value = |number| Value::small(number);
        memo.put(u32::MAX, value(1));
        memo.put(2, value(2));
        memo.put(0, value(0));
        assert!(memo.heap_bytes() < 4096);
        memo.put(1, value(9));
        assert_eq!(memo.dense.len(), 3);
        assert_eq!([0, 1, 2, u32::MAX].map(|index| memo.get(index)), [0, 9, 2, 1].map(|v| Some(value(v))));
        assert_eq!(memo.get(3), None);
        memo.push(value(5));
        assert_eq!(memo.get(4), Some(value(5)), "four values were stored before");
    }
}
