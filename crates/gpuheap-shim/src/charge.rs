//! Bytes that are charged as long as something is alive.

use gpuheap_cuda::raw::DeviceId;

use crate::devices::place;
use crate::state;

pub use gpuheap_ledger::Kind;

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

    /// The same, for a request that has another chance if this fails: nobody is told.
    pub(crate) fn try_take(kind: Kind, device: Option<DeviceId>, bytes: usize) -> Option<Self> {
        let (place, bytes) = (place(device), bytes as u64);
        let bytes = if bytes < ABSURD { bytes } else { 0 };
        state::get().ledger.try_take(kind, place, bytes).then(|| Self { kind, place, bytes })
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
