//! The library in front of NVML, as programs meet it: C programs, compiled here, and Python, with and without it, beside
//! processes that hold memory through the shim of the driver.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod budgets;
mod loading;
mod passing;
mod python;
mod rig;
