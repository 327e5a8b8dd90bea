//! Opening the driver.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::api::Api;
use crate::device::Device;
use crate::error::Error;
use crate::raw::Code;

/// The oldest version of the driver's API that has all that is used here: stream-ordered memory came with 11.2, and
/// what is older does not tell functions apart by `cuGetProcAddress`.
pub const OLDEST_VERSION: u32 = 11_030;

/// The driver, initialised. It stays in the process until its end: the driver does not survive being closed.
#[derive(Clone, Debug)]
pub struct Driver(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    api: Api,
    path: PathBuf,
    version: u32,
}

impl Driver {
    /// Opens `libcuda.so.1` as every other program does: the loader's search path says where it is.
    pub fn load() -> Result<Self, Error> {
        // SAFETY: what the loader knows by the driver's name is the driver for every program of this machine.
        unsafe { Self::load_from(Path::new("libcuda.so.1")) }
    }

    /// Opens the driver at `path`.
    ///
    /// # Safety
    ///
    /// The library must be a CUDA driver: its constructors run, and its functions are called with the driver's
    /// signatures.
    pub unsafe fn load_from(path: &Path) -> Result<Self, Error> {
        let library = open::open(path)?;
        // SAFETY: the functions of a driver have the driver's signatures, as the caller established.
        let api = unsafe { Api::find(|name| open::find(library, name)) };
        let api = api.map_err(|function| Error::Function { path: path.to_owned(), function })?;
        // SAFETY: takes a number only.
        let started = unsafe { (api.cuInit)(0) };
        if started == Code::STUB_LIBRARY {
            return Err(Error::Stub { path: path.to_owned() });
        }
        check("cuInit", started)?;
        let mut version: c_int = 0;
        // SAFETY: `version` outlives the call.
        check("cuDriverGetVersion", unsafe { (api.cuDriverGetVersion)(&raw mut version) })?;
        let found = u32::try_from(version).unwrap_or(0);
        if found < OLDEST_VERSION {
            return Err(Error::Old { path: path.to_owned(), found, needed: OLDEST_VERSION });
        }
        Ok(Self(Arc::new(Inner { api, path: path.to_owned(), version: found })))
    }

    /// A driver that is loaded already, by whoever started it: nothing is opened and nothing is started. `find` gives
    /// the address of each function by the symbol under which the driver exports it.
    ///
    /// # Errors
    ///
    /// [`Error::Function`] if it lacks one that is needed.
    ///
    /// # Safety
    ///
    /// Each address that `find` gives must be that of a function with the driver's signature of that name, for good.
    pub unsafe fn attach(path: &Path, find: impl Fn(&'static str) -> Option<*const c_void>) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let api = unsafe { Api::find(find) };
        let api = api.map_err(|function| Error::Function { path: path.to_owned(), function })?;
        let mut version: c_int = 0;
        // SAFETY: `version` outlives the call.
        check("cuDriverGetVersion", unsafe { (api.cuDriverGetVersion)(&raw mut version) })?;
        Ok(Self(Arc::new(Inner { api, path: path.to_owned(), version: u32::try_from(version).unwrap_or(0) })))
    }

    /// The table of functions.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.0.api
    }

    /// What was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The newest version of CUDA that the driver is for, as 12080 for 12.8.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.0.version
    }

    /// The device of that ordinal.
    pub fn device(&self, ordinal: c_int) -> Result<Device, Error> {
        Device::new(self.clone(), ordinal)
    }

    /// The devices that this process may use.
    pub fn devices(&self) -> Result<Vec<Device>, Error> {
        let mut count: c_int = 0;
        // SAFETY: `count` outlives the call.
        check("cuDeviceGetCount", unsafe { (self.api().cuDeviceGetCount)(&raw mut count) })?;
        (0..count).map(|ordinal| Device::new(self.clone(), ordinal)).collect()
    }
}

/// The error of a call of that name, if it failed.
pub fn check(call: &'static str, code: Code) -> Result<(), Error> {
    if code.is_success() { Ok(()) } else { Err(Error::Call { call, code }) }
}

#[cfg(target_os = "linux")]
pub(crate) mod open {
    use std::ffi::{CStr, CString, c_void};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use crate::error::Error;

    #[derive(Clone, Copy)]
    pub(crate) struct Library(*mut c_void);

    /// Opens `path`, for good.
    pub(crate) fn open(path: &Path) -> Result<Library, Error> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Text)?;
        // SAFETY: `name` ends in a zero byte. What the library's constructors do is the caller's promise.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
        if handle.is_null() {
            return Err(Error::Open { path: path.to_owned(), reason: reason() });
        }
        Ok(Library(handle))
    }

    fn reason() -> String {
        // SAFETY: takes nothing; the text is this thread's own until its next call of the loader.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return "the loader gave no reason".to_owned();
        }
        // SAFETY: `dlerror` gives a text that ends in a zero byte.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// The address of an exported function.
    pub(crate) fn find(library: Library, name: &str) -> Option<*const c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the library is never closed, and `name` ends in a zero byte.
        let address = unsafe { libc::dlsym(library.0, name.as_ptr()) };
        (!address.is_null()).then_some(address.cast_const())
    }
}

#[cfg(not(target_os = "linux"))]
mod open {
    use std::ffi::c_void;
    use std::path::Path;

    use crate::error::Error;

    pub(super) type Library = ();

    pub(super) fn open(path: &Path) -> Result<Library, Error> {
        Err(Error::Open { path: path.to_owned(), reason: "drivers are opened on Linux only".to_owned() })
    }

    pub(super) fn find(_: Library, _: &str) -> Option<*const c_void> {
        None
    }
}
