//! Modules, libraries, kernels and their launches.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use gpuheap_cuda::raw::{self, Code, LaunchConfig};

use crate::entry::{Done, Out, element, exports, give, offer, stream_exports};
use crate::graph::KernelNode;
use crate::host_kernels::{self, Builtin};
use crate::pages;
use crate::ptx::{self, Head};
use crate::state::{State, ready};
use crate::work::Work;

/// A module or a library.
#[derive(Debug)]
pub(crate) struct Module {
    /// The context of a module; 0 for a library, which belongs to none.
    pub(crate) context: usize,
    heads: Vec<Head>,
}

/// A kernel.
#[derive(Debug)]
pub(crate) struct Function {
    module: usize,
    head: Head,
    name: CString,
}

/// What a registered kernel gets: its size, and pointers to its arguments.
#[repr(C)]
#[derive(Debug)]
pub struct FakeLaunch {
    /// Blocks.
    pub grid: [c_uint; 3],
    /// Threads of a block.
    pub block: [c_uint; 3],
    /// Pointers to the arguments, in order.
    pub arguments: *const *const c_void,
}

/// A kernel of a test program: called once for each launch, on the stream's thread.
pub type HostKernel = extern "C" fn(*const FakeLaunch);

#[derive(Clone, Copy)]
enum Body {
    Builtin(Builtin),
    Registered(HostKernel),
}

static REGISTERED: LazyLock<Mutex<HashMap<String, HostKernel>>> = LazyLock::new(Mutex::default);

fn registered() -> MutexGuard<'static, HashMap<String, HostKernel>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a kernel of that name does.
fn body(name: &str) -> Option<Body> {
    let registered = registered().get(name).copied().map(Body::Registered);
    registered.or_else(|| host_kernels::find(name).map(Body::Builtin))
}

/// Registers what a kernel of that name does; it reaches memory as the host does, so a wrong address ends the program.
///
/// # Safety
///
/// `name` must be a text that ends in a zero byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpuheap_fake_register_kernel(name: *const c_char, kernel: HostKernel) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    registered().insert(name, kernel);
}

exports! {
    fn cuModuleLoadData(module: Out<'_, raw::Module>, image: *const c_char) {
        load_module(module, image)
    }

    fn cuModuleLoadDataEx(
        module: Out<'_, raw::Module>, image: *const c_char, _count: c_uint, _options: *const c_uint,
        _values: *const *const c_void,
    ) {
        load_module(module, image)
    }

    fn cuModuleUnload(module: raw::Module) {
        let mut state = ready()?;
        state.current()?;
        state.modules.remove(&module.0).ok_or(Code::INVALID_HANDLE)?;
        state.drop_functions();
        Ok(())
    }

    fn cuModuleGetFunction(function: Out<'_, raw::Function>, module: raw::Module, name: *const c_char) {
        let mut state = ready()?;
        state.current()?;
        let found = state.function(module.0, &text(name)?)?;
        give(function, raw::Function(found))
    }

    fn cuModuleGetLoadingMode(mode: Out<'_, c_uint>) {
        give(mode, 1)
    }

    fn cuLibraryLoadData(
        library: Out<'_, raw::Library>, image: *const c_char, _options: *const c_uint, _values: *const *const c_void,
        _count: c_uint, _library_options: *const c_uint, _library_values: *const *const c_void, _library_count: c_uint,
    ) {
        let mut state = ready()?;
        let heads = heads(image)?;
        let handle = state.handle();
        state.modules.insert(handle, Module { context: 0, heads });
        give(library, raw::Library(handle))
    }

    fn cuLibraryUnload(library: raw::Library) {
        let mut state = ready()?;
        state.modules.remove(&library.0).ok_or(Code::INVALID_HANDLE)?;
        state.drop_functions();
        Ok(())
    }

    fn cuLibraryGetKernel(kernel: Out<'_, raw::Kernel>, library: raw::Library, name: *const c_char) {
        let mut state = ready()?;
        let found = state.function(library.0, &text(name)?)?;
        give(kernel, raw::Kernel(found))
    }

    fn cuKernelGetFunction(function: Out<'_, raw::Function>, kernel: raw::Kernel) {
        let state = ready()?;
        state.current()?;
        state.functions.get(&kernel.0).ok_or(Code::INVALID_HANDLE)?;
        give(function, raw::Function(kernel.0))
    }

    fn cuFuncGetParamInfo(function: raw::Function, index: usize, offset: Out<'_, usize>, bytes: Out<'_, usize>) {
        parameter(function.0, index, offset, bytes)
    }

    fn cuKernelGetParamInfo(kernel: raw::Kernel, index: usize, offset: Out<'_, usize>, bytes: Out<'_, usize>) {
        parameter(kernel.0, index, offset, bytes)
    }

    fn cuFuncGetName(name: Out<'_, *const c_char>, function: raw::Function) {
        let state = ready()?;
        give(name, state.functions.get(&function.0).ok_or(Code::INVALID_HANDLE)?.name.as_ptr())
    }

    fn cuFuncGetModule(module: Out<'_, raw::Module>, function: raw::Function) {
        let state = ready()?;
        give(module, raw::Module(state.functions.get(&function.0).ok_or(Code::INVALID_HANDLE)?.module))
    }

    fn cuFuncGetAttribute(value: Out<'_, c_int>, attribute: c_uint, function: raw::Function) {
        let state = ready()?;
        state.functions.get(&function.0).ok_or(Code::INVALID_HANDLE)?;
        // Threads of a block at most, registers, versions of the code.
        give(value, match attribute { 0 => 1024, 4 => 32, 5 | 6 => 90, _ => 0 })
    }

    fn cuFuncSetAttribute(function: raw::Function, _attribute: c_uint, _value: c_int) {
        ready()?.functions.get(&function.0).map(drop).ok_or(Code::INVALID_HANDLE)
    }
}

stream_exports! {
    fn cuLaunchKernel / cuLaunchKernel_ptsz [thread] (
        function: raw::Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, _shared: c_uint, stream: raw::Stream, arguments: *const *const c_void,
        extra: *const *const c_void,
    ) {
        launch(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], (stream, thread), (arguments, extra))
    }

    fn cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz [thread] (
        function: raw::Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, _shared: c_uint, stream: raw::Stream, arguments: *const *const c_void,
    ) {
        let none = std::ptr::null();
        launch(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], (stream, thread), (arguments, none))
    }

    fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz [thread] (
        config: Option<&LaunchConfig>, function: raw::Function, arguments: *const *const c_void,
        extra: *const *const c_void,
    ) {
        let config = config.ok_or(Code::INVALID_VALUE)?;
        launch(function, config.grid, config.block, (config.stream, thread), (arguments, extra))
    }
}

fn text(name: *const c_char) -> Result<String, Code> {
    if name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller gives a text that ends in a zero byte.
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

fn heads(image: *const c_char) -> Result<Vec<Head>, Code> {
    ptx::heads(&text(image)?).ok_or(Code::INVALID_IMAGE)
}

fn load_module(out: Out<'_, raw::Module>, image: *const c_char) -> Done {
    let mut state = ready()?;
    let context = state.current()?;
    let heads = heads(image)?;
    let handle = state.handle();
    state.modules.insert(handle, Module { context, heads });
    give(out, raw::Module(handle))
}

fn parameter(function: usize, index: usize, offset: Out<'_, usize>, bytes: Out<'_, usize>) -> Done {
    let state = ready()?;
    let function = state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
    let (found, size) = function.head.parameters.get(index).ok_or(Code::INVALID_VALUE)?;
    let offset = offset.ok_or(Code::INVALID_VALUE)?;
    offset.write(*found);
    offer(bytes, *size);
    Ok(())
}

impl State {
    fn function(&mut self, module: usize, name: &str) -> Result<usize, Code> {
        let heads = &self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?.heads;
        let head = heads.iter().find(|head| head.name == name).ok_or(Code::NOT_FOUND)?.clone();
        let same = |function: &&Function| function.module == module && function.head.name == name;
        if let Some((handle, _)) = self.functions.iter().find(|(_, function)| same(function)) {
            return Ok(*handle);
        }
        let name = CString::new(name).map_err(|_| Code::INVALID_VALUE)?;
        let handle = self.handle();
        self.functions.insert(handle, Function { module, head, name });
        Ok(handle)
    }

    /// Takes away kernels whose module is gone.
    pub(crate) fn drop_functions(&mut self) {
        let Self { functions, modules, .. } = self;
        functions.retain(|_, function| modules.contains_key(&function.module));
    }
}

/// Gives a stream a launch. The arguments are read before this returns.
fn launch(
    function: raw::Function,
    grid: [u32; 3],
    block: [u32; 3],
    (stream, thread): (raw::Stream, bool),
    (arguments, extra): (*const *const c_void, *const *const c_void),
) -> Done {
    let mut state = ready()?;
    let stream = state.stream(stream, thread)?;
    let context = state.streams[&stream].context;
    let device = state.context(context)?.device;
    if grid.contains(&0) || block.contains(&0) || block.iter().map(|size| u64::from(*size)).product::<u64>() > 1024 {
        return Err(Code::INVALID_VALUE);
    }
    let head = &state.functions.get(&function.0).ok_or(Code::INVALID_HANDLE)?.head;
    let values = read_arguments(head, arguments, extra)?;
    let offsets: Vec<usize> = head.parameters.iter().map(|(offset, _)| *offset).collect();
    let body = body(&head.name).ok_or(Code::NO_BINARY_FOR_GPU)?;
    let (kept, places) = (values.clone(), offsets.clone());
    let work: Work = Arc::new(move || match body {
        Body::Builtin(builtin) => builtin(device, &values, &offsets, grid[0]),
        Body::Registered(kernel) => {
            let pointers: Vec<*const c_void> = offsets.iter().map(|offset| values[*offset..].as_ptr().cast()).collect();
            let launch = FakeLaunch { grid, block, arguments: pointers.as_ptr() };
            kernel(&raw const launch);
            Ok(())
        }
    });
    state.submit(stream, Vec::new(), Some(work))?;
    let origin = state.streams[&stream].capture;
    if let Some(captured) = origin.and_then(|origin| state.streams.get_mut(&origin)).map(|origin| &mut origin.captured)
    {
        let node = KernelNode::new(function, (grid, block), kept, &places);
        captured.kernels.push((captured.work.len() - 1, Arc::new(node)));
    }
    Ok(())
}

/// The values of all parameters, each at its offset.
fn read_arguments(head: &Head, arguments: *const *const c_void, extra: *const *const c_void) -> Result<Vec<u8>, Code> {
    const BUFFER: usize = 1;
    const SIZE: usize = 2;
    let end = head.parameters.iter().map(|(offset, bytes)| offset + bytes).max().unwrap_or(0);
    // One byte more, so that a parameter of no bytes at the end has a place as well.
    let mut values = vec![0_u8; end + 1];
    if !arguments.is_null() {
        for (number, (offset, bytes)) in head.parameters.iter().enumerate() {
            // SAFETY: the caller gives a pointer for each parameter.
            let argument = unsafe { element(arguments, number) };
            pages::copy(values[*offset..].as_mut_ptr().expose_provenance(), argument.expose_provenance(), *bytes);
        }
    } else if !extra.is_null() {
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: the caller gives pairs of a name and a pointer, the last name being zero.
        let mut at = extra;
        loop {
            // SAFETY: as above.
            let name = unsafe { *at }.addr();
            if name == 0 {
                break;
            }
            // SAFETY: as above.
            let value = unsafe { element(at, 1) };
            match name {
                BUFFER => start = value.expose_provenance(),
                // SAFETY: the value of a size is a pointer to it.
                SIZE => bytes = unsafe { *value.cast::<usize>() },
                _ => return Err(Code::INVALID_VALUE),
            }
            // SAFETY: as above.
            at = unsafe { at.add(2) };
        }
        if start == 0 || bytes < end {
            return Err(Code::INVALID_VALUE);
        }
        pages::copy(values.as_mut_ptr().expose_provenance(), start, end);
    } else if !head.parameters.is_empty() {
        return Err(Code::INVALID_VALUE);
    }
    Ok(values)
}
