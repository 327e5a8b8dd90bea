//! The CUDA driver as a table of functions found at run time, with owners for what it gives out.
//!
//! Nothing of CUDA is needed to build this crate, and a program that uses it starts on a machine without a driver: it
//! is opened by [`Driver::load`], which says what is missing. What a driver gives out (a context, a reservation of
//! addresses, physical memory, a mapping, a stream, an event) has an owner that gives it back when it is dropped, and
//! keeps alive what it needs itself. Copies and fills through [`Context`] are finished when they return. What cannot be
//! checked, foremost that a kernel stays within its memory, is `unsafe` to call.
//!
//! | module | what is there |
//! | --- | --- |
//! | [`raw`] | the driver's types and numbers, as they are |
//! | [`symbols`] | every function of the API: base name, version, default stream, exported symbol |
//! | `api` | the functions that are used here, as a table of pointers; the one list of their signatures |
//! | `library` | opening the driver, errors included |
//! | `look` | what the loader takes for the driver, without starting it |
//! | `device`, `context` | devices and their primary contexts; copies and fills |
//! | `linear` | `cuMemAlloc` and page-locked host memory |
//! | `paging` | reservations, physical memory (of a device or of a NUMA node of the host), mappings with access |
//! | `stream`, `module` | streams, events, stream-ordered memory; modules, kernels, their parameters |
//!
//! The conformance suite in `tests/it` is written against these owners and runs against any driver:
//! `GPUHEAP_DRIVER=/usr/lib/x86_64-linux-gnu/libcuda.so.1` names it, and without it the suite takes
//! `gpuheap-fakecuda`. Its test program needs no other file then and can be carried to a machine with a GPU.
//!
//! Only Linux has a driver that this crate opens; elsewhere the types and lists are there and [`Driver::load`] fails.
#![expect(unsafe_code, reason = "the driver is C: each call of it has its reason beside it")]

mod api;
mod context;
mod device;
mod error;
mod library;
mod linear;
#[cfg(target_os = "linux")]
mod look;
mod module;
mod paging;
pub mod raw;
mod stream;
pub mod symbols;

pub use api::Api;
pub use context::{Context, Current, DeviceMemory};
pub use device::{Attribute, Device};
pub use error::Error;
pub use library::{Driver, OLDEST_VERSION, check};
pub use linear::{DeviceBuffer, HostBuffer};
#[cfg(target_os = "linux")]
pub use look::{Look, management_by_name};
pub use module::{Kernel, Launch, Module, Parameter};
pub use paging::{Access, Location, Mapping, Physical, Reservation};
pub use stream::{Event, Ordered, Stream};
