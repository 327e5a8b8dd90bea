//! Memory of the host that was made and is kept for the next who needs it: making it takes long.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gpuheap_cuda::{Device, Error};

use crate::state::lock;

/// A piece of the host's memory.
pub(crate) trait Piece: Sized + Send {
    /// Makes one of that many bytes, which the device reaches.
    fn make(device: &Device, bytes: usize) -> Result<Self, Error>;

    /// How many it has.
    fn bytes(&self) -> usize;

    /// Makes sure that a device reaches it.
    fn reach(&self, device: &Device) -> Result<(), Error>;

    /// Whether a device reaches it.
    fn is_reached(&self, device: &Device) -> bool;
}

/// Pieces that nobody uses, by their size.
#[derive(Debug)]
pub(crate) struct Pool<P> {
    free: Mutex<BTreeMap<usize, Vec<P>>>,
}

impl<P> Default for Pool<P> {
    fn default() -> Self {
        Self { free: Mutex::default() }
    }
}

/// How many threads make pieces where many are needed: clearing memory is most of the work.
const MAKERS: usize = 8;

impl<P: Piece> Pool<P> {
    /// A piece of `bytes` bytes that `device` reaches, with whatever is in it.
    pub(crate) fn take(&self, device: &Device, bytes: usize) -> Result<P, Error> {
        let kept = lock(&self.free).get_mut(&bytes).and_then(Vec::pop);
        let piece = match kept {
            Some(piece) => piece,
            None => P::make(device, bytes)?,
        };
        match piece.reach(device) {
            Ok(()) => Ok(piece),
            Err(error) => {
                self.give(piece);
                Err(error)
            }
        }
    }

    /// The same of those that are kept, if it is reached already: it takes no time.
    pub(crate) fn take_kept(&self, device: &Device, bytes: usize) -> Option<P> {
        let mut free = lock(&self.free);
        let kept = free.get_mut(&bytes)?;
        let place = kept.iter().rposition(|piece| piece.is_reached(device))?;
        Some(kept.swap_remove(place))
    }

    /// Pieces of these sizes, or as many of the first as there are.
    pub(crate) fn take_all(&self, device: &Device, sizes: &[usize]) -> Vec<P> {
        let mut missing = BTreeMap::<usize, usize>::new();
        for bytes in sizes {
            *missing.entry(*bytes).or_default() += 1;
        }
        for (bytes, free) in lock(&self.free).iter() {
            if let Some(count) = missing.get_mut(bytes) {
                *count = count.saturating_sub(free.len());
            }
        }
        let orders: Vec<usize> =
            missing.into_iter().flat_map(|(bytes, count)| (0..count).map(move |_| bytes)).collect();
        self.make_all(device, orders);
        let mut pieces = Vec::with_capacity(sizes.len());
        for bytes in sizes {
            match self.take(device, *bytes) {
                Ok(piece) => pieces.push(piece),
                Err(_) => break,
            }
        }
        pieces
    }

    /// Makes pieces of these sizes and keeps them, until one cannot be made.
    pub(crate) fn make_all(&self, device: &Device, orders: Vec<usize>) {
        let threads = MAKERS.min(orders.len());
        let orders = Mutex::new(orders);
        let work = || {
            // Whatever ends in an exported function here is this library's own.
            let _inside = crate::depth::Inside::enter();
            loop {
                let Some(bytes) = orders.lock().unwrap_or_else(PoisonError::into_inner).pop() else { break };
                match P::make(device, bytes) {
                    Ok(piece) => self.give(piece),
                    Err(_) => {
                        lock(&orders).clear();
                        break;
                    }
                }
            }
        };
        match threads {
            0 => {}
            1 => {
                if let Some(bytes) = lock(&orders).pop()
                    && let Ok(piece) = P::make(device, bytes)
                {
                    self.give(piece);
                }
            }
            _ => std::thread::scope(|scope| {
                for _ in 0..threads {
                    // Without threads the pieces are made one by one, when they are taken.
                    let _ = std::thread::Builder::new().spawn_scoped(scope, work);
                }
            }),
        }
    }

    /// How many of so many bytes nobody uses.
    pub(crate) fn count(&self, bytes: usize) -> usize {
        lock(&self.free).get(&bytes).map_or(0, Vec::len)
    }

    /// Bytes that nobody uses.
    pub(crate) fn kept(&self) -> u64 {
        lock(&self.free).iter().map(|(bytes, pieces)| *bytes as u64 * pieces.len() as u64).sum()
    }

    /// Gives pieces back to the system until at most so many bytes are kept, the largest first.
    pub(crate) fn trim(&self, most: u64) {
        let mut gone = Vec::new();
        let mut kept = self.kept();
        let mut free = lock(&self.free);
        while kept > most {
            let Some(mut largest) = free.last_entry() else { break };
            if let Some(piece) = largest.get_mut().pop() {
                kept = kept.saturating_sub(piece.bytes() as u64);
                gone.push(piece);
            }
            if largest.get().is_empty() {
                largest.remove();
            }
        }
        drop(free);
        // The driver is called without the lock.
        drop(gone);
    }

    /// Keeps a piece for the next.
    pub(crate) fn give(&self, piece: P) {
        lock(&self.free).entry(piece.bytes()).or_default().push(piece);
    }
}
