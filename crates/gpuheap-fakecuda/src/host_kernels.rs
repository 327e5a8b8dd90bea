//! What the kernels of the conformance suite do here, and the one of the library that moves memory. Each looks its addresses up before it reaches for them, so that a
//! wrong one is an error of the context, as on a device, and not the end of the program.

use std::thread;
use std::time::Duration;

use gpuheap_cuda::raw::Code;

use crate::entry::{Done, happened};
use crate::space::Reach;
use crate::state::{State, lock};

/// A kernel: device, values of the parameters, their offsets, blocks.
pub(crate) type Builtin = fn(usize, &[u8], &[usize], u32) -> Done;

/// The kernel of that name.
pub(crate) fn find(name: &str) -> Option<Builtin> {
    match name {
        "gpuheap_fill" => Some(fill),
        "gpuheap_add" => Some(add),
        "gpuheap_wait" => Some(wait),
        "gpuheap_same" => Some(same),
        _ => None,
    }
}

fn parameter(values: &[u8], offsets: &[usize], number: usize) -> Result<u64, Code> {
    let start = *offsets.get(number).ok_or(Code::LAUNCH_FAILED)?;
    let end = offsets.get(number + 1).copied().unwrap_or(values.len() - 1).min(start + 8);
    let mut bytes = [0_u8; 8];
    let found = values.get(start..end).ok_or(Code::LAUNCH_FAILED)?;
    bytes[..found.len()].copy_from_slice(found);
    Ok(u64::from_ne_bytes(bytes))
}

/// The words at an address, if `device` may read and write them.
fn words(state: &mut State, device: usize, address: u64, count: u64) -> Result<&mut [u32], Code> {
    let address = usize::try_from(address).map_err(|_| Code::ILLEGAL_ADDRESS)?;
    let count = usize::try_from(count).map_err(|_| Code::ILLEGAL_ADDRESS)?;
    let bytes = count.checked_mul(4).ok_or(Code::ILLEGAL_ADDRESS)?;
    if !address.is_multiple_of(4) {
        return Err(Code::MISALIGNED_ADDRESS);
    }
    if state.space.reach(device, address, bytes, true) != Reach::Yes {
        return Err(Code::ILLEGAL_ADDRESS);
    }
    // SAFETY: the range was just looked up, and nothing takes it away while the state is locked.
    Ok(unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), count) })
}

/// `gpuheap_fill(address, count, value)`: writes the value to `count` words.
fn fill(device: usize, values: &[u8], offsets: &[usize], _: u32) -> Done {
    let mut state = lock();
    let count = parameter(values, offsets, 1)?;
    let value = parameter(values, offsets, 2)? & u64::from(u32::MAX);
    let value = u32::try_from(value).map_err(|_| Code::LAUNCH_FAILED)?;
    words(&mut state, device, parameter(values, offsets, 0)?, count)?.fill(value);
    Ok(())
}

/// `gpuheap_add(address, count, value)`: adds the value to `count` words.
fn add(device: usize, values: &[u8], offsets: &[usize], _: u32) -> Done {
    let mut state = lock();
    let count = parameter(values, offsets, 1)?;
    let value = parameter(values, offsets, 2)? & u64::from(u32::MAX);
    let value = u32::try_from(value).map_err(|_| Code::LAUNCH_FAILED)?;
    for word in words(&mut state, device, parameter(values, offsets, 0)?, count)? {
        *word = word.wrapping_add(value);
    }
    Ok(())
}

/// `gpuheap_wait(flag, address, count)`: reads `count` words again and again until the word at `flag` is not zero.
fn wait(device: usize, values: &[u8], offsets: &[usize], _: u32) -> Done {
    let (flag, address) = (parameter(values, offsets, 0)?, parameter(values, offsets, 1)?);
    let count = parameter(values, offsets, 2)?;
    loop {
        let mut state = lock();
        words(&mut state, device, address, count)?;
        let flag: *const u32 = words(&mut state, device, flag, 1)?.as_ptr();
        // SAFETY: it was just looked up; the host writes it meanwhile, hence volatile.
        if unsafe { flag.read_volatile() } != 0 {
            return Ok(());
        }
        drop(state);
        thread::sleep(Duration::from_micros(100));
    }
}

/// `gpuheap_same(one, other, count, answers)`: each block writes a 1 to its word of the answers if what it compares of the two
/// is the same, in sixteenths of `count` bytes; here each compares its share.
fn same(device: usize, values: &[u8], offsets: &[usize], blocks: u32) -> Done {
    let mut state = lock();
    let words_of_each = parameter(values, offsets, 2)?.checked_mul(4).ok_or(Code::ILLEGAL_ADDRESS)?;
    let one = words(&mut state, device, parameter(values, offsets, 0)?, words_of_each)?.to_vec();
    let other = words(&mut state, device, parameter(values, offsets, 1)?, words_of_each)?;
    let share = one.len().div_ceil(blocks as usize).max(1);
    let mut parts = one.chunks(share).zip(other.chunks(share));
    let answers: Vec<bool> = (0..blocks).map(|_| parts.next().is_none_or(|(one, other)| one == other)).collect();
    let all = answers.iter().all(|answer| *answer);
    let places = words(&mut state, device, parameter(values, offsets, 3)?, u64::from(blocks))?;
    for (place, _) in places.iter_mut().zip(answers).filter(|(_, answer)| *answer) {
        *place = 1;
    }
    happened(if all { "found the same" } else { "found different" });
    Ok(())
}
