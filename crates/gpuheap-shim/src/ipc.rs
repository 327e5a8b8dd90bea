//! `cuIpcGetMemHandle`, `cuIpcOpenMemHandle`, `cuIpcCloseMemHandle`: memory of `cuMemAlloc` in another process.
//!
//! The driver does that for memory of its own `cuMemAlloc`, and not for chunks, of which large allocations are made here.
//! For those the handle is one of this library's, which says where the other process finds them: it asks the exporting
//! process, over its socket in the folder of the run, for descriptors of all pieces and maps them. Other memory and other
//! handles are the driver's own business.
//!
//! | module | what is there |
//! | --- | --- |
//! | `handle` | the 64 bytes that programs pass around |
//! | `exporter` | what the process does that has the memory |
//! | `importer` | what the process does that opens it |
//! | `descriptors` | descriptors of files over a socket |
//!
//! What is passed on stays where it is for good, as another process has the physical memory mapped. Pieces that are on
//! the device are kept there from the moment at which a handle is asked for; those on the host come back when
//! somebody opens them. If the exporting process frees the memory, it goes on to exist for those who have it open.

use std::collections::BTreeMap;
use std::ffi::c_uint;

use gpuheap_cuda::raw::{Code, Context, DevicePtr, IpcHandle};

use crate::around::{Call, result};
use crate::charge::{Charge, Kind};
use crate::linear::leave;
use crate::moving::{self, Moving};
use crate::state::{self, Allocation, Key, lock};
use crate::{converted, quiet, real};

mod descriptors;
mod exporter;
mod handle;
mod importer;

pub(crate) use exporter::pass_on;

use handle::Handle;
use importer::Imported;

/// An allocation of another process that this one has open.
#[derive(Debug)]
struct Opened {
    handle: Handle,
    context: usize,
    memory: Imported,
    /// How often it was opened and not closed yet.
    count: usize,
    _charge: Charge,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Table {
    by_address: BTreeMap<usize, Opened>,
    /// Closed while a graph was being recorded, when nobody may wait for a device.
    late: Vec<Opened>,
}

impl Table {
    /// Opens one again that is open in a context already: as the driver's, it has one address there.
    fn again(&mut self, handle: &Handle, context: usize) -> Option<DevicePtr> {
        let found = self.by_address.iter_mut().find(|(_, one)| one.handle == *handle && one.context == context);
        let (address, opened) = found?;
        opened.count += 1;
        Some(DevicePtr(*address))
    }
}

/// A handle of memory.
pub(crate) fn get(call: Call<'_>, place: *mut IpcHandle, address: DevicePtr) -> Code {
    let shared = moving::get().and_then(|_| converted::share(address));
    let (Some(shared), Some(_), false) = (shared, real::current(), place.is_null()) else { return call() };
    for piece in &shared.pieces {
        piece.pin_on_device();
    }
    // SAFETY: the program's own place for it, which is not null.
    unsafe { place.write(Handle::of(&shared).into()) };
    Code::SUCCESS
}

/// Memory of a handle.
pub(crate) fn open(call: Call<'_>, place: *mut DevicePtr, handle: IpcHandle, _flags: c_uint) -> Code {
    let Some(handle) = Handle::read(&handle) else { return open_driver_s(call, place) };
    if place.is_null() {
        return Code::INVALID_VALUE;
    }
    let Some((context, device)) = real::current() else { return Code::INVALID_CONTEXT };
    if handle.process == std::process::id() {
        // A process cannot open its own.
        return Code::INVALID_CONTEXT;
    }
    let run = moving::run_folder();
    let (Some(moving), Some(run)) = (moving::get(), run) else { return Code::INVALID_VALUE };
    close_late(moving);
    let state = state::get();
    let again = lock(&state.opened).again(&handle, context);
    let address = match again {
        Some(address) => address,
        // The other process may want this one's memory, which has to come to rest for that.
        None => match state.gate.outside(|| importer::import(moving, &run, &handle, device)) {
            Ok(memory) => match enter(handle, context, memory) {
                Ok(address) => address,
                Err(memory) => {
                    memory.give_back(moving);
                    return Code::OUT_OF_MEMORY;
                }
            },
            Err(code) => return code,
        },
    };
    // SAFETY: the program's own place for it, which is not null.
    unsafe { place.write(address) };
    Code::SUCCESS
}

/// Enters what was opened. Another thread may have been faster: then it is that one's address.
fn enter(handle: Handle, context: usize, memory: Imported) -> Result<DevicePtr, Imported> {
    let Some(charge) = Charge::take(Kind::Imported, None, memory.bytes) else { return Err(memory) };
    let address = memory.address;
    charge.at(address.0);
    let mut table = lock(&state::get().opened);
    if let Some(address) = table.again(&handle, context) {
        drop(table);
        if let Some(moving) = moving::get() {
            memory.give_back(moving);
        }
        return Ok(address);
    }
    table.by_address.insert(address.0, Opened { handle, context, memory, count: 1, _charge: charge });
    Ok(address)
}

fn open_driver_s(call: Call<'_>, place: *mut DevicePtr) -> Code {
    let code = call();
    if code.is_success()
        && let Some(address) = result(place)
        && let Some(charge) = Charge::take(Kind::Imported, None, real::range_bytes(address).unwrap_or(0))
    {
        let context = real::current().map_or(0, |(context, _)| context);
        state::get().put(Key::Address(address.0), Allocation { charge, context });
    }
    code
}

/// Memory is no longer wanted here.
pub(crate) fn close(call: Call<'_>, address: DevicePtr) -> Code {
    let Some(moving) = moving::get() else { return leave(call, Key::Address(address.0)) };
    let closed = {
        let mut table = lock(&state::get().opened);
        match table.by_address.get_mut(&address.0) {
            None => None,
            Some(opened) if opened.count > 1 => {
                opened.count -= 1;
                return Code::SUCCESS;
            }
            Some(_) => table.by_address.remove(&address.0),
        }
    };
    let Some(closed) = closed else { return leave(call, Key::Address(address.0)) };
    if state::get().captures() > 0 {
        lock(&state::get().opened).late.push(closed);
        return Code::SUCCESS;
    }
    close_late(moving);
    closed.end(moving)
}

/// Closes what was closed while a graph was being recorded, once none is.
pub(crate) fn close_late(moving: &Moving) {
    if state::get().captures() > 0 {
        return;
    }
    let late = std::mem::take(&mut lock(&state::get().opened).late);
    for closed in late {
        closed.end(moving);
    }
}

/// Closes what a context takes along that is gone.
pub(crate) fn drop_context(context: usize) {
    let Some(moving) = moving::get() else { return };
    let gone: Vec<Opened> = {
        let mut table = lock(&state::get().opened);
        let (gone, stays) =
            std::mem::take(&mut table.by_address).into_iter().partition(|(_, one)| one.context == context);
        table.by_address = stays;
        let gone: BTreeMap<usize, Opened> = gone;
        gone.into_values().collect()
    };
    for opened in gone {
        opened.memory.give_back(moving);
    }
}

/// Where the allocation at an address begins, and its size.
pub(crate) fn range(address: DevicePtr) -> Option<(DevicePtr, usize)> {
    let table = lock(&state::get().opened);
    let (start, opened) = table.by_address.range(..=address.0).next_back()?;
    (address.0 - start < opened.memory.bytes).then_some((DevicePtr(*start), opened.handle.asked))
}

impl Opened {
    /// Waits for the work of its context, as the driver does, and takes it away. What the device reports is of the
    /// program's work, and is the program's to hear.
    fn end(self, moving: &Moving) -> Code {
        let code = quiet::wait_for(moving, Context(self.context)).unwrap_or_else(|gone| gone);
        self.memory.give_back(moving);
        code
    }
}
