//! A CUDA driver on host memory, for tests: a library that can stand where `libcuda.so.1` stands. Never published.
//!
//! Programs in any language find it as they find the real one (`dlopen`, `dlsym`, `cuGetProcAddress`) and get what the
//! real one's documentation promises: contexts, addresses with real mappings behind them, streams that do their work
//! later on threads of their own, events, pools, captures, and the real one's errors, those that stay included.
//! `config` has the words in which tests set it up and let it fail.
//!
//! | module | what is there |
//! | --- | --- |
//! | `entry` | the way into every function: counts, injected faults, call-backs |
//! | `config` | set-up and control |
//! | `state` | all objects, under one lock |
//! | `space`, `pages`, `arena` | the address space, the host memory behind it, small blocks out of chunks |
//! | `work` | streams' queues, threads, and who waits for whom |
//! | `device`, `context`, `linear`, `vmm`, `pool`, `copy`, `stream`, `kernel`, `graph`, `share`, `resolve` | the functions, by subject |
//! | `crossing` | which copies between device and host are under way, and what is done beside them |
//! | `ptx`, `host_kernels` | modules and what kernels do |
//! | `unsupported` | every other function of the interface: there, counted, and not supported |
//!
//! Memory: a device address is a host address. Physical memory is a file in memory, mapped at a reservation; what is
//! unmapped or freed is not there any more, so a program that still reaches for it faults. Functions and built-in kernels
//! look addresses up under the lock and report `CUDA_ERROR_ILLEGAL_ADDRESS`, which stays with the context as on a
//! device; a kernel that a test registers reaches memory as it is.
//!
//! What it does not have: arrays are opaque (copies to and from them are not supported), of graphs only kernels can be looked at, and nothing
//! changed, memory of graph nodes is taken at once, managed memory does not move, peers always reach each other, and each
//! process has devices of its own: two processes do not compete for memory here. Undocumented tables
//! (`cuGetExportTable`) are not there, so NVIDIA's runtime library does not start on it.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "a driver exports C functions and maps memory")]

mod arena;
mod config;
mod context;
mod copy;
mod crossing;
mod device;
mod entry;
mod graph;
mod host_kernels;
mod kernel;
mod linear;
mod pages;
mod pool;
mod ptx;
mod resolve;
mod share;
mod space;
mod state;
mod stream;
mod unsupported;
mod vmm;
mod work;

pub use kernel::{FakeLaunch, HostKernel};
