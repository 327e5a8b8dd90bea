//! What every driver does, the one for tests and the real one. `GPUHEAP_DRIVER` names the library; without it the suite
//! takes `gpuheap-fakecuda`, which cargo builds beside it.
//!
//! On a machine with a GPU: `GPUHEAP_DRIVER=libcuda.so.1 ./it-… --nocapture`. The program needs no other file.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "a driver is opened by its path, kernels are launched, raw calls are tried")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod errors;
mod kernels;
mod memory;
mod paging;
mod resolve;
mod streams;
mod support;
