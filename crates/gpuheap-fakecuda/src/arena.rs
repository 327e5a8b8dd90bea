//! Small blocks out of large chunks: what the driver does for small allocations and in pools.

use std::collections::BTreeMap;

/// Chunks, cut into blocks.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// By address, all chunks and their sizes.
    chunks: BTreeMap<usize, usize>,
    /// By address, what is free. Neighbours within a chunk are one.
    free: BTreeMap<usize, usize>,
}

impl Arena {
    /// Takes the smallest free range that is large enough.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<usize> {
        let fitting = self.free.iter().filter(|(_, size)| **size >= bytes);
        let (address, size) = fitting.min_by_key(|(_, size)| **size).map(|(address, size)| (*address, *size))?;
        self.free.remove(&address);
        if size > bytes {
            self.free.insert(address + bytes, size - bytes);
        }
        Some(address)
    }

    /// Puts a chunk in, free.
    pub(crate) fn add_chunk(&mut self, address: usize, bytes: usize) {
        self.chunks.insert(address, bytes);
        self.free.insert(address, bytes);
    }

    /// Puts a block back.
    pub(crate) fn give_back(&mut self, address: usize, bytes: usize) {
        let Some((chunk, size)) = self.chunks.range(..=address).next_back().map(|(chunk, size)| (*chunk, *size)) else {
            return;
        };
        let (mut start, mut end) = (address, address + bytes);
        if let Some((before, length)) = self.free.range(chunk..address).next_back().map(|(at, size)| (*at, *size))
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
        }
        if end < chunk + size
            && let Some(length) = self.free.remove(&end)
        {
            end += length;
        }
        self.free.insert(start, end - start);
    }

    /// Takes chunks out that are free as a whole, as long as that leaves at least `keep` bytes in all.
    pub(crate) fn trim(&mut self, keep: usize) -> Vec<(usize, usize)> {
        let mut held: usize = self.chunks.values().sum();
        let idle = self.chunks.iter().filter(|(at, size)| self.free.get(*at) == Some(*size));
        let idle: Vec<(usize, usize)> = idle.map(|(at, size)| (*at, *size)).collect();
        let mut gone = Vec::new();
        for (address, bytes) in idle {
            if held - bytes < keep {
                continue;
            }
            held -= bytes;
            self.chunks.remove(&address);
            self.free.remove(&address);
            gone.push((address, bytes));
        }
        gone
    }

    /// Bytes of all chunks.
    pub(crate) fn held(&self) -> usize {
        self.chunks.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_from_the_smallest_hole_and_join_again() {
        let mut arena = Arena::default();
        assert_eq!(arena.take(1), None);
        arena.add_chunk(1000, 100);
        arena.add_chunk(2000, 50);
        assert_eq!(arena.take(40), Some(2000));
        assert_eq!(arena.take(10), Some(2040), "the smallest hole");
        assert_eq!(arena.take(30), Some(1000));
        assert_eq!(arena.take(30), Some(1030));
        arena.give_back(1000, 30);
        assert_eq!(arena.trim(0), [], "neither chunk is free as a whole");
        arena.give_back(1030, 30);
        assert_eq!(arena.trim(100), [], "would leave less than what is to be kept");
        assert_eq!(arena.trim(0), [(1000, 100)]);
        assert_eq!(arena.held(), 50);
    }
}
