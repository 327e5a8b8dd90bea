//! What the loader takes for the driver, looked at without starting it.

use std::ffi::{CStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::library::open;
use crate::raw::Code;

/// What a program of this process's environment would get by the driver's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// The version of the shim, if that is what the name leads to.
    pub shim: Option<u32>,
    /// The newest version of CUDA that the driver is for, as 12080 for 12.8, or what it answered instead.
    pub version: Result<u32, Code>,
    /// The file that answered that.
    pub driver: Option<PathBuf>,
}

impl Look {
    /// Opens `libcuda.so.1` as every other program does and asks for its version, which a driver tells before it is
    /// initialised. The toolkit's stub answers [`Code::STUB_LIBRARY`].
    pub fn by_name() -> Result<Self, Error> {
        let path = Path::new("libcuda.so.1");
        let library = open::open(path)?;
        let function = "cuDriverGetVersion";
        let address =
            open::find(library, function).ok_or_else(|| Error::Function { path: path.to_owned(), function })?;
        // SAFETY: the driver's function of that name has that signature.
        let ask = unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut c_int) -> Code>(address) };
        let mut version: c_int = 0;
        // SAFETY: `version` outlives the call.
        let code = unsafe { ask(&raw mut version) };
        let shim = self::version(library, "gpuheap_shim_version");
        let version = if code.is_success() { Ok(u32::try_from(version).unwrap_or(0)) } else { Err(code) };
        Ok(Self { shim, version, driver: file_of(address) })
    }
}

/// The version of gpuheap's library if that is what programs get by the name of the driver's management library (NVML),
/// `libnvidia-ml.so.1`; nothing if they get another one.
pub fn management_by_name() -> Result<Option<u32>, Error> {
    let library = open::open(Path::new("libnvidia-ml.so.1"))?;
    Ok(version(library, "gpuheap_shim_nvml_version"))
}

/// What a function of gpuheap's own says that takes nothing and returns a version.
fn version(library: open::Library, function: &str) -> Option<u32> {
    let address = open::find(library, function)?;
    // SAFETY: nobody else exports a function of that name, and ours has that signature.
    let ask = unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> u32>(address) };
    // SAFETY: takes nothing.
    Some(unsafe { ask() })
}

/// The file that has the function at that address.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: looks an address up, whatever it is, and writes to `found`, which outlives the call.
    let is_there = unsafe { libc::dladdr(address, found.as_mut_ptr()) } != 0;
    // SAFETY: all of it may be zero.
    let name = unsafe { found.assume_init() }.dli_fname;
    if !is_there || name.is_null() {
        return None;
    }
    // SAFETY: a text that ends in a zero byte, there as long as the library is.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}
