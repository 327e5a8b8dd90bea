//! How much memory there is: within a budget, the budget. Programs that fit themselves to the card fit themselves to it.

use std::ffi::c_uint;

use gpuheap_cuda::raw::{Code, DeviceId};

use crate::around::Call;
use crate::charge::Kind;
use crate::state;
use crate::{control, devices, ordered, others, real};

/// `cuInit`: what may be needed later is made now, when nothing is in the way.
pub(crate) fn start(call: Call<'_>, _flags: c_uint) -> Code {
    state::get();
    let code = call();
    if code.is_success() {
        devices::learn();
        control::start();
    }
    code
}

pub(crate) fn info(call: Call<'_>, free: *mut usize, total: *mut usize) -> Code {
    let code = call();
    if code.is_success()
        && let Some((within_free, within_total)) = within()
    {
        write(free, within_free);
        write(total, within_total);
    }
    code
}

pub(crate) fn info_32(call: Call<'_>, free: *mut c_uint, total: *mut c_uint) -> Code {
    let code = call();
    if code.is_success()
        && let Some((within_free, within_total)) = within()
    {
        write(free, c_uint::try_from(within_free).unwrap_or(c_uint::MAX));
        write(total, c_uint::try_from(within_total).unwrap_or(c_uint::MAX));
    }
    code
}

pub(crate) fn total(call: Call<'_>, bytes: *mut usize, device: DeviceId) -> Code {
    let code = call();
    if code.is_success() {
        lower(bytes, budget(device));
    }
    code
}

pub(crate) fn total_32(call: Call<'_>, bytes: *mut c_uint, device: DeviceId) -> Code {
    let code = call();
    if code.is_success() {
        lower(bytes, budget(device).map(|budget| c_uint::try_from(budget).unwrap_or(c_uint::MAX)));
    }
    code
}

/// The budget of a device, if it has one.
fn budget(device: DeviceId) -> Option<usize> {
    let bytes = state::get().ledger.budget(devices::place(Some(device)));
    (bytes > 0).then(|| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Free and total bytes of the calling thread's device within its budget, if it has one.
fn within() -> Option<(usize, usize)> {
    if !state::get().ledger.has_budgets() {
        return None;
    }
    let (_, device) = real::current()?;
    let budget = budget(device)?;
    let (free, total) = real::device_bytes().ok()?;
    ordered::refresh();
    let used = state::get().ledger.used_by_the_living(devices::place(Some(device)));
    let left = budget.saturating_sub(usize::try_from(used).unwrap_or(usize::MAX));
    // What others took of the device is gone for this run as well.
    Some((left.min(free), budget.min(total)))
}

fn write<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the driver wrote there a moment ago.
        unsafe { place.write(value) };
    }
}

fn lower<T: Copy + Ord>(place: *mut T, limit: Option<T>) {
    if let (Some(limit), Some(value)) = (limit, crate::around::result(place)) {
        write(place, value.min(limit));
    }
}

/// Bytes of a kind ([`Kind`]) that this process holds on a device, or on the host by device −1.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_shim_bytes(kind: u32, device: DeviceId) -> u64 {
    let Some(kind) = Kind::from_number(kind) else { return 0 };
    let device = (device >= 0).then_some(device);
    if let Some(_inside) = crate::depth::Inside::enter() {
        ordered::refresh();
        others::refresh_graphs();
    }
    state::get().ledger.bytes(kind, devices::place(device))
}

/// Mistakes that were noticed: functions of our list that a program got unseen (low half) and sums that would have gone
/// below zero (high half).
#[unsafe(no_mangle)]
extern "C" fn gpuheap_shim_mistakes() -> u64 {
    let ledger = &state::get().ledger;
    ledger.violations() << 32 | ledger.unseen() & u64::from(u32::MAX)
}

/// Tells this library from a driver, and whether it shares a ledger with whoever asks: the version of its form.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_shim_version() -> u32 {
    gpuheap_ledger::layout::VERSION
}
