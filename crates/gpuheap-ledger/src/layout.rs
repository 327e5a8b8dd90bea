//! The shared memory of a run.
//!
//! Each process has a slot, and only it writes there. So there is nothing to lock and nothing to repair: when a process
//! is killed, at whatever point, its slot says what it held, and is taken out by whoever sees that its owner is dead.
//! All of it is atomics of 64 bits in the machine's order of bytes, and zero is a value of each: a file of zeroes with
//! [`MAGIC`] in front is a ledger.

use crate::denials::Ring;
use crate::file::Limits;
use crate::kind::{KINDS, Kind};
use crate::name::Name;
use crate::sync::{AtomicU64, Ordering};
use crate::uuid::Uuid;

/// Devices with figures of their own; what is beyond shares the last one's.
pub const DEVICES: usize = if cfg!(loom) { 2 } else { 16 };
/// The place of the host among devices.
pub const HOST: usize = DEVICES;
/// How many limits a run has: the budget of each device, and at [`HOST`] that of spilled memory.
pub const LIMITS: usize = DEVICES + 1;
/// How many processes count at once.
pub const SLOTS: usize = if cfg!(loom) { 3 } else { 256 };
/// How many origins of memory are told apart on a device, and of what is spilled.
pub const ORIGINS: usize = if cfg!(loom) { 1 } else { 16 };
/// Says what the file is, in which form: a file of another form is left alone.
pub const MAGIC: u64 = u64::from_le_bytes(*b"gpuheap3");

/// Tells libraries and commands of different forms from one another: whoever shares a ledger has the same.
#[allow(clippy::cast_possible_truncation, reason = "a megabyte")]
pub const VERSION: u32 = size_of::<Shared>() as u32;

/// All of it.
#[repr(C)]
#[derive(Debug)]
pub struct Shared {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Slots that were ever taken: those beyond need no look.
    pub used: AtomicU64,
    /// The process that began the run, an [`Identity`](crate::Identity); 0 if nobody says so.
    pub runner: AtomicU64,
    /// By device, the most bytes that the run may hold; 0 is no budget.
    pub budgets: [AtomicU64; DEVICES],
    /// The most bytes of host memory that the run may use behind addresses of devices; 0 is none.
    pub spill: AtomicU64,
    /// By limit, the most bytes that all processes together ever held.
    pub peaks: [AtomicU64; LIMITS],
    /// Bytes that processes which are gone moved from devices to the host.
    pub moved_out: AtomicU64,
    /// Bytes that processes which are gone moved back.
    pub moved_in: AtomicU64,
    /// Processes that took a slot, those that are gone included.
    pub joined: AtomicU64,
    /// Which device has which place.
    pub devices: [Place; DEVICES],
    /// The last requests that were refused.
    pub denials: Ring,
    /// By process.
    pub slots: [Slot; SLOTS],
}

/// Whose figures are where, of devices.
#[repr(C)]
#[derive(Debug)]
pub struct Place {
    /// Tells the device from all others; 0 as long as it is nobody's. Once set it stays.
    pub key: AtomicU64,
    /// Its UUID, for whoever wants to name it. All that have this device write the same, so that it comes to be there
    /// whoever is killed in between.
    pub uuid: [AtomicU64; 2],
}

/// A process's figures.
#[repr(C)]
#[derive(Debug)]
pub struct Slot {
    /// Whose it is, an [`Identity`](crate::Identity); 0 is nobody's.
    pub owner: AtomicU64,
    /// Tells what the owner was before an exec from what it is after; 0 until the slot is ready.
    pub program: AtomicU64,
    /// What the system calls the process, as a [`Name`].
    pub name: [AtomicU64; 2],
    /// By limit, bytes that count against it.
    pub limited: [AtomicU64; LIMITS],
    /// By limit, the most that this ever was.
    pub peak: [AtomicU64; LIMITS],
    /// By device, by kind.
    pub bytes: [[AtomicU64; KINDS]; DEVICES + 1],
    /// By limit, bytes that count against it by who asked for them: of a device, and at [`HOST`] of what is spilled.
    pub origins: [[AtomicU64; ORIGINS]; LIMITS],
    /// A [`State`].
    pub state: AtomicU64,
    /// Bytes that were moved from devices to the host, since the process began.
    pub moved_out: AtomicU64,
    /// Bytes that were moved back, since the process began.
    pub moved_in: AtomicU64,
    /// Functions of the shim's list that a program got from the driver unseen.
    pub unseen: AtomicU64,
    /// Sums that would have gone below zero.
    pub violations: AtomicU64,
}

/// What a process does just now.
#[repr(u64)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// Its memory is where it works best.
    #[default]
    Running = 0,
    /// Its memory is being moved to the host.
    GoingToSleep = 1,
    /// Its memory is on the host.
    Asleep = 2,
    /// Its memory is being moved back.
    Waking = 3,
    /// Its memory is on the host until somebody wakes it: it does not go on by itself.
    Held = 4,
}

impl State {
    /// All of them, by their numbers.
    pub const ALL: [Self; 5] = [Self::Running, Self::GoingToSleep, Self::Asleep, Self::Waking, Self::Held];

    /// The state of that number; what is none is taken for [`State::Running`].
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        usize::try_from(number).ok().and_then(|number| Self::ALL.get(number)).copied().unwrap_or_default()
    }

    /// Its name, one word in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::GoingToSleep => "going_to_sleep",
            Self::Asleep => "asleep",
            Self::Waking => "waking",
            Self::Held => "held",
        }
    }
}

/// The limit against which a kind on a device counts, if there is one.
#[must_use]
pub fn limit_of(kind: Kind, device: usize) -> Option<usize> {
    match kind {
        Kind::Spilled => Some(HOST),
        _ => (kind.counts() && device < DEVICES).then_some(device),
    }
}

impl Shared {
    /// Writes the limits where none are: the first one's word holds.
    pub fn offer(&self, limits: Limits) {
        for (place, limit) in
            self.budgets.iter().map(|budget| (budget, limits.budget)).chain([(&self.spill, limits.spill)])
        {
            let _ = place.compare_exchange(0, limit, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// The slots that were ever taken.
    #[must_use]
    pub fn taken(&self) -> &[Slot] {
        let used = usize::try_from(self.used.load(Ordering::SeqCst)).unwrap_or(SLOTS).min(SLOTS);
        &self.slots[..used]
    }

    /// Bytes that all processes hold within a limit, the dead included until they are swept out.
    #[must_use]
    pub fn used(&self, limit: usize) -> u64 {
        let held = self.taken().iter().map(|slot| slot.limited[limit].load(Ordering::SeqCst));
        held.fold(0, u64::saturating_add)
    }

    /// Where a device has its figures, in all processes: the first that asks takes a place for it. Devices for which there
    /// is none share the last one.
    #[must_use]
    pub fn place(&self, device: Uuid) -> usize {
        take_place(&self.devices, device)
    }

    /// Clears a slot of the caller's for the next one, the program last. What was moved is kept in the header.
    pub(crate) fn clear(&self, slot: &Slot) {
        for (figure, sum) in [(&slot.moved_out, &self.moved_out), (&slot.moved_in, &self.moved_in)] {
            sum.fetch_add(figure.swap(0, Ordering::SeqCst), Ordering::SeqCst);
        }
        let single = [&slot.state, &slot.unseen, &slot.violations, &slot.program];
        let figures = slot.bytes.iter().flatten().chain(slot.origins.iter().flatten());
        for figure in figures.chain(&slot.limited).chain(&slot.peak).chain(&slot.name).chain(single) {
            figure.store(0, Ordering::SeqCst);
        }
    }
}

/// Places are taken from the first on and never given back: so two that come at once with the same device meet at the
/// same place.
fn take_place(places: &[Place], device: Uuid) -> usize {
    let key = device.key();
    let found = places.iter().position(|place| {
        let former = place.key.compare_exchange(0, key, Ordering::SeqCst, Ordering::SeqCst);
        former.is_ok() || former == Err(key)
    });
    let Some(found) = found else { return places.len() - 1 };
    for (word, value) in places[found].uuid.iter().zip(device.words()) {
        word.store(value, Ordering::SeqCst);
    }
    found
}

/// Memory of zeroes, as a new file is. In the real sizes it is too large for a stack.
#[cfg(loom)]
impl Default for Shared {
    fn default() -> Self {
        Self {
            magic: AtomicU64::new(0),
            used: AtomicU64::new(0),
            runner: AtomicU64::new(0),
            budgets: zeroes(),
            spill: AtomicU64::new(0),
            peaks: zeroes(),
            moved_out: AtomicU64::new(0),
            moved_in: AtomicU64::new(0),
            joined: AtomicU64::new(0),
            devices: std::array::from_fn(|_| Place { key: AtomicU64::new(0), uuid: zeroes() }),
            denials: Ring::default(),
            slots: std::array::from_fn(|_| Slot {
                owner: AtomicU64::new(0),
                program: AtomicU64::new(0),
                name: zeroes(),
                limited: zeroes(),
                peak: zeroes(),
                bytes: std::array::from_fn(|_| zeroes()),
                origins: std::array::from_fn(|_| zeroes()),
                state: AtomicU64::new(0),
                moved_out: AtomicU64::new(0),
                moved_in: AtomicU64::new(0),
                unseen: AtomicU64::new(0),
                violations: AtomicU64::new(0),
            }),
        }
    }
}

#[cfg(loom)]
fn zeroes<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

impl Slot {
    /// Enters what the process is called.
    pub fn set_name(&self, name: Name) {
        for (place, word) in self.name.iter().zip(name.words()) {
            place.store(word, Ordering::SeqCst);
        }
    }

    /// What the process is called.
    #[must_use]
    pub fn name(&self) -> Name {
        Name::from_words([self.name[0].load(Ordering::SeqCst), self.name[1].load(Ordering::SeqCst)])
    }

    /// Lowers one of the figures, not below zero.
    pub fn lower(&self, figure: &AtomicU64, bytes: u64) {
        let lowered = figure.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| Some(held.saturating_sub(bytes)));
        if lowered.is_ok_and(|held| held < bytes) {
            self.violations.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_numbers_that_they_say() {
        for (number, state) in (0..).zip(State::ALL) {
            assert_eq!((state as u64, State::from_number(number)), (number, state));
        }
        assert_eq!(State::from_number(u64::MAX), State::Running);
    }

    #[test]
    fn device_memory_counts_against_its_device_and_spilled_memory_against_one_limit() {
        assert_eq!(limit_of(Kind::Linear, 3), Some(3));
        assert_eq!(limit_of(Kind::Linear, HOST), None);
        assert_eq!(limit_of(Kind::HostPinned, HOST), None);
        assert_eq!(limit_of(Kind::Managed, 0), None);
        assert_eq!((limit_of(Kind::Spilled, 3), limit_of(Kind::Spilled, HOST)), (Some(HOST), Some(HOST)));
    }

    #[test]
    fn each_device_has_one_place_whoever_asks_and_the_rest_share_the_last() {
        let places: [Place; 4] =
            std::array::from_fn(|_| Place { key: AtomicU64::new(0), uuid: std::array::from_fn(|_| AtomicU64::new(0)) });
        let uuid = |number| Uuid::from_bytes([number; 16]);
        let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 0, 1]];
        let found: Vec<_> = std::thread::scope(|scope| {
            let ask = |order: [u8; 3]| order.map(|number| (number, take_place(&places, uuid(number))));
            let threads: Vec<_> = orders.iter().map(|order| scope.spawn(move || ask(*order))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        for number in 0..3 {
            let own: Vec<usize> = found.iter().filter(|(other, _)| *other == number).map(|(_, place)| *place).collect();
            assert!(own.iter().all(|place| *place == own[0]), "{own:?}");
            let words = places[own[0]].uuid.each_ref().map(|word| word.load(Ordering::SeqCst));
            assert_eq!(Uuid::from_words(words), uuid(number));
        }
        assert_eq!(
            [3, 4, 5, 3, 0].map(|number| take_place(&places, uuid(number)) == 3),
            [true, true, true, true, false]
        );
    }

    /// Two forms of one size with one magic would be taken for each other.
    #[test]
    fn the_form_is_the_one_that_the_magic_says() {
        assert_eq!(&MAGIC.to_le_bytes(), b"gpuheap3");
        assert_eq!(size_of::<Slot>(), 8 * (4 + 2 * 17 + 11 * 17 + 17 * 16 + 5));
        assert_eq!(
            size_of::<Shared>(),
            8 * (3 + 16 + 1 + 17 + 3 + 16 * 3) + size_of::<Ring>() + 256 * size_of::<Slot>()
        );
    }
}
