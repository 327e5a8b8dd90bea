//! What is known of physical memory: who holds it, by handles and by mappings.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::charge::Charge;
use crate::chunks::Chunk;

use super::pieces::Pieces;

/// Physical memory that something holds.
#[derive(Debug)]
pub(super) struct Physical {
    pub(super) charge: Mutex<Charge>,
}

/// What is behind a handle or a mapping.
#[derive(Clone, Debug)]
pub(super) enum Held {
    /// Memory that stays where it is.
    Fixed(Arc<Physical>),
    /// Memory that may move.
    Chunk(Arc<Chunk>),
    /// Memory that may move piece by piece: what a token stands for,
    Whole(Arc<Pieces>),
    /// and what is mapped of it at one address.
    Piece(Piece),
}

/// One mapping of several that are one for the program.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) chunk: Arc<Chunk>,
    pub(super) of: Arc<Pieces>,
    /// What the program mapped as one.
    pub(super) start: usize,
    pub(super) bytes: usize,
}

impl Held {
    /// The chunk, if one is behind it alone.
    pub(super) const fn chunk(&self) -> Option<&Arc<Chunk>> {
        match self {
            Self::Chunk(chunk) | Self::Piece(Piece { chunk, .. }) => Some(chunk),
            Self::Fixed(_) | Self::Whole(_) => None,
        }
    }

    /// What the program mapped as one, of which this is mapped at an address.
    pub(super) const fn whole(&self, start: usize, bytes: usize) -> Range<usize> {
        match self {
            Self::Piece(piece) => piece.start..piece.start + piece.bytes,
            _ => start..start + bytes,
        }
    }
}

/// All that is known of it.
#[derive(Debug, Default)]
pub(crate) struct Paging {
    /// By handle or token, how often it was given out.
    pub(super) handles: BTreeMap<u64, (u32, Held)>,
    /// By address, mapped bytes.
    pub(super) mappings: BTreeMap<usize, (usize, Held)>,
}

impl Paging {
    /// What is mapped at an address.
    pub(super) fn at(&self, address: usize) -> Option<Held> {
        let mapped = self.mappings.range(..=address).next_back();
        mapped.filter(|(start, (bytes, _))| address - **start < *bytes).map(|(_, (_, held))| held.clone())
    }

    /// Where what a program mapped as one at an address begins and ends.
    pub(super) fn whole_at(&self, address: usize) -> Option<Range<usize>> {
        let (start, (bytes, held)) = self.mappings.range(..=address).next_back()?;
        (address - start < *bytes).then(|| held.whole(*start, *bytes))
    }

    /// Whether a range cuts through nothing that a program mapped as one.
    pub(super) fn is_whole(&self, range: &Range<usize>) -> bool {
        let at_start = self.whole_at(range.start).is_none_or(|whole| whole.start == range.start);
        let last = range.end.saturating_sub(1);
        at_start && self.whole_at(last).is_none_or(|whole| whole.end == range.end)
    }

    /// A handle is given out, perhaps again.
    pub(super) fn give_out(&mut self, handle: u64, held: Held) {
        self.handles.entry(handle).or_insert((0, held)).0 += 1;
    }

    /// And given back.
    pub(super) fn give_back(&mut self, handle: u64) -> Option<Held> {
        let (count, held) = self.handles.get_mut(&handle)?;
        *count -= 1;
        if *count > 0 {
            return Some(held.clone());
        }
        self.handles.remove(&handle).map(|(_, held)| held)
    }
}
