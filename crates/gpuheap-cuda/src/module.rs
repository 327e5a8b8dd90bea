//! Modules and the kernels in them.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use crate::context::Context;
use crate::error::Error;
use crate::library::check;
use crate::raw::{self, Code};
use crate::stream::Stream;

/// Code for a device, unloaded with the last kernel of it.
#[derive(Clone, Debug)]
pub struct Module(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    context: Context,
    handle: raw::Module,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: loaded when this was made, and unloaded here alone, when no kernel of it is left.
        unsafe { (self.context.api().cuModuleUnload)(self.handle) };
    }
}

impl Module {
    /// A module of PTX text, which the driver compiles.
    pub fn from_ptx(context: &Context, text: &str) -> Result<Self, Error> {
        let text = CString::new(text).map_err(|_| Error::Text)?;
        let _current = context.enter()?;
        let mut handle = raw::Module::NULL;
        // SAFETY: `handle` and `text` outlive the call, and `text` ends in a zero byte, as PTX has to.
        let code = unsafe { (context.api().cuModuleLoadData)(&raw mut handle, text.as_ptr().cast()) };
        check("cuModuleLoadData", code)?;
        Ok(Self(Arc::new(Loaded { context: context.clone(), handle })))
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Result<Kernel, Error> {
        let name = CString::new(name).map_err(|_| Error::Text)?;
        let _current = self.0.context.enter()?;
        let mut handle = raw::Function::NULL;
        // SAFETY: `handle` and `name` outlive the call; the module is there as long as `self` is.
        let code = unsafe { (self.0.context.api().cuModuleGetFunction)(&raw mut handle, self.0.handle, name.as_ptr()) };
        check("cuModuleGetFunction", code)?;
        Ok(Kernel { module: self.clone(), handle })
    }
}

/// Where a parameter of a kernel is among all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its first byte.
    pub offset: usize,
    /// How many bytes it has.
    pub bytes: usize,
}

/// How many blocks of how many threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Blocks.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: [u32; 3],
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    module: Module,
    handle: raw::Function,
}

impl Kernel {
    /// The driver's handle.
    #[must_use]
    pub fn handle(&self) -> raw::Function {
        self.handle
    }

    /// Its parameters in order. Drivers before 12.4 cannot tell.
    pub fn parameters(&self) -> Result<Vec<Parameter>, Error> {
        let context = &self.module.0.context;
        let function = "cuFuncGetParamInfo";
        let ask = context.api().cuFuncGetParamInfo.ok_or(Error::Lacks { function })?;
        let _current = context.enter()?;
        let mut found = Vec::new();
        loop {
            let mut parameter = Parameter { offset: 0, bytes: 0 };
            // SAFETY: the kernel is there as long as `self` is, and `parameter` outlives the call.
            let code = unsafe { ask(self.handle, found.len(), &raw mut parameter.offset, &raw mut parameter.bytes) };
            if code == Code::INVALID_VALUE {
                // There is no parameter of that number.
                return Ok(found);
            }
            check(function, code)?;
            found.push(parameter);
        }
    }

    /// Starts it when `stream` comes to it. `arguments` are pointers to the values, which are read before this returns.
    ///
    /// # Safety
    ///
    /// There must be a pointer to a value of the right size for each parameter, and what the kernel does with them must
    /// stay within memory that remains mapped until the stream is past it.
    pub unsafe fn launch(&self, stream: &Stream, size: Launch, arguments: &mut [*mut c_void]) -> Result<(), Error> {
        let context = &self.module.0.context;
        let _current = context.enter()?;
        let (blocks, threads) = (size.blocks, size.threads);
        // SAFETY: stream and kernel are there; arguments and memory are as the caller established.
        let code = unsafe {
            (context.api().cuLaunchKernel)(
                self.handle,
                blocks[0],
                blocks[1],
                blocks[2],
                threads[0],
                threads[1],
                threads[2],
                0,
                stream.handle(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", code)
    }
}
