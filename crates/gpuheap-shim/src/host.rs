//! Memory of the host for what does not stay on a device. It is made once and kept: making it takes a second for 4 GiB,
//! which nobody wants to wait for twice.
//!
//! Each piece has addresses of its own in all of its life, through which it is copied to and from, apart from those of
//! a chunk that it may stand behind: so a copy needs no mapping to be made.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gpuheap_cuda::raw::{AllocationHandle, DeviceId, DevicePtr};
use gpuheap_cuda::{Access, Attribute, Device, DeviceMemory, Driver, Error, Location, Mapping, Physical, Reservation};

use crate::state::lock;

/// A piece of the host's memory that devices reach.
#[derive(Debug)]
pub(crate) struct Piece {
    mapping: Mapping,
    /// Devices that reach it.
    reached: Mutex<Vec<DeviceId>>,
}

impl Piece {
    /// Where copies find it.
    pub(crate) fn window(&self) -> DevicePtr {
        self.mapping.address()
    }

    /// What to map elsewhere.
    pub(crate) fn handle(&self) -> AllocationHandle {
        self.mapping.physical().handle()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Makes sure that a device reaches the window.
    fn reach(&self, device: &Device) -> Result<(), Error> {
        if lock(&self.reached).contains(&device.id()) {
            return Ok(());
        }
        self.mapping.set_access(device, Access::ReadWrite)?;
        lock(&self.reached).push(device.id());
        Ok(())
    }
}

/// Pieces that nobody uses, by their size.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Mutex<BTreeMap<usize, Vec<Piece>>>,
}

/// How many threads make pieces where many are needed: clearing memory is most of the work.
const MAKERS: usize = 8;

impl Pool {
    /// A piece of `bytes` bytes that `device` reaches, with whatever is in it.
    pub(crate) fn take(&self, device: &Device, bytes: usize) -> Result<Piece, Error> {
        let kept = lock(&self.free).get_mut(&bytes).and_then(Vec::pop);
        let piece = match kept {
            Some(piece) => piece,
            None => make(device, bytes)?,
        };
        match piece.reach(device) {
            Ok(()) => Ok(piece),
            Err(error) => {
                self.give(piece);
                Err(error)
            }
        }
    }

    /// Pieces of these sizes, or as many of the first as there are.
    pub(crate) fn take_all(&self, device: &Device, sizes: &[usize]) -> Vec<Piece> {
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
                match make(device, bytes) {
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
                    && let Ok(piece) = make(device, bytes)
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

    /// Keeps a piece for the next.
    pub(crate) fn give(&self, piece: Piece) {
        lock(&self.free).entry(piece.bytes()).or_default().push(piece);
    }
}

fn make(device: &Device, bytes: usize) -> Result<Piece, Error> {
    let driver: &Driver = device.driver();
    let physical = on_any_node(device, bytes)?;
    let mapping = Reservation::new(driver, bytes)?.map(0, &physical)?;
    mapping.set_access(device, Access::ReadWrite)?;
    Ok(Piece { mapping, reached: Mutex::new(vec![device.id()]) })
}

/// On the node beside the device, if the driver gives memory of that one, else of another: some nodes have no processors,
/// or none that this process may use.
fn on_any_node(device: &Device, bytes: usize) -> Result<Physical, Error> {
    const NODES: i32 = 8;
    let near = device.attribute(Attribute::HOST_NUMA_ID).unwrap_or(0).max(0);
    let mut made = Physical::new(device.driver(), Location::HostNuma(near), bytes);
    for node in (0..NODES).filter(|node| *node != near) {
        // A node that lacks memory is another matter than one that nobody gets memory of.
        if matches!(&made, Err(Error::Call { code, .. }) if *code != gpuheap_cuda::raw::Code::OUT_OF_MEMORY) {
            made = Physical::new(device.driver(), Location::HostNuma(node), bytes);
        }
    }
    made
}

/// Bytes of host memory for a setting: a number, or `auto` for most of what is free just now. 0 for anything else.
pub(crate) fn limit(setting: &str) -> u64 {
    if setting == "auto" {
        return std::fs::read_to_string("/proc/meminfo").map_or(0, |text| available(&text) / 10 * 8);
    }
    setting.parse().unwrap_or(0)
}

/// Bytes that programs can still have, as the kernel tells it.
fn available(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")).and_then(|number| number.trim().parse().ok());
    kibibytes.map_or(0, |kibibytes: u64| kibibytes.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_a_number_or_most_of_what_is_free() {
        assert_eq!((limit("4096"), limit("much"), limit("")), (4096, 0, 0));
        assert_eq!(available("MemTotal: 5 kB\nMemAvailable:   1000 kB\n"), 1_024_000);
        assert_eq!(available("nothing of the kind"), 0);
        assert!(limit("auto") > 0);
    }
}
