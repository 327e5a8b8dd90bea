//! The address space: what is behind which address, and who may reach it.

use std::collections::BTreeMap;

use gpuheap_cuda::raw::{self, AllocationProp, Code, MemLocation};

use crate::pages::Backing;

/// What an allocation came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `cuMemAlloc`, with memory of its own.
    Linear,
    /// `cuMemAlloc`, out of a chunk of small ones.
    Small,
    /// `cuMemAllocManaged`.
    Managed,
    /// Page-locked memory of the host.
    Host,
    /// Memory of the program that it had locked.
    Registered,
    /// Out of a pool. Whether it was freed, by a stream that is not there yet.
    Ordered { pool: usize, freed: bool },
    /// Memory of another process.
    Imported,
    /// Out of a graph or another interface.
    Foreign,
}

/// An allocation.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    /// As many as were asked for.
    pub(crate) bytes: usize,
    /// As many as it takes.
    pub(crate) taken: usize,
    pub(crate) kind: Kind,
    pub(crate) context: usize,
    pub(crate) device: usize,
    pub(crate) id: u64,
    pub(crate) backing: Option<Backing>,
}

/// Physical memory. It is there as long as there are handles or mappings.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) backing: Backing,
    pub(crate) location: MemLocation,
    pub(crate) handle_types: u32,
    pub(crate) usage: u16,
    pub(crate) handles: u32,
    pub(crate) mappings: u32,
    /// The device that it was charged to; nothing for memory of the host or of another process.
    pub(crate) charged: Option<usize>,
}

impl Physical {
    /// What it was asked for.
    pub(crate) fn prop(&self) -> AllocationProp {
        let mut prop = AllocationProp::at(self.location);
        prop.handle_types = self.handle_types;
        prop.usage = self.usage;
        prop
    }
}

/// Physical memory behind reserved addresses.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) bytes: usize,
    pub(crate) handle: u64,
    /// By device, its flags.
    pub(crate) access: BTreeMap<i32, u32>,
    /// The host's.
    pub(crate) host: u32,
}

/// Whether a range can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// All of it.
    Yes,
    /// It belongs to this driver, and some of it is not there or not allowed.
    No,
    /// This driver knows nothing of it: memory of the program, as far as it is any.
    Unknown,
}

/// All addresses.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) ranges: BTreeMap<usize, Range>,
    pub(crate) reservations: BTreeMap<usize, usize>,
    pub(crate) mappings: BTreeMap<usize, Mapping>,
    pub(crate) physical: BTreeMap<u64, Physical>,
}

impl Space {
    pub(crate) const fn new() -> Self {
        Self {
            ranges: BTreeMap::new(),
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            physical: BTreeMap::new(),
        }
    }

    /// The allocation that has `address`.
    pub(crate) fn range_at(&self, address: usize) -> Option<(usize, &Range)> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        (address - start < range.bytes).then_some((*start, range))
    }

    /// The mapping that has `address`.
    pub(crate) fn mapping_at(&self, address: usize) -> Option<(usize, &Mapping)> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.bytes).then_some((*start, mapping))
    }

    /// The reservation that has all of the range.
    pub(crate) fn reservation_of(&self, address: usize, bytes: usize) -> Option<(usize, usize)> {
        let (start, size) = self.reservations.range(..=address).next_back()?;
        let end = address.checked_add(bytes)?;
        (end <= start + size && address < start + size).then_some((*start, *size))
    }

    /// The starts of the mappings that make up exactly this range.
    pub(crate) fn mappings_of(&self, address: usize, bytes: usize) -> Result<Vec<usize>, Code> {
        let end = address.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
        let mut at = address;
        let mut starts = Vec::new();
        while at < end {
            let mapping = self.mappings.get(&at).ok_or(Code::INVALID_VALUE)?;
            starts.push(at);
            at += mapping.bytes;
        }
        if at == end && !starts.is_empty() { Ok(starts) } else { Err(Code::INVALID_VALUE) }
    }

    /// Whether `device` reaches a range.
    pub(crate) fn reach(&self, device: usize, address: usize, bytes: usize, write: bool) -> Reach {
        let Some(end) = address.checked_add(bytes) else { return Reach::No };
        let device = i32::try_from(device).unwrap_or(-1);
        let mut at = address;
        while at < end {
            if let Some((start, range)) = self.range_at(at) {
                at = start + range.bytes;
            } else if let Some((start, mapping)) = self.mapping_at(at) {
                let flags = mapping.access.get(&device).copied().unwrap_or(raw::ACCESS_NONE);
                let wanted = if write { raw::ACCESS_READ_WRITE } else { raw::ACCESS_READ };
                if flags & wanted != wanted {
                    return Reach::No;
                }
                at = start + mapping.bytes;
            } else if at == address && self.reservation_of(at, 1).is_none() {
                return Reach::Unknown;
            } else {
                return Reach::No;
            }
        }
        Reach::Yes
    }
}
