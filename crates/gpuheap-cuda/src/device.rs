//! Devices.

use std::ffi::{c_int, c_uint};
use std::fmt;

use crate::context::Context;
use crate::error::Error;
use crate::library::{Driver, check};
use crate::raw::DeviceId;

/// What can be asked of a device; the numbers are the driver's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Attribute(pub u32);

impl Attribute {
    /// Multiprocessors.
    pub const MULTIPROCESSORS: Self = Self(16);
    /// The first figure of the compute capability.
    pub const CAPABILITY_MAJOR: Self = Self(75);
    /// The second.
    pub const CAPABILITY_MINOR: Self = Self(76);
    /// Whether addresses can be reserved and mapped.
    pub const VIRTUAL_MEMORY: Self = Self(102);
    /// Whether there is stream-ordered memory.
    pub const MEMORY_POOLS: Self = Self(115);
    /// The node of the host that is nearest.
    pub const HOST_NUMA_ID: Self = Self(134);
    /// Whether memory of a node of the host can be mapped.
    pub const HOST_NUMA_VIRTUAL_MEMORY: Self = Self(141);
}

/// A device that this process may use.
#[derive(Clone)]
pub struct Device {
    driver: Driver,
    id: DeviceId,
}

impl Device {
    pub(crate) fn new(driver: Driver, ordinal: c_int) -> Result<Self, Error> {
        let mut id = 0;
        // SAFETY: `id` outlives the call.
        check("cuDeviceGet", unsafe { (driver.api().cuDeviceGet)(&raw mut id, ordinal) })?;
        Ok(Self { driver, id })
    }

    /// The driver that it belongs to.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Its ordinal.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Its name: `NVIDIA H200`.
    pub fn name(&self) -> Result<String, Error> {
        let mut bytes = [0_u8; 256];
        let length = c_int::try_from(bytes.len()).unwrap_or(c_int::MAX);
        // SAFETY: `bytes` has the length that is told, and outlives the call.
        let code = unsafe { (self.driver.api().cuDeviceGetName)(bytes.as_mut_ptr().cast(), length, self.id) };
        check("cuDeviceGetName", code)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// All of its memory, in bytes.
    pub fn memory(&self) -> Result<usize, Error> {
        let mut bytes = 0;
        // SAFETY: `bytes` outlives the call.
        check("cuDeviceTotalMem_v2", unsafe { (self.driver.api().cuDeviceTotalMem_v2)(&raw mut bytes, self.id) })?;
        Ok(bytes)
    }

    /// An attribute.
    pub fn attribute(&self, attribute: Attribute) -> Result<i32, Error> {
        let mut value = 0;
        // SAFETY: `value` outlives the call.
        let code = unsafe { (self.driver.api().cuDeviceGetAttribute)(&raw mut value, attribute.0, self.id) };
        check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// Whether its primary context is there, in whosever hands.
    pub fn has_context(&self) -> Result<bool, Error> {
        let mut flags: c_uint = 0;
        let mut active: c_int = 0;
        // SAFETY: both numbers outlive the call.
        let code = unsafe { (self.driver.api().cuDevicePrimaryCtxGetState)(self.id, &raw mut flags, &raw mut active) };
        check("cuDevicePrimaryCtxGetState", code)?;
        Ok(active != 0)
    }

    /// Its primary context, which frameworks use as well.
    pub fn context(&self) -> Result<Context, Error> {
        Context::retain(self.clone())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Device").field("id", &self.id).finish_non_exhaustive()
    }
}
