//! What the shim costs a launch, in nanoseconds: a line for each figure, with its name and its value after a tab.
//!
//! Without arguments: looking arguments up, on tables made here. `nothing SHIM DRIVER`, `allocations SHIM DRIVER`,
//! `tests SHIM DRIVER` and `spilled SHIM DRIVER`: calls through a shim that has that driver behind it, which is one that
//! does nothing or the one for tests, and calls of the driver itself. `cargo xtask bench shim` runs all.
#![cfg_attr(
    target_os = "linux",
    expect(unsafe_code, reason = "functions of a driver are called, and arguments are made as programs make them")
)]

#[cfg(target_os = "linux")]
#[path = "../../src/parameters.rs"]
#[allow(dead_code, unused_imports, reason = "not all of it is measured")]
mod parameters;
#[cfg(target_os = "linux")]
#[path = "../../src/ranges.rs"]
#[allow(dead_code, unused_imports, reason = "not all of it is measured")]
mod ranges;
#[cfg(target_os = "linux")]
#[path = "../../src/temperature.rs"]
#[allow(dead_code, unused_imports, reason = "not all of it is measured")]
mod temperature;
#[cfg(target_os = "linux")]
#[path = "../../src/touched.rs"]
#[allow(dead_code, unused_imports, reason = "not all of it is measured")]
mod touched;

#[cfg(target_os = "linux")]
mod arguments;
#[cfg(target_os = "linux")]
mod clock;
#[cfg(target_os = "linux")]
mod wrappers;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    // Cargo says that it is a benchmark.
    let given: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let done = match given.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            arguments::measure();
            Ok(())
        }
        ["nothing", shim, driver] => wrappers::of_nothing(shim, driver),
        ["allocations", shim, driver] => wrappers::of_allocations(shim, driver),
        ["tests", shim, driver] => wrappers::of_tests(shim, driver),
        ["spilled", shim, driver] => wrappers::of_spilled(shim, driver),
        _ => Err("Give nothing, or one of nothing, allocations, tests, spilled, with SHIM and DRIVER".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            clock::complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// There is a shim on Linux alone.
#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
