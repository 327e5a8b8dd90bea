//! A chunk: a range of a device's addresses with one piece of physical memory behind it, which this library made. Because
//! it did, the memory can be exchanged for other memory, on the device or on the host, and the address stays.
//!
//! A program that makes physical memory itself (`cuMemCreate`) gets a token for a handle: the handle changes when the
//! memory moves, and the driver may use its number again. Tokens have the highest bit set, which no handle of the
//! driver's has.
//!
//! What is behind a chunk changes only while the gate is closed and nothing runs that could touch it. The calls of a
//! program that map, unmap and free pass the gate, so they never meet a move.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gpuheap_cuda::raw::{self, AccessDesc, AllocationHandle, AllocationProp, Code, DeviceId, DevicePtr, MemLocation};

use crate::charge::{Charge, Kind};
use crate::host::Mapped;
use crate::locked::Locked;
use crate::moving::{self, Moving};
use crate::origin::{self, Origin};
use crate::ranges::CHUNKS;
use crate::state::lock;
use crate::temperature::TEMPERATURE;
use crate::{moves, placement, swap};

/// Where the content of a chunk is.
#[derive(Debug)]
pub(crate) enum Backing {
    /// On its device.
    Device(AllocationHandle),
    /// On the host, behind the chunk's addresses.
    Host(Mapped),
    /// On the host, and nothing is behind the addresses: nobody can touch them, as the process sleeps.
    Away(Locked),
}

/// What changes of a chunk.
#[derive(Debug)]
pub(crate) struct Inner {
    /// None only in the middle of a move.
    pub(crate) backing: Option<Backing>,
    pub(crate) charge: Charge,
    /// Where it is mapped.
    pub(crate) address: Option<DevicePtr>,
    /// Who may do what there.
    pub(crate) access: Vec<AccessDesc>,
    /// Whether something else knows the memory: it was passed on, or is mapped in another way than as a whole.
    pub(crate) is_pinned: bool,
    /// Whether the program is about to take away what is at its addresses, or access to it: nothing may begin to read it.
    pub(crate) is_held_off: bool,
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) bytes: usize,
    pub(crate) device: DeviceId,
    pub(crate) kind: Kind,
    /// As it was asked for.
    pub(crate) prop: AllocationProp,
    token: u64,
    /// What launches know it by.
    pub(crate) number: u32,
    /// Bytes a second that kernels use, as a mean that forgets: bits of an `f64`.
    warmth: AtomicU64,
    inner: Mutex<Inner>,
}

const TOKEN: u64 = 1 << 63;

/// Whether a handle is a token.
pub(crate) fn is_token(handle: AllocationHandle) -> bool {
    handle.0 & TOKEN != 0
}

/// Whether memory of these properties can be exchanged: memory of a device, for this machine, without compression and
/// for no special use.
pub(crate) fn is_movable(prop: &AllocationProp, flags: u64) -> bool {
    prop.kind == raw::ALLOCATION_PINNED
        && prop.location.kind == raw::location::DEVICE
        && prop.handle_types & !raw::HANDLE_FILE_DESCRIPTOR == 0
        && prop.compression == 0
        && prop.usage == 0
        && flags == 0
}

impl Chunk {
    /// Memory for a chunk, on its device if the budget and the device have it, else on the host if that is allowed. Of a
    /// refusal nobody is told here: it may be one of many parts.
    pub(crate) fn new(moving: &Moving, bytes: usize, prop: AllocationProp, kind: Kind) -> Result<Arc<Self>, Code> {
        let origin = origin::of_caller();
        let placed = match on_device_at_any_rate(moving, bytes, &prop, (kind, origin)) {
            Err(Code::OUT_OF_MEMORY) if moving.spills() => on_host(moving, bytes, prop.location.id, origin)?,
            other => other?,
        };
        Ok(Self::with(moving, bytes, prop, kind, placed))
    }

    /// The same, but never on the host.
    pub(crate) fn new_on_device(
        moving: &Moving,
        bytes: usize,
        prop: AllocationProp,
        kind: Kind,
    ) -> Result<Arc<Self>, Code> {
        let placed = on_device_at_any_rate(moving, bytes, &prop, (kind, origin::of_caller()))?;
        Ok(Self::with(moving, bytes, prop, kind, placed))
    }

    fn with(
        moving: &Moving,
        bytes: usize,
        prop: AllocationProp,
        kind: Kind,
        (charge, backing): (Charge, Backing),
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let is_on_host = matches!(backing, Backing::Host(_));
        let inner = Inner {
            backing: Some(backing),
            charge,
            address: None,
            access: Vec::new(),
            is_pinned: false,
            is_held_off: false,
        };
        let token = TOKEN | NEXT.fetch_add(1, Ordering::Relaxed);
        let number = moving.numbers.take();
        TEMPERATURE.reset(number);
        TEMPERATURE.on_host(number, is_on_host);
        Arc::new(Self {
            bytes,
            device: prop.location.id,
            kind,
            prop,
            token,
            number,
            warmth: AtomicU64::new(0),
            inner: Mutex::new(inner),
        })
    }

    /// What a program has for a handle.
    pub(crate) fn token(&self) -> AllocationHandle {
        AllocationHandle(self.token)
    }

    pub(crate) fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// The driver's handle of what is behind it just now.
    pub(crate) fn handle(&self) -> AllocationHandle {
        match &self.inner().backing {
            Some(Backing::Device(handle)) => *handle,
            Some(Backing::Host(piece)) => piece.handle(),
            Some(Backing::Away(_)) | None => AllocationHandle(0),
        }
    }

    /// Whether the host's memory is behind its addresses.
    pub(crate) fn is_spilled(&self) -> bool {
        matches!(self.inner().backing, Some(Backing::Host(_)))
    }

    /// Enters what kernels used of it in the last window, in bytes a second, and gives the mean with what was before.
    pub(crate) fn warmth(&self, rate: f64) -> f64 {
        let before = f64::from_bits(self.warmth.load(Ordering::Relaxed));
        let mean = if before > 0.0 { f64::midpoint(before, rate) } else { rate };
        self.warmth.store(mean.to_bits(), Ordering::Relaxed);
        mean
    }

    /// Keeps it where it is from now on.
    pub(crate) fn pin(&self) {
        self.inner().is_pinned = true;
    }

    /// Lets it move again.
    pub(crate) fn unpin(&self) {
        self.inner().is_pinned = false;
    }

    /// Keeps it on its device from now on, if it is there; gives the driver's handle of it then.
    pub(crate) fn pin_on_device(&self) -> Option<AllocationHandle> {
        let mut inner = self.inner();
        let Some(Backing::Device(handle)) = inner.backing else { return None };
        inner.is_pinned = true;
        Some(handle)
    }

    /// Maps it for the program.
    pub(crate) fn map(&self, moving: &Moving, address: DevicePtr, bytes: usize, offset: usize, flags: u64) -> Code {
        let handle = self.handle();
        // SAFETY: the program's own call with the handle that its token stands for.
        let code = unsafe { (moving.api().cuMemMap)(address, bytes, offset, handle, flags) };
        if code.is_success() {
            let mut inner = self.inner();
            if inner.address.is_some() || bytes != self.bytes || offset != 0 {
                inner.is_pinned = true;
            }
            inner.address = Some(address);
            inner.access.clear();
            inner.charge.at(address.0);
            drop(inner);
            // Of memory that is not in whole pages launches know nothing, so it counts as cold.
            let _ = CHUNKS.set(address.0 as u64, bytes as u64, self.number);
            TEMPERATURE.ends_at(self.number, (address.0 + bytes) as u64);
        }
        code
    }

    /// The program is about to take away what is at its addresses, or access to it. When this is over, no copy of it is under
    /// way that this library began ahead, and none begins.
    pub(crate) fn hold_off(&self, moving: &Moving) {
        self.inner().is_held_off = true;
        moving.ahead.forget(moving, self);
    }

    /// It stays as it was after all, or is as it is to be.
    pub(crate) fn let_be(&self) {
        self.inner().is_held_off = false;
    }

    /// It is mapped no more.
    pub(crate) fn unmapped(&self) {
        let mut inner = self.inner();
        let address = inner.address.take();
        inner.access.clear();
        inner.is_held_off = false;
        drop(inner);
        if let Some(address) = address {
            CHUNKS.clear(address.0 as u64, self.bytes as u64);
        }
    }

    /// Notes who may do what.
    pub(crate) fn granted(&self, access: &[AccessDesc]) {
        let mut inner = self.inner();
        for wanted in access {
            inner.access.retain(|known| known.location != wanted.location);
            inner.access.push(*wanted);
        }
        // From now on it can be used.
        if matches!(inner.backing, Some(Backing::Host(_))) {
            swap::spilled();
        }
    }

    /// Lets the memory be passed on, which has to be a device's for that. Memory of the host that nobody used yet is
    /// exchanged first.
    pub(crate) fn expose(&self, moving: &Moving) -> Result<AllocationHandle, Code> {
        if self.is_spilled() {
            let inner = self.inner();
            // What is pinned may be mapped although no address is known: it was mapped twice.
            if inner.address.is_some() || inner.is_pinned {
                return Err(Code::NOT_SUPPORTED);
            }
            drop(inner);
            let origin = self.inner().charge.origin();
            let (charge, backing) = on_device(moving, self.bytes, &self.prop, (self.kind, origin))?;
            let mut inner = self.inner();
            let former = (std::mem::replace(&mut inner.charge, charge), inner.backing.replace(backing));
            drop(inner);
            TEMPERATURE.on_host(self.number, false);
            if let (_, Some(Backing::Host(piece))) = former {
                moving.mapped.give(piece);
            }
        }
        self.pin();
        Ok(self.handle())
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let Some(moving) = moving::get() else { return };
        TEMPERATURE.reset(self.number);
        moving.numbers.give(self.number);
        match self.inner().backing.take() {
            Some(Backing::Device(handle)) => {
                // SAFETY: made for this chunk, which nobody has any more and which is mapped nowhere.
                moves::surely(|| unsafe { (moving.api().cuMemRelease)(handle) });
            }
            Some(Backing::Host(piece)) => {
                moving.mapped.give(piece);
                moving.keep_to_limit();
            }
            Some(Backing::Away(piece)) => moving.locked.give(piece),
            None => {}
        }
    }
}

/// Memory on the device, within the budget. Whoever asked for it tells if it was refused.
pub(crate) fn on_device(
    moving: &Moving,
    bytes: usize,
    prop: &AllocationProp,
    (kind, origin): (Kind, Origin),
) -> Result<(Charge, Backing), Code> {
    let charge = Charge::try_take_for(origin, kind, Some(prop.location.id), bytes).ok_or(Code::OUT_OF_MEMORY)?;
    let mut handle = AllocationHandle(0);
    // SAFETY: `handle` and `prop` outlive the call.
    let code = unsafe { (moving.api().cuMemCreate)(&raw mut handle, bytes, prop, 0) };
    if code.is_success() { Ok((charge, Backing::Device(handle))) } else { Err(code) }
}

/// The same, and what is held ahead of its use makes way.
fn on_device_at_any_rate(
    moving: &Moving,
    bytes: usize,
    prop: &AllocationProp,
    whose: (Kind, Origin),
) -> Result<(Charge, Backing), Code> {
    match on_device(moving, bytes, prop, whose) {
        Err(Code::OUT_OF_MEMORY) if moving.ahead.give_way(moving, prop.location.id) => {
            on_device(moving, bytes, prop, whose)
        }
        other => other,
    }
}

fn on_host(moving: &Moving, bytes: usize, device: DeviceId, origin: Origin) -> Result<(Charge, Backing), Code> {
    let charge = Charge::try_take_for(origin, Kind::Spilled, Some(device), bytes).ok_or(Code::OUT_OF_MEMORY)?;
    placement::watch();
    // What the host does not have is for the program memory that the device does not have.
    let piece = moving.device(device).and_then(|device| moving.mapped.take(&device, bytes));
    let piece = piece.map_err(|_| Code::OUT_OF_MEMORY)?;
    moving.keep_to_limit();
    Ok((charge, Backing::Host(piece)))
}

/// Access for the device itself, as `cuMemAlloc` gives it.
pub(crate) fn own_access(device: DeviceId) -> AccessDesc {
    AccessDesc { location: MemLocation { kind: raw::location::DEVICE, id: device }, flags: raw::ACCESS_READ_WRITE }
}
