//! What a policy asks for memory.

use std::collections::BTreeMap;

/// A source of device memory: the driver, or something that stands in for it.
pub trait Device {
    /// `size` bytes of memory: the address, or `None` if there are not so many left.
    fn allocate(&mut self, size: u64) -> Option<u64>;

    /// Gives back what [`Device::allocate`] gave out at `address`.
    fn free(&mut self, address: u64);

    /// Addresses without memory, for a segment that grows by handles of `handle` bytes: the first address and how many
    /// bytes, whole handles. `None` if there are none left.
    fn reserve(&mut self, handle: u64) -> Option<(u64, u64)>;

    /// Puts `size` bytes of memory behind reserved addresses: whether there are so many left.
    fn map(&mut self, size: u64) -> bool;

    /// Takes `size` bytes of memory from behind reserved addresses.
    fn unmap(&mut self, size: u64);
}

/// Which way the addresses of a [`SimulatedDevice`] go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direction {
    /// From the top down.
    #[default]
    Descending,
    /// From the bottom up.
    Ascending,
}

/// A device that hands out addresses without memory behind them.
///
/// The address decides which of two equally large free blocks a best-fit search takes first. Real drivers hand out
/// descending addresses for most programs, ascending ones for some: a recording shows which.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    limit: Option<u64>,
    used: u64,
    direction: Direction,
    /// Where the next allocation ends (descending) or begins (ascending).
    next: u64,
    live: BTreeMap<u64, u64>,
}

impl SimulatedDevice {
    /// Where the first allocation ends: no program runs out of addresses.
    const TOP: u64 = 1 << 62;
    /// Where the first allocation begins.
    const BOTTOM: u64 = 1 << 40;
    /// The driver aligns what it gives out to 2 MiB.
    const ALIGNMENT: u64 = 2 << 20;

    /// Bytes of addresses for one expandable segment: more than any card has.
    const RANGE: u64 = 1 << 40;

    /// A device with `limit` bytes of memory; `None` for as much as anyone asks for.
    #[must_use]
    pub fn new(limit: Option<u64>) -> Self {
        Self { limit, used: 0, direction: Direction::Descending, next: Self::TOP, live: BTreeMap::new() }
    }

    /// The same with addresses that go the other way.
    #[must_use]
    pub fn going(self, direction: Direction) -> Self {
        let next = if direction == Direction::Descending { Self::TOP } else { Self::BOTTOM };
        Self { direction, next, ..self }
    }

    /// Bytes that are given out.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    fn take(&mut self, size: u64) -> Option<()> {
        let used = self.used.checked_add(size)?;
        if self.limit.is_some_and(|limit| used > limit) {
            return None;
        }
        self.used = used;
        Some(())
    }

    fn addresses(&mut self, size: u64) -> Option<u64> {
        match self.direction {
            Direction::Descending => {
                self.next = self.next.checked_sub(size)? / Self::ALIGNMENT * Self::ALIGNMENT;
                Some(self.next)
            }
            Direction::Ascending => {
                let address = self.next;
                self.next = address.checked_add(size)?.checked_next_multiple_of(Self::ALIGNMENT)?;
                Some(address)
            }
        }
    }
}

impl Device for SimulatedDevice {
    fn allocate(&mut self, size: u64) -> Option<u64> {
        self.take(size)?;
        let address = self.addresses(size)?;
        self.live.insert(address, size);
        Some(address)
    }

    fn free(&mut self, address: u64) {
        if let Some(size) = self.live.remove(&address) {
            self.used -= size;
        }
    }

    fn reserve(&mut self, handle: u64) -> Option<(u64, u64)> {
        let size = Self::RANGE / handle * handle;
        Some((self.addresses(size)?, size))
    }

    fn map(&mut self, size: u64) -> bool {
        self.take(size).is_some()
    }

    fn unmap(&mut self, size: u64) {
        self.used -= size.min(self.used);
    }
}
