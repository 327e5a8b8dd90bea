//! Bytes that are charged as long as something is alive.

use gpuheap_cuda::raw::DeviceId;

use crate::ledger::{DEVICES, HOST};
use crate::state;

/// What memory is.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `cuMemAlloc`, `cuMemAllocPitch`: what was asked for.
    Linear = 0,
    /// Held by pools of stream-ordered memory.
    Pools = 1,
    /// `cuMemCreate`, on a device.
    Physical = 2,
    /// Arrays, by their dimensions.
    Arrays = 3,
    /// Held by the driver for graphs.
    Graphs = 4,
    /// `cuMemAllocManaged`, wherever it is just now.
    Managed = 5,
    /// `cuMemCreate`, on the host.
    PhysicalHost = 6,
    /// Page-locked memory of the host that the driver gave.
    HostPinned = 7,
    /// Memory of the program that it had page-locked.
    HostRegistered = 8,
    /// Memory that belongs to another process or another interface, which has it in its own figures.
    Imported = 9,
}

/// How many kinds there are.
pub(crate) const KINDS: usize = 10;

const ALL: [Kind; KINDS] = [
    Kind::Linear,
    Kind::Pools,
    Kind::Physical,
    Kind::Arrays,
    Kind::Graphs,
    Kind::Managed,
    Kind::PhysicalHost,
    Kind::HostPinned,
    Kind::HostRegistered,
    Kind::Imported,
];

impl Kind {
    /// The kind of that number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        ALL.get(usize::try_from(number).ok()?).copied()
    }

    pub(crate) fn number(self) -> usize {
        ALL.iter().position(|kind| *kind == self).unwrap_or(0)
    }

    /// Whether it is memory of a device that this process made it take.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Self::Linear | Self::Pools | Self::Physical | Self::Arrays | Self::Graphs)
    }
}

/// Where a device has its figures; what is no device is the host.
pub(crate) fn place(device: Option<DeviceId>) -> usize {
    match device.map(usize::try_from) {
        Some(Ok(device)) => device.min(DEVICES - 1),
        _ => HOST,
    }
}

/// What no device will ever have. The driver refuses such a request; sums of such sizes would not fit.
const ABSURD: u64 = 1 << 56;

/// Charged bytes, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    pub(crate) kind: Kind,
    place: usize,
    bytes: u64,
}

impl Charge {
    /// Charges bytes before they are taken. Nothing if the budget does not have them.
    pub(crate) fn take(kind: Kind, device: Option<DeviceId>, bytes: usize) -> Option<Self> {
        let (place, bytes) = (place(device), bytes as u64);
        let bytes = if bytes < ABSURD { bytes } else { 0 };
        state::get().ledger.take(kind, place, bytes).then(|| Self { kind, place, bytes })
    }

    /// Changes how much is charged, to what is there in any case.
    pub(crate) fn set(&mut self, bytes: u64) {
        let ledger = &state::get().ledger;
        let bytes = if bytes < ABSURD { bytes } else { 0 };
        if bytes > self.bytes {
            ledger.add(self.kind, self.place, bytes - self.bytes);
        } else {
            ledger.give_back(self.kind, self.place, self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// How much is charged.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        state::get().ledger.give_back(self.kind, self.place, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_numbers_that_they_say() {
        for (number, kind) in (0_u32..).zip(ALL) {
            assert_eq!(kind as u32, number);
            assert_eq!(Kind::from_number(number), Some(kind));
            assert_eq!(kind.number(), number as usize);
        }
        assert_eq!(Kind::from_number(10), None);
        assert_eq!((place(Some(3)), place(Some(99)), place(Some(-1)), place(None)), (3, 15, HOST, HOST));
    }
}
