//! Where each device has its figures.
//!
//! The number of a device is the process's own: another process of the run that sees other devices, or sees them in
//! another order (`CUDA_VISIBLE_DEVICES`), has the same device under another number and another one under the same. The
//! ledger knows devices by their UUIDs, so that the budget of each is kept by all of them together.

use std::sync::atomic::{AtomicUsize, Ordering};

use gpuheap_cuda::raw::DeviceId;

use crate::ledger::{DEVICES, HOST};
use crate::{real, state};

/// By number, one more than the place; 0 as long as it is not known.
static PLACES: [AtomicUsize; DEVICES] = [const { AtomicUsize::new(0) }; DEVICES];

/// Finds the places of all devices. The driver has started, and nothing is allocated yet.
pub(crate) fn learn() {
    let ledger = &state::get().ledger;
    for (device, place) in (0..real::device_count()).zip(&PLACES) {
        if let Some(uuid) = real::uuid(device) {
            place.store(ledger.place(uuid) + 1, Ordering::Relaxed);
        }
    }
}

/// Where a device has its figures; what is no device is the host. Without a UUID its number is its place.
pub(crate) fn place(device: Option<DeviceId>) -> usize {
    let Some(Ok(device)) = device.map(usize::try_from) else { return HOST };
    let known = PLACES.get(device).map_or(0, |place| place.load(Ordering::Relaxed));
    known.checked_sub(1).unwrap_or(device.min(DEVICES - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_long_as_no_uuid_is_known_the_number_is_the_place_and_the_rest_share_the_last() {
        assert_eq!((place(Some(3)), place(Some(99)), place(Some(-1)), place(None)), (3, 15, HOST, HOST));
    }
}
