//! What is known of physical memory: who holds it, by handles and by mappings.

use std::collections::BTreeMap;
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
    Piece(Arc<Chunk>, Arc<Pieces>),
}

impl Held {
    /// The chunk, if one is behind it alone.
    pub(super) const fn chunk(&self) -> Option<&Arc<Chunk>> {
        match self {
            Self::Chunk(chunk) | Self::Piece(chunk, _) => Some(chunk),
            Self::Fixed(_) | Self::Whole(_) => None,
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
