//! The error bar: how far off a predicted peak may be, and why.
//!
//! - **What PyTorch reserves** is off by some part of it, as runs on a device have shown.
//! - **Scratch memory of convolutions**: for some shapes and not for others cuDNN chooses kernels that share tiles of
//!   results out among the multiprocessors, each of which then keeps a tile of partial sums beside the rest; which, no
//!   rule says. What is *allocated* hardly changes for it, but the allocator takes memory from the device in segments, and a
//!   few MiB decide whether a block still goes into one of them or another is taken, which can be a tenth of the whole. So
//!   the program is replayed a second time with such a tile for each multiprocessor in every convolution that has scratch
//!   memory, and the bar reaches at least as far as that.
//! - **The context**: the driver keeps code for each kernel that was loaded, stacks for the kernel with the largest, and
//!   memory for each library's handle. Programs differ in that, whatever their tensors are.

use gpuheap_alloc::torch::Config;

use crate::device::{Calibration, Device};
use crate::program::Program;
use crate::replay::{Replayed, replay, replay_sized};
use crate::trace::{Class, Event};

/// How far off reserved bytes can be, as a part of them. That single runs were nearer says nothing about other programs.
const UNVERIFIED: f64 = 0.03;
/// Bytes of a tile of partial sums: 128 by 128 numbers in fp32.
const TILE: f64 = 128.0 * 128.0 * 4.0;

/// What predictions for a device may be off by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Bar {
    /// As a part of what is reserved.
    pub(crate) error: f64,
    /// What a process is taken to have beside the allocator, in bytes.
    pub(crate) context: u64,
    /// How much less or more that may be, in bytes.
    pub(crate) spread: u64,
}

impl Bar {
    pub(crate) fn new(device: &Device, calibration: Option<&Calibration>) -> Self {
        let known = calibration.filter(|known| known.is_for(device));
        let context = known.map(|known| known.context_bytes).filter(|&bytes| bytes > 0);
        Self {
            error: known.map_or(UNVERIFIED, |known| known.peak_error.max(UNVERIFIED)),
            context: context.unwrap_or_else(|| device.outside_bytes()),
            spread: device.context_spread(),
        }
    }

    /// The least that the context may come to.
    pub(crate) fn context_least(&self) -> u64 {
        self.context.saturating_sub(self.spread)
    }

    /// The most that the context may come to.
    pub(crate) fn context_most(&self) -> u64 {
        self.context.saturating_add(self.spread)
    }

    /// The most that so many reserved bytes may turn out to be, for their size alone.
    pub(crate) fn most(&self, reserved: u64) -> u64 {
        reserved.saturating_add(share(reserved, self.error))
    }

    /// The most reserved bytes of which the bar reaches no further than `most`.
    pub(crate) fn within(&self, most: u64) -> u64 {
        let mut reserved = share(most, 1.0 / (1.0 + self.error));
        // Rounding is not to cost the last byte, nor to give one.
        while reserved > 0 && self.most(reserved) > most {
            reserved -= 1;
        }
        while self.most(reserved + 1) <= most {
            reserved += 1;
        }
        reserved
    }

    /// Reserved bytes of which the bar reaches as far as that of a replay does, with what `missed` corrects both by.
    pub(crate) fn reserved(&self, replayed: &Replayed, missed: i64) -> u64 {
        let larger = self.within(replayed.reserved_most.saturating_add_signed(missed));
        replayed.reserved.saturating_add_signed(missed).max(larger)
    }
}

/// The replay, and the same with as much scratch memory as convolutions may need more than they are taken to.
pub(crate) fn replay_with_bar(program: &Program<'_>, config: &Config, device: &Device) -> Replayed {
    let mut replayed = replay(program, config, None);
    let scratch = scratch_of_convolutions(program);
    if scratch.is_empty() {
        return replayed;
    }
    let mut sizes: Vec<u64> = program.slots.iter().map(|slot| slot.bytes).collect();
    let more = tiles(device);
    for slot in scratch {
        sizes[slot as usize] = program.slots[slot as usize].bytes.saturating_add(more);
    }
    let larger = replay_sized(program, &sizes, config, None);
    replayed.reserved_most = replayed.reserved.max(larger.reserved);
    replayed
}

/// A tile for each multiprocessor, in bytes.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of memory, not negative")]
fn tiles(device: &Device) -> u64 {
    (device.multiprocessors.value.max(0.0) * TILE) as u64
}

/// What convolutions have for themselves while they run: made and dropped at once, just before the call.
fn scratch_of_convolutions(program: &Program<'_>) -> Vec<u32> {
    let trace = program.trace;
    let convolutions: Vec<bool> = trace.ops.iter().map(|op| op.contains("convolution")).collect();
    let mut found = Vec::new();
    let mut pending = Vec::new();
    for (at, event) in program.events.iter().enumerate() {
        match *event {
            Event::Alloc(slot)
                if program.slots[slot as usize].class == Class::Workspace
                    && program.events.get(at + 1) == Some(&Event::Free(slot)) =>
            {
                pending.push(slot);
            }
            Event::Op(call) => {
                if convolutions[trace.calls[call as usize].op as usize] {
                    found.append(&mut pending);
                }
                pending.clear();
            }
            _ => {}
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a size is no larger than it")]
pub(crate) fn share(bytes: u64, part: f64) -> u64 {
    (bytes as f64 * part) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(error: f64) -> Bar {
        Bar { error, context: 700, spread: 60 }
    }

    #[test]
    fn what_is_within_reaches_as_far_as_it_may_and_no_further() {
        for error in [0.0, 0.03, 0.1, 1.0] {
            for most in [0, 1, 33, 34, 35, 1 << 20, (1 << 40) + 7] {
                let bar = bar(error);
                let reserved = bar.within(most);
                assert!(bar.most(reserved) <= most || reserved == 0, "{error} {most}");
                assert!(bar.most(reserved + 1) > most, "{error} {most}");
            }
        }
        assert_eq!((bar(0.0).context_least(), bar(0.0).context_most()), (640, 760));
    }

    #[test]
    fn one_good_run_does_not_make_the_bar_smaller() {
        let device = Device::find("H200", None).unwrap();
        let known = |peak_error| Calibration { device: "H200".to_owned(), peak_error, ..Calibration::default() };
        let error = |peak_error| Bar::new(&device, Some(&known(peak_error))).error.to_bits();
        assert_eq!((error(1e-6), error(0.2)), (UNVERIFIED.to_bits(), 0.2_f64.to_bits()));
        let seen = Calibration { context_bytes: 1 << 30, ..known(0.0) };
        assert_eq!(Bar::new(&device, Some(&seen)).context, 1 << 30);
        assert!(Bar::new(&device, None).spread > 0);
    }
}
