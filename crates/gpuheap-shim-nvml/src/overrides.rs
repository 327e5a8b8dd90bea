//! The overridden functions. NVML is asked first, with the caller's own arguments; what it filled in is changed where a
//! run has a budget, and nothing else is.

use std::ffi::c_void;

use crate::budget::Figures;
use crate::quiet::quietly;
use crate::raw::{Code, Device, Memory, MemoryV2};
use crate::real::Function;
use crate::run;

/// The overridden functions, by the symbols that are exported.
pub const NAMES: &[&str] = &["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"];

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, memory: *mut Memory) -> Code {
    static REAL: Function = Function::new(c"nvmlDeviceGetMemoryInfo");
    let Some(real) = REAL.find() else { return Code::FUNCTION_NOT_FOUND };
    // SAFETY: the library's function of that name has that signature.
    let real = unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn(Device, *mut Memory) -> Code>(real) };
    // SAFETY: with the caller's own arguments, which are what the library asks for.
    let code = unsafe { real(device, memory) };
    if !code.is_success() {
        return code;
    }
    // SAFETY: the library says that it filled it in.
    if let Some(memory) = unsafe { memory.as_mut() }
        && let Some(part) = quietly(|| run::part(device))
    {
        let told = part.of(Figures { total: memory.total, reserved: 0, free: memory.free, used: memory.used });
        *memory = Memory { total: told.total, free: told.free, used: told.used };
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut MemoryV2) -> Code {
    static REAL: Function = Function::new(c"nvmlDeviceGetMemoryInfo_v2");
    let Some(real) = REAL.find() else { return Code::FUNCTION_NOT_FOUND };
    // SAFETY: the library's function of that name has that signature.
    let real =
        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn(Device, *mut MemoryV2) -> Code>(real) };
    // SAFETY: with the caller's own arguments, which are what the library asks for.
    let code = unsafe { real(device, memory) };
    if !code.is_success() || memory.is_null() {
        return code;
    }
    // Of a structure that a later driver knows, only that it begins with its version is known here.
    // SAFETY: the library succeeded, so it is there.
    if unsafe { memory.cast_const().cast::<u32>().read() } != MemoryV2::VERSION {
        return code;
    }
    // SAFETY: it has the form that its version says, and the library filled it in.
    if let Some(memory) = unsafe { memory.as_mut() }
        && let Some(part) = quietly(|| run::part(device))
    {
        let MemoryV2 { version, total, reserved, free, used } = *memory;
        let told = part.of(Figures { total, reserved, free, used });
        let (total, reserved, free, used) = (told.total, told.reserved, told.free, told.used);
        *memory = MemoryV2 { version, total, reserved, free, used };
    }
    code
}

/// Tells this library from a driver's: the version of this interface.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_shim_nvml_version() -> u32 {
    1
}
