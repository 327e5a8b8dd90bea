//! Addresses and the memory behind them, apart: a [`Reservation`] of addresses, [`Physical`] memory of a device or of
//! the host, and the [`Mapping`] of the one to the other.

use std::ffi::c_void;
use std::sync::Arc;

use crate::api::Api;
use crate::context::DeviceMemory;
use crate::device::Device;
use crate::error::Error;
use crate::library::{Driver, check};
use crate::raw::{self, AccessDesc, AllocationHandle, AllocationProp, DeviceId, DevicePtr, MemLocation};

/// Where physical memory is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Location {
    /// On a device.
    Device(DeviceId),
    /// On a node of the host.
    HostNuma(i32),
}

impl Location {
    fn raw(self) -> MemLocation {
        match self {
            Self::Device(id) => MemLocation { kind: raw::location::DEVICE, id },
            Self::HostNuma(id) => MemLocation { kind: raw::location::HOST_NUMA, id },
        }
    }
}

/// What may be done with a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Nothing.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

impl Access {
    fn raw(self) -> u32 {
        match self {
            Self::None => raw::ACCESS_NONE,
            Self::Read => raw::ACCESS_READ,
            Self::ReadWrite => raw::ACCESS_READ_WRITE,
        }
    }
}

/// Addresses that nothing else of this process gets.
#[derive(Clone, Debug)]
pub struct Reservation(Arc<Reserved>);

#[derive(Debug)]
struct Reserved {
    driver: Driver,
    address: DevicePtr,
    bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: reserved when this was made; every mapping in it holds it, so none is left.
        unsafe { (self.driver.api().cuMemAddressFree)(self.address, self.bytes) };
    }
}

impl Reservation {
    /// `bytes` bytes of addresses, a multiple of the granularity ([`Physical::granularity`]).
    pub fn new(driver: &Driver, bytes: usize) -> Result<Self, Error> {
        let mut address = DevicePtr::NULL;
        // SAFETY: `address` outlives the call.
        let code = unsafe { (driver.api().cuMemAddressReserve)(&raw mut address, bytes, 0, DevicePtr::NULL, 0) };
        check("cuMemAddressReserve", code)?;
        Ok(Self(Arc::new(Reserved { driver: driver.clone(), address, bytes })))
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> DevicePtr {
        self.0.address
    }

    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Puts all of `physical` behind the addresses from byte `offset` on. Nobody may reach it yet.
    pub fn map(&self, offset: usize, physical: &Physical) -> Result<Mapping, Error> {
        let bytes = physical.bytes();
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(Error::Range { offset, length: bytes, size: self.bytes() });
        }
        let address = DevicePtr(self.address().0 + offset);
        // SAFETY: the range is within the reservation. If something is mapped there, the driver refuses.
        let code = unsafe { (self.0.driver.api().cuMemMap)(address, bytes, 0, physical.handle(), 0) };
        check("cuMemMap", code)?;
        Ok(Mapping { reservation: self.clone(), physical: physical.clone(), address })
    }
}

/// Physical memory. Clones are the same memory, given back with the last of them and the last mapping.
#[derive(Clone, Debug)]
pub struct Physical(Arc<Allocated>);

#[derive(Debug)]
struct Allocated {
    driver: Driver,
    handle: AllocationHandle,
    location: Location,
    bytes: usize,
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: created when this was made, and released here alone.
        unsafe { (self.driver.api().cuMemRelease)(self.handle) };
    }
}

impl Physical {
    /// What sizes are multiples of, at `location`.
    pub fn granularity(driver: &Driver, location: Location) -> Result<usize, Error> {
        let wanted = AllocationProp::at(location.raw());
        let mut bytes = 0;
        // SAFETY: `wanted` and `bytes` outlive the call.
        let code = unsafe {
            (driver.api().cuMemGetAllocationGranularity)(&raw mut bytes, &raw const wanted, raw::GRANULARITY_MINIMUM)
        };
        check("cuMemGetAllocationGranularity", code)?;
        Ok(bytes)
    }

    /// `bytes` bytes at `location`.
    pub fn new(driver: &Driver, location: Location, bytes: usize) -> Result<Self, Error> {
        let wanted = AllocationProp::at(location.raw());
        let mut handle = AllocationHandle(0);
        // SAFETY: `handle` and `wanted` outlive the call.
        let code = unsafe { (driver.api().cuMemCreate)(&raw mut handle, bytes, &raw const wanted, 0) };
        check("cuMemCreate", code)?;
        Ok(Self(Arc::new(Allocated { driver: driver.clone(), handle, location, bytes })))
    }

    /// Where it is.
    #[must_use]
    pub fn location(&self) -> Location {
        self.0.location
    }

    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The driver's handle.
    #[must_use]
    pub fn handle(&self) -> AllocationHandle {
        self.0.handle
    }
}

/// Physical memory behind addresses. Dropping it takes the memory away from them.
///
/// The driver does not promise that this waits for anything: a kernel that still uses the addresses faults. Work that
/// is started through the safe functions of [`Context`](crate::Context) is finished by then; whoever starts other work
/// ([`Kernel::launch`](crate::Kernel::launch), the asynchronous copies of [`Stream`](crate::Stream)) has promised to
/// keep the mapping until it is.
#[derive(Debug)]
pub struct Mapping {
    reservation: Reservation,
    physical: Physical,
    address: DevicePtr,
}

impl Mapping {
    /// Says who may do what from now on.
    pub fn set_access(&self, device: &Device, access: Access) -> Result<(), Error> {
        self.grant(Location::Device(device.id()).raw(), access)
    }

    /// Lets the host reach memory of the host at these addresses as well.
    pub fn set_host_access(&self, access: Access) -> Result<(), Error> {
        self.grant(MemLocation { kind: raw::location::HOST, id: 0 }, access)
    }

    fn grant(&self, location: MemLocation, access: Access) -> Result<(), Error> {
        let wanted = AccessDesc { location, flags: access.raw() };
        // SAFETY: the range is mapped as long as `self` is there, and `wanted` outlives the call.
        let code = unsafe { (self.api().cuMemSetAccess)(self.address, self.bytes(), &raw const wanted, 1) };
        check("cuMemSetAccess", code)
    }

    /// What `device` may do.
    pub fn access(&self, device: &Device) -> Result<Access, Error> {
        let location = Location::Device(device.id()).raw();
        let mut flags = 0;
        // SAFETY: `flags` and `location` outlive the call.
        let code = unsafe { (self.api().cuMemGetAccess)(&raw mut flags, &raw const location, self.address) };
        check("cuMemGetAccess", code)?;
        Ok(match u32::try_from(flags) {
            Ok(raw::ACCESS_READ) => Access::Read,
            Ok(raw::ACCESS_READ_WRITE) => Access::ReadWrite,
            _ => Access::None,
        })
    }

    /// The memory behind it.
    #[must_use]
    pub fn physical(&self) -> &Physical {
        &self.physical
    }

    /// The handle that the driver knows behind the addresses: that of [`Mapping::physical`].
    pub fn found_handle(&self) -> Result<AllocationHandle, Error> {
        let mut handle = AllocationHandle(0);
        let address: *mut c_void = std::ptr::with_exposed_provenance_mut(self.address.0);
        // SAFETY: `handle` outlives the call; the address is only looked up.
        let code = unsafe { (self.api().cuMemRetainAllocationHandle)(&raw mut handle, address) };
        check("cuMemRetainAllocationHandle", code)?;
        // SAFETY: gives back what the call above retained.
        check("cuMemRelease", unsafe { (self.api().cuMemRelease)(handle) })?;
        Ok(handle)
    }

    fn api(&self) -> &Api {
        self.reservation.0.driver.api()
    }
}

impl DeviceMemory for Mapping {
    fn address(&self) -> DevicePtr {
        self.address
    }

    fn bytes(&self) -> usize {
        self.physical.bytes()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped when this was made, exactly this range, and unmapped here alone.
        unsafe { (self.api().cuMemUnmap)(self.address, self.bytes()) };
    }
}
