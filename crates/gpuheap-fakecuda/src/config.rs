//! How the driver is set up, and what is to go wrong: the variable `GPUHEAP_FAKECUDA` when it is initialised, and
//! `gpuheap_fake_control` at any time, in the same words.
//!
//! Commands are separated by semicolons:
//!
//! | command | what it does |
//! | --- | --- |
//! | `devices N` | so many devices (1). Before initialisation |
//! | `first N` | the first of them is the machine's `N`th, counted from 0, by its UUID (0). Before initialisation |
//! | `memory BYTES` | memory of each device (1 GiB). Before initialisation |
//! | `version N` | the driver's version (13020). Newer functions are not found. Before initialisation |
//! | `context BYTES` | memory that a context takes for itself (0). Before initialisation |
//! | `numa N` | so many nodes of the host (1). Before initialisation |
//! | `limit DEVICE BYTES` | out of memory beyond that, whatever the device has |
//! | `delay MICROSECONDS` | so long before each piece of work on a stream |
//! | `fail FUNCTION N CODE [TIMES]` | from the `N`th call from now on it returns the code, once or `TIMES` times |
//! | `reset` | counts, faults, call-backs, limits and the delay are as in the beginning |
//!
//! `gpuheap_fake_calls` tells how often a function was called, and of what is no call: `copies in` and `copies out` between
//! a device and physical memory of the host, `host mapped beside copies in` and `… out`, and of memory that was compared `found the same` and `found different`.
//!
//! Sizes are bytes, or with `KiB`, `MiB`, `GiB`.

use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use gpuheap_cuda::raw::Code;

use crate::entry::{self, CallBack};
use crate::state;

/// The set-up.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) devices: usize,
    /// What the UUID of the first one counts from.
    pub(crate) first: usize,
    pub(crate) memory: usize,
    pub(crate) version: u32,
    pub(crate) context_bytes: usize,
    pub(crate) nodes: i32,
    pub(crate) delay: Duration,
    /// By device, the most that it may hold.
    pub(crate) limits: Vec<(usize, usize)>,
}

impl Config {
    pub(crate) const fn new() -> Self {
        Self {
            devices: 1,
            first: 0,
            memory: 1 << 30,
            version: 13_020,
            context_bytes: 0,
            nodes: 1,
            delay: Duration::ZERO,
            limits: Vec::new(),
        }
    }

    /// Carries commands out. The error is the one that was not understood.
    pub(crate) fn apply(&mut self, commands: &str) -> Result<(), String> {
        for command in commands.split(';').map(str::trim).filter(|command| !command.is_empty()) {
            self.apply_one(command).ok_or_else(|| command.to_owned())?;
        }
        Ok(())
    }

    fn apply_one(&mut self, command: &str) -> Option<()> {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["devices", count] => self.devices = count.parse().ok()?,
            ["first", number] => self.first = number.parse().ok()?,
            ["memory", bytes] => self.memory = size(bytes)?,
            ["version", version] => self.version = version.parse().ok()?,
            ["context", bytes] => self.context_bytes = size(bytes)?,
            ["numa", nodes] => self.nodes = nodes.parse().ok()?,
            ["limit", device, bytes] => {
                let (device, bytes) = (device.parse().ok()?, size(bytes)?);
                self.limits.retain(|(other, _)| *other != device);
                self.limits.push((device, bytes));
            }
            ["delay", microseconds] => self.delay = Duration::from_micros(microseconds.parse().ok()?),
            ["fail", function, nth, code] => entry::fail(function, nth.parse().ok()?, Code(code.parse().ok()?), 1),
            ["fail", function, nth, code, times] => {
                entry::fail(function, nth.parse().ok()?, Code(code.parse().ok()?), times.parse().ok()?);
            }
            ["reset"] => {
                entry::reset();
                self.limits.clear();
                self.delay = Duration::ZERO;
            }
            _ => return None,
        }
        Some(())
    }

    /// What `device` may hold.
    pub(crate) fn limit(&self, device: usize) -> usize {
        let limited = self.limits.iter().find(|(other, _)| *other == device);
        limited.map_or(self.memory, |(_, bytes)| self.memory.min(*bytes))
    }
}

fn size(text: &str) -> Option<usize> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let (number, shift) = units
        .iter()
        .find_map(|(unit, shift)| text.strip_suffix(unit).map(|number| (number, *shift)))
        .unwrap_or((text, 0));
    number.parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// Carries commands out; 0 if all were understood.
///
/// # Safety
///
/// `commands` must be a text that ends in a zero byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpuheap_fake_control(commands: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let commands = unsafe { CStr::from_ptr(commands) }.to_string_lossy();
    let applied = state::lock().config.apply(&commands);
    c_int::from(applied.is_err())
}

/// How often the function of that name was called, or the other thing of that name happened.
///
/// # Safety
///
/// As for [`gpuheap_fake_control`].
#[unsafe(no_mangle)]
unsafe extern "C" fn gpuheap_fake_calls(function: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    entry::count(&unsafe { CStr::from_ptr(function) }.to_string_lossy())
}

/// Lets the function of that name call `call_back` before it does its work, as the real driver does that with exported
/// functions here and there; null ends it.
///
/// # Safety
///
/// As for [`gpuheap_fake_control`].
#[unsafe(no_mangle)]
unsafe extern "C" fn gpuheap_fake_call_back(function: *const c_char, call_back: Option<CallBack>) {
    // SAFETY: the caller's promise.
    entry::call_back(&unsafe { CStr::from_ptr(function) }.to_string_lossy(), call_back);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_set_the_driver_up_and_a_wrong_one_is_named() {
        let mut config = Config::new();
        config.apply("devices 2; first 3; memory 64MiB;limit 1 4KiB; delay 50;").unwrap();
        assert_eq!(
            (config.devices, config.first, config.memory, config.delay),
            (2, 3, 64 << 20, Duration::from_micros(50))
        );
        assert_eq!((config.limit(0), config.limit(1)), (64 << 20, 4096));
        config.apply("limit 1 1GiB; reset").unwrap();
        assert_eq!(config.limit(1), 64 << 20);
        assert_eq!(config.apply("devices 2; memory much"), Err("memory much".to_owned()));
        assert_eq!(config.apply("explode"), Err("explode".to_owned()));
    }
}
