//! What a policy asks for memory.

use std::collections::BTreeMap;

/// A source of device memory: the driver, or something that stands in for it.
pub trait Device {
    /// `size` bytes of memory: the address, or `None` if there are not so many left.
    fn allocate(&mut self, size: u64) -> Option<u64>;

    /// Gives back what [`Device::allocate`] gave out at `address`.
    fn free(&mut self, address: u64);
}

/// A device that hands out addresses without memory behind them.
///
/// Addresses descend from the top of the address space. The address decides which of two equally large free blocks a
/// best-fit search takes first, and descending addresses reproduced the segment events of every recording that was
/// tried (ascending and random ones did not).
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    limit: Option<u64>,
    used: u64,
    next_top: u64,
    live: BTreeMap<u64, u64>,
}

impl SimulatedDevice {
    /// Where the first allocation ends.
    const TOP: u64 = 0x7fff_0000_0000;
    /// The driver aligns what it gives out to 2 MiB.
    const ALIGNMENT: u64 = 2 << 20;

    /// A device with `limit` bytes of memory; `None` for as much as anyone asks for.
    #[must_use]
    pub fn new(limit: Option<u64>) -> Self {
        Self { limit, used: 0, next_top: Self::TOP, live: BTreeMap::new() }
    }

    /// Bytes that are given out.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }
}

impl Device for SimulatedDevice {
    fn allocate(&mut self, size: u64) -> Option<u64> {
        let used = self.used.checked_add(size)?;
        if self.limit.is_some_and(|limit| used > limit) {
            return None;
        }
        let address = self.next_top.checked_sub(size)? / Self::ALIGNMENT * Self::ALIGNMENT;
        self.next_top = address;
        self.used = used;
        self.live.insert(address, size);
        Some(address)
    }

    fn free(&mut self, address: u64) {
        if let Some(size) = self.live.remove(&address) {
            self.used -= size;
        }
    }
}
