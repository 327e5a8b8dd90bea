//! Memory of the host that stands behind addresses of a device. Making it takes a second for 4 GiB, so it is kept
//! ([`crate::pool`]).
//!
//! Each piece has addresses of its own in all of its life, through which it is copied to and from, apart from those of
//! a chunk that it may stand behind: so a copy needs no mapping to be made.

use std::sync::Mutex;

use gpuheap_cuda::raw::{AllocationHandle, DeviceId, DevicePtr};
use gpuheap_cuda::{Access, Attribute, Device, DeviceMemory, Error, Location, Mapping, Physical, Reservation};

use crate::pool::Piece;
use crate::state::lock;

/// A piece of the host's memory that devices reach.
#[derive(Debug)]
pub(crate) struct Mapped {
    mapping: Mapping,
    /// Devices that reach it.
    reached: Mutex<Vec<DeviceId>>,
}

impl Mapped {
    /// Where copies find it.
    pub(crate) fn window(&self) -> DevicePtr {
        self.mapping.address()
    }

    /// What to map elsewhere.
    pub(crate) fn handle(&self) -> AllocationHandle {
        self.mapping.physical().handle()
    }
}

impl Piece for Mapped {
    fn make(device: &Device, bytes: usize) -> Result<Self, Error> {
        let physical = on_any_node(device, bytes)?;
        let mapping = Reservation::new(device.driver(), bytes)?.map(0, &physical)?;
        mapping.set_access(device, Access::ReadWrite)?;
        Ok(Self { mapping, reached: Mutex::new(vec![device.id()]) })
    }

    fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    fn is_reached(&self, device: &Device) -> bool {
        lock(&self.reached).contains(&device.id())
    }

    fn reach(&self, device: &Device) -> Result<(), Error> {
        if self.is_reached(device) {
            return Ok(());
        }
        self.mapping.set_access(device, Access::ReadWrite)?;
        lock(&self.reached).push(device.id());
        Ok(())
    }
}

/// On the node beside the device, if the driver gives memory of that one, else of another: some nodes have no processors,
/// or none that this process may use.
fn on_any_node(device: &Device, bytes: usize) -> Result<Physical, Error> {
    const NODES: i32 = 8;
    let near = device.attribute(Attribute::HOST_NUMA_ID).unwrap_or(0).max(0);
    let mut made = Physical::new(device.driver(), Location::HostNuma(near), bytes);
    for node in (0..NODES).filter(|node| *node != near) {
        // A node that lacks memory is another matter than one that nobody gets memory of.
        if matches!(&made, Err(Error::Call { code, .. }) if *code != gpuheap_cuda::raw::Code::OUT_OF_MEMORY) {
            made = Physical::new(device.driver(), Location::HostNuma(node), bytes);
        }
    }
    made
}

/// Bytes of host memory for a setting: a number, or `auto` for most of what is free just now. 0 for anything else.
pub(crate) fn limit(setting: &str) -> u64 {
    if setting == "auto" {
        return std::fs::read_to_string("/proc/meminfo").map_or(0, |text| available(&text) / 10 * 8);
    }
    setting.parse().unwrap_or(0)
}

/// Bytes that programs can still have, as the kernel tells it.
fn available(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")).and_then(|number| number.trim().parse().ok());
    kibibytes.map_or(0, |kibibytes: u64| kibibytes.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_a_number_or_most_of_what_is_free() {
        assert_eq!((limit("4096"), limit("much"), limit("")), (4096, 0, 0));
        assert_eq!(available("MemTotal: 5 kB\nMemAvailable:   1000 kB\n"), 1_024_000);
        assert_eq!(available("nothing of the kind"), 0);
        assert!(limit("auto") > 0);
    }
}
