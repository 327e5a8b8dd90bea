//! What this driver does beyond the conformance suite of `gpuheap-cuda`: its control, errors that stay, default streams,
//! captures, several processes. The functions are called as a C program calls them.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "C functions are called")]
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "a test is a C program: a row of calls for one reason")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod contexts;
mod control;
mod exports;
mod faults;
mod graphs;
mod share;
mod streams;
mod support;
