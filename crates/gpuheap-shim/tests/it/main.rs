//! The shim in front of a driver, as programs meet it: C programs, compiled here, and Python, with and without it.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "the conformance suite opens a driver and launches kernels")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod budgets;
mod cuts;
mod loading;
mod origins;
mod programs;
mod rig;
mod sharing;
mod sleeping;
mod stress;
mod support;

// The conformance suite of drivers, with the shim as the driver.
#[path = "../../../gpuheap-cuda/tests/it/errors.rs"]
mod errors;
#[path = "../../../gpuheap-cuda/tests/it/kernels.rs"]
mod kernels;
#[path = "../../../gpuheap-cuda/tests/it/memory.rs"]
mod memory;
#[path = "../../../gpuheap-cuda/tests/it/paging.rs"]
mod paging;
#[path = "../../../gpuheap-cuda/tests/it/resolve.rs"]
mod resolve;
#[path = "../../../gpuheap-cuda/tests/it/streams.rs"]
mod streams;
