//! The 64 bytes that stand for an allocation of another process.

use gpuheap_cuda::raw::IpcHandle;

use crate::converted::Shared;

/// What a handle of this library begins with. The driver's begin with numbers of its own.
const MAGIC: [u8; 8] = *b"gpuheap\x7f";
const VERSION: u32 = 1;

/// An allocation, as another process of the run is told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Handle {
    /// The process that has it.
    pub(super) process: u32,
    /// Where it begins there.
    pub(super) address: u64,
    /// Bytes that were asked for.
    pub(super) asked: usize,
    /// Bytes that are there.
    pub(super) bytes: u64,
    /// What tells it from others that are or were at that address.
    pub(super) stamp: u64,
}

impl Handle {
    /// The handle of an allocation of this process.
    pub(super) fn of(shared: &Shared) -> Self {
        Self {
            process: std::process::id(),
            address: shared.start.0 as u64,
            asked: shared.asked,
            bytes: shared.bytes as u64,
            stamp: shared.stamp,
        }
    }

    /// What a handle says; nothing if it is one of the driver's. Of another version of this library it names a process
    /// that there is not, so that it opens nothing.
    pub(super) fn read(handle: &IpcHandle) -> Option<Self> {
        let (magic, rest) = handle.0.split_first_chunk()?;
        if *magic != MAGIC {
            return None;
        }
        let (version, rest) = rest.split_first_chunk()?;
        let (process, rest) = rest.split_first_chunk()?;
        let mut numbers = rest.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut next = || numbers.next().unwrap_or(0);
        let known = u32::from_le_bytes(*version) == VERSION;
        Some(Self {
            process: if known { u32::from_le_bytes(*process) } else { 0 },
            address: next(),
            asked: usize::try_from(next()).unwrap_or(0),
            bytes: next(),
            stamp: next(),
        })
    }
}

impl From<Handle> for IpcHandle {
    fn from(handle: Handle) -> Self {
        let Handle { process, address, asked, bytes, stamp } = handle;
        let mut all = [0; 64];
        let numbers = [address, asked as u64, bytes, stamp].map(u64::to_le_bytes);
        let said = [MAGIC.as_slice(), &VERSION.to_le_bytes(), &process.to_le_bytes(), numbers.as_flattened()].concat();
        for (place, byte) in all.iter_mut().zip(said) {
            *place = byte;
        }
        Self(all)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_not_of_here_is_the_driver_s_and_another_version_opens_nothing() {
        assert_eq!(Handle::read(&IpcHandle([0; 64])), None);
        let handle = Handle { process: 7, address: 1 << 40, asked: 5, bytes: 6, stamp: 8 };
        let mut other = IpcHandle::from(handle);
        other.0[8] += 1;
        assert_eq!(Handle::read(&other).map(|handle| handle.process), Some(0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn handles_come_back(process: u32, address: u64, asked: usize, bytes: u64, stamp: u64) {
            let handle = Handle { process, address, asked, bytes, stamp };
            prop_assert_eq!(Handle::read(&handle.into()), Some(handle));
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::array::uniform32(any::<[u8; 2]>()), ours: bool) {
            let mut all: [u8; 64] = bytes.as_flattened().try_into().unwrap();
            if ours {
                all[..8].copy_from_slice(&MAGIC);
            }
            prop_assert_eq!(Handle::read(&IpcHandle(all)).is_some(), all[..8] == MAGIC);
        }
    }
}
