//! Starting, versions, devices.

use std::ffi::{c_char, c_int, c_uint};

use gpuheap_cuda::raw::{Code, DeviceId, MemoryPool};

use crate::entry::{Out, exports, give, offer};
use crate::pages;
use crate::state::{Device, lock, ready};

/// The variable that sets the driver up.
const SETUP: &str = "GPUHEAP_FAKECUDA";

exports! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = lock();
        if let Some(process) = state.process {
            // A child of the process that started the driver cannot use it.
            return if process == std::process::id() { Ok(()) } else { Err(Code::NOT_INITIALIZED) };
        }
        if let Ok(setup) = std::env::var(SETUP) {
            state.config.apply(&setup).map_err(|_| Code::INVALID_VALUE)?;
        }
        pages::raise_file_limit();
        if state.config.devices == 0 {
            return Err(Code::NO_DEVICE);
        }
        state.devices = (0..state.config.devices).map(|_| Device::default()).collect();
        state.process = Some(std::process::id());
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<'_, c_int>) {
        give(version, c_int::try_from(lock().config.version).unwrap_or(c_int::MAX))
    }

    fn cuDeviceGetCount(count: Out<'_, c_int>) {
        let state = ready()?;
        give(count, c_int::try_from(state.devices.len()).unwrap_or(c_int::MAX))
    }

    fn cuDeviceGet(device: Out<'_, DeviceId>, ordinal: c_int) {
        ready()?.device(ordinal)?;
        give(device, ordinal)
    }

    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: DeviceId) {
        ready()?.device(device)?;
        let text = b"gpuheap fake device\0";
        let length = usize::try_from(length).map_err(|_| Code::INVALID_VALUE)?;
        if name.is_null() || length == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let kept = text.len().min(length);
        let mut shown = text[..kept].to_vec();
        shown[kept - 1] = 0;
        pages::copy(name.expose_provenance(), shown.as_ptr().expose_provenance(), kept);
        Ok(())
    }

    fn cuDeviceGetUuid(uuid: Out<'_, [u8; 16]>, device: DeviceId) {
        let state = ready()?;
        give(uuid, identity(state.config.first + state.device(device)?))
    }

    fn cuDeviceGetUuid_v2(uuid: Out<'_, [u8; 16]>, device: DeviceId) {
        let state = ready()?;
        give(uuid, identity(state.config.first + state.device(device)?))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<'_, usize>, device: DeviceId) {
        let state = ready()?;
        state.device(device)?;
        give(bytes, state.config.memory)
    }

    fn cuDeviceTotalMem(bytes: Out<'_, c_uint>, device: DeviceId) {
        let state = ready()?;
        state.device(device)?;
        give(bytes, c_uint::try_from(state.config.memory).unwrap_or(c_uint::MAX))
    }

    fn cuDeviceGetAttribute(value: Out<'_, c_int>, attribute: c_uint, device: DeviceId) {
        let state = ready()?;
        state.device(device)?;
        let found = match attribute {
            // Threads of a block, and in its first two dimensions; the grid's first; one of many for the rest.
            1..=3 => 1024,
            4 => 64,
            5 => c_int::MAX,
            6 | 7 => 65_535,
            8 => 48 << 10,
            10 => 32,
            16 => 8,
            33 => device,
            75 => 9,
            // Mapped and unified addresses, managed memory, peers, virtual memory, file descriptors, pools, memory of
            // a node of the host.
            19 | 31 | 41 | 83 | 102 | 103 | 115 | 141 => 1,
            _ => 0,
        };
        give(value, found)
    }

    fn cuDeviceComputeCapability(major: Out<'_, c_int>, minor: Out<'_, c_int>, device: DeviceId) {
        ready()?.device(device)?;
        give(major, 9)?;
        give(minor, 0)
    }

    fn cuDeviceCanAccessPeer(can: Out<'_, c_int>, device: DeviceId, peer: DeviceId) {
        let state = ready()?;
        let (device, peer) = (state.device(device)?, state.device(peer)?);
        give(can, c_int::from(device != peer))
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<'_, MemoryPool>, device: DeviceId) {
        let mut state = ready()?;
        let device = state.device(device)?;
        let found = state.default_pool(device);
        give(pool, MemoryPool(found))
    }

    fn cuDeviceGetMemPool(pool: Out<'_, MemoryPool>, device: DeviceId) {
        let mut state = ready()?;
        let device = state.device(device)?;
        let found = state.current_pool(device);
        give(pool, MemoryPool(found))
    }

    fn cuDeviceSetMemPool(device: DeviceId, pool: MemoryPool) {
        let mut state = ready()?;
        let device = state.device(device)?;
        if state.pools.get(&pool.0).is_none_or(|pool| pool.device != device) {
            return Err(Code::INVALID_VALUE);
        }
        state.devices[device].current_pool = Some(pool.0);
        Ok(())
    }

    fn cuGetErrorName(code: Code, text: Out<'_, *const c_char>) {
        let name = error_name(code);
        offer(text, name.unwrap_or(std::ptr::null()));
        name.map(drop).ok_or(Code::INVALID_VALUE)
    }

    fn cuGetErrorString(code: Code, text: Out<'_, *const c_char>) {
        // The real one's sentences are its own; the name says as much.
        let name = error_name(code);
        offer(text, name.unwrap_or(std::ptr::null()));
        name.map(drop).ok_or(Code::INVALID_VALUE)
    }
}

fn identity(device: usize) -> [u8; 16] {
    let mut bytes = *b"gpuheap fake\0\0\0\0";
    bytes[15] = u8::try_from(device).unwrap_or(u8::MAX);
    bytes
}

/// The name as a text of C, made once for each code that is asked for.
fn error_name(code: Code) -> Option<*const c_char> {
    use std::collections::BTreeMap;
    use std::ffi::CString;
    use std::sync::{Mutex, PoisonError};
    static TEXTS: Mutex<BTreeMap<u32, &'static std::ffi::CStr>> = Mutex::new(BTreeMap::new());
    let name = code.name()?;
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = texts.get(&code.0) {
        return Some(text.as_ptr());
    }
    let text: &'static std::ffi::CStr = Box::leak(CString::new(name).ok()?.into_boxed_c_str());
    texts.insert(code.0, text);
    Some(text.as_ptr())
}
