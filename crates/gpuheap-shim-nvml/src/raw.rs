//! NVML's types and codes, as far as they are needed here (nvml.h 13.2).

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

/// A device; what is behind it is the library's.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device(pub(crate) *mut c_void);

/// `nvmlReturn_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code(pub(crate) c_int);

impl Code {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const FUNCTION_NOT_FOUND: Self = Self(13);

    pub(crate) fn is_success(self) -> bool {
        self == Self::SUCCESS
    }
}

/// `nvmlMemory_t`. What is reserved is part of what is used.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    pub(crate) total: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemoryV2 {
    /// [`MemoryV2::VERSION`], written by the caller: what it takes the structure for.
    pub(crate) version: c_uint,
    pub(crate) total: c_ulonglong,
    pub(crate) reserved: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

impl MemoryV2 {
    /// The size of the structure, and its version above that.
    pub(crate) const VERSION: c_uint = 0x0200_0028;
}

const _: () = assert!(size_of::<MemoryV2>() == 40, "the size is part of the version");

/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
pub(crate) const UUID_BYTES: usize = 96;
