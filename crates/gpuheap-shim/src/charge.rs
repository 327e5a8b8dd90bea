//! Bytes that are charged as long as something is alive.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap_cuda::raw::DeviceId;
use gpuheap_ledger::events::What;
use gpuheap_ledger::limit_of;

use crate::ahead;
use crate::devices::place;
use crate::events::{self, Charged, Memory};
use crate::origin::{self, Origin};
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
    origin: Origin,
    /// Under which number events are written about it.
    charged: Charged,
}

impl Charge {
    /// Charges bytes before they are taken, to whoever called the overridden function. Nothing if the budget does not
    /// have them.
    pub(crate) fn take(kind: Kind, device: Option<DeviceId>, bytes: usize) -> Option<Self> {
        Self::take_for(origin::of_caller(), kind, device, bytes)
    }

    /// The same, to somebody who is known already.
    pub(crate) fn take_for(origin: Origin, kind: Kind, device: Option<DeviceId>, bytes: usize) -> Option<Self> {
        let (place, bytes) = (place(device), sane(bytes as u64));
        let ledger = &state::get().ledger;
        if let Some(device) = device
            && kind.counts()
            && ledger.room(place).is_some_and(|room| room < bytes)
        {
            // What is refused is told, so this comes first.
            ahead::make_way(device);
        }
        if ledger.take(kind, place, bytes) {
            return Some(Self::begin(origin, kind, place, bytes));
        }
        events::note(What::Denied, Memory { kind, origin, place, bytes }, left(kind, place));
        None
    }

    /// As [`Charge::take`], for a request that has another chance if this fails: nobody is told.
    pub(crate) fn try_take(kind: Kind, device: Option<DeviceId>, bytes: usize) -> Option<Self> {
        Self::try_take_for(origin::of_caller(), kind, device, bytes)
    }

    /// The same, to somebody who is known already.
    pub(crate) fn try_take_for(origin: Origin, kind: Kind, device: Option<DeviceId>, bytes: usize) -> Option<Self> {
        let (place, bytes) = (place(device), sane(bytes as u64));
        let taken = state::get().ledger.try_take(kind, place, bytes);
        taken.then(|| Self::begin(origin, kind, place, bytes))
    }

    /// Tells that a request was refused whose parts were tried without a word: those who look at the run are told of all of
    /// it.
    pub(crate) fn refuse(kind: Kind, device: Option<DeviceId>, bytes: usize) {
        let (place, bytes) = (place(device), sane(bytes as u64));
        if state::get().ledger.refuse(kind, place, bytes) {
            events::note(What::Denied, Memory { kind, origin: origin::of_caller(), place, bytes }, left(kind, place));
        }
    }

    /// Charges bytes that are taken already, or that nobody may refuse.
    pub(crate) fn hold(origin: Origin, kind: Kind, device: Option<DeviceId>, bytes: usize) -> Self {
        let (place, bytes) = (place(device), sane(bytes as u64));
        state::get().ledger.add(kind, place, bytes);
        Self::begin(origin, kind, place, bytes)
    }

    fn begin(origin: Origin, kind: Kind, place: usize, bytes: u64) -> Self {
        if let Some(held) = of_origin(kind, place, origin) {
            held.fetch_add(bytes, Ordering::SeqCst);
        }
        Self { kind, place, bytes, origin, charged: events::taken(Memory { kind, origin, place, bytes }) }
    }

    /// Charges the same bytes to somebody else. At no time are they nobody's, for another to take.
    pub(crate) fn pass_on(self, origin: Origin) -> Self {
        // What is held in all stays as it is: only what its origin holds is given back.
        let former = ManuallyDrop::new(self);
        if let Some(held) = of_origin(former.kind, former.place, former.origin) {
            state::get().ledger.slot().lower(held, former.bytes);
        }
        events::given_back(former.charged, former.memory());
        Self::begin(origin, former.kind, former.place, former.bytes)
    }

    /// Says where the driver put it, an address or a handle, for those who read what happened.
    pub(crate) fn at(&self, address: usize) {
        events::placed(self.charged, address);
    }

    /// Changes how much is charged, to what is there in any case. Whoever asked for the first of it is charged.
    pub(crate) fn set(&mut self, bytes: u64) {
        let ledger = &state::get().ledger;
        let bytes = sane(bytes);
        let held = of_origin(self.kind, self.place, self.origin);
        if bytes > self.bytes {
            ledger.add(self.kind, self.place, bytes - self.bytes);
            if let Some(held) = held {
                held.fetch_add(bytes - self.bytes, Ordering::SeqCst);
            }
        } else {
            ledger.give_back(self.kind, self.place, self.bytes - bytes);
            if let Some(held) = held {
                ledger.slot().lower(held, self.bytes - bytes);
            }
        }
        self.bytes = bytes;
        events::changed(self.charged, self.memory());
    }

    /// Who asked for it.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// How much is charged.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All of that, with whoever asked for it.
    pub(crate) fn memory(&self) -> Memory {
        Memory { kind: self.kind, origin: self.origin, place: self.place, bytes: self.bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let ledger = &state::get().ledger;
        ledger.give_back(self.kind, self.place, self.bytes);
        if let Some(held) = of_origin(self.kind, self.place, self.origin) {
            ledger.slot().lower(held, self.bytes);
        }
        events::given_back(self.charged, self.memory());
    }
}

/// What is left of a device's budget.
fn left(kind: Kind, place: usize) -> usize {
    let ledger = &state::get().ledger;
    let left = if kind.counts() { ledger.budget(place).saturating_sub(ledger.used(place)) } else { 0 };
    usize::try_from(left).unwrap_or(usize::MAX)
}

fn sane(bytes: u64) -> u64 {
    if bytes < ABSURD { bytes } else { 0 }
}

/// Where the ledger has what an origin holds within a limit: so that all origins together hold what counts against it.
fn of_origin(kind: Kind, place: usize, origin: Origin) -> Option<&'static AtomicU64> {
    state::get().ledger.slot().origins.get(limit_of(kind, place)?)?.get(origin.number())
}
