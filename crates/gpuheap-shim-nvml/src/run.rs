//! What the run's ledger says of a device.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};

use gpuheap_ledger::{DEVICES, Reader, Uuid};

use crate::budget::Part;
use crate::raw::{Code, Device, UUID_BYTES};
use crate::real::Function;

/// What the environment says.
struct Settings {
    /// The run's ledger.
    ledger: Option<PathBuf>,
    /// Bytes; 0 is no budget.
    budget: u64,
}

/// The environment as it was at the first call: another thread may be changing it at any later time.
fn settings() -> &'static Settings {
    static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(std::ptr::null_mut());
    let found = SETTINGS.load(Ordering::Acquire);
    if !found.is_null() {
        // SAFETY: leaked when it was made.
        return unsafe { &*found };
    }
    // Threads that come at once read the same. No lock, which a fork could leave locked for ever.
    let ledger = std::env::var_os("GPUHEAP_LEDGER").map(PathBuf::from);
    let budget = std::env::var("GPUHEAP_BUDGET").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let made: &'static mut Settings = Box::leak(Box::new(Settings { ledger, budget }));
    let made = &raw mut *made;
    SETTINGS.store(made, Ordering::Release);
    // SAFETY: leaked above.
    unsafe { &*made }
}

/// The run's part of a device; nothing if this is no run, or one without a budget.
pub(crate) fn part(device: Device) -> Option<Part> {
    let settings = settings();
    let path = settings.ledger.as_deref()?;
    let wanted = (settings.budget > 0).then_some(Part { budget: settings.budget, used: 0 });
    // Nobody has made it yet. Or it cannot be used: then each process has the budget for itself, and nobody else sees
    // what it holds.
    let Ok(snapshot) = Reader::open(path).and_then(|reader| reader.snapshot()) else { return wanted };
    if wanted.is_none() && snapshot.budgets == [0; DEVICES] {
        return None;
    }
    let place = uuid(device).and_then(|uuid| snapshot.place(uuid));
    // On a device without a place nobody of the run has anything. It would get the next one.
    let next = snapshot.devices.iter().position(Option::is_none).unwrap_or(DEVICES - 1);
    let budget = snapshot.budgets[place.unwrap_or(next)];
    let used = place.map_or(0, |place| snapshot.used(place));
    // The first process that counts writes the budget there.
    if budget == 0 { wanted.map(|wanted| Part { used, ..wanted }) } else { Some(Part { budget, used }) }
}

/// A device's UUID, if the library tells it in the form that CUDA has as well.
fn uuid(device: Device) -> Option<Uuid> {
    static REAL: Function = Function::new(c"nvmlDeviceGetUUID");
    let real = REAL.find()?;
    // SAFETY: the library's function of that name has that signature.
    let real = unsafe {
        std::mem::transmute::<*const c_void, unsafe extern "C" fn(Device, *mut c_char, c_uint) -> Code>(real)
    };
    let mut text = [0_u8; UUID_BYTES];
    let length = c_uint::try_from(UUID_BYTES).ok()?;
    // SAFETY: the caller's own device, which the library just knew, and as many bytes as are said.
    if !unsafe { real(device, text.as_mut_ptr().cast(), length) }.is_success() {
        return None;
    }
    Uuid::parse(CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?)
}
