//! Physical memory and its mappings. It is charged once, from its creation until the last handle and the last mapping
//! are gone, in whichever order. Memory of a device is a chunk ([`crate::chunks`]) if it may move.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex};

use gpuheap_cuda::raw::{AccessDesc, AllocationHandle, AllocationProp, Code, DeviceId, DevicePtr, location};

use crate::around::{Call, result};
use crate::charge::{Charge, Kind};
use crate::chunks::{self, Chunk};
use crate::state::{self, lock};
use crate::{converted, moving, real};

/// Physical memory that something holds.
#[derive(Debug)]
struct Physical {
    charge: Mutex<Charge>,
}

/// What is behind a handle or a mapping.
#[derive(Clone, Debug)]
enum Held {
    /// Memory that stays where it is.
    Fixed(Arc<Physical>),
    /// Memory that may move.
    Chunk(Arc<Chunk>),
}

/// All that is known of it.
#[derive(Debug, Default)]
pub(crate) struct Paging {
    /// By handle or token, how often it was given out.
    handles: BTreeMap<u64, (u32, Held)>,
    /// By address, mapped bytes.
    mappings: BTreeMap<usize, (usize, Held)>,
}

pub(crate) fn create(
    call: Call<'_>,
    handle: *mut AllocationHandle,
    bytes: usize,
    prop: *const AllocationProp,
    flags: u64,
) -> Code {
    let Some(prop) = result(prop) else { return call() };
    if let Some(moving) = moving::get()
        && chunks::is_movable(&prop, flags)
        && !handle.is_null()
        && bytes > 0
    {
        return match Chunk::new(moving, bytes, prop, Kind::Physical) {
            Ok(chunk) => {
                let token = chunk.token();
                lock(&state::get().paging).handles.insert(token.0, (1, Held::Chunk(chunk)));
                // SAFETY: the program's own place for it, which is not null.
                unsafe { handle.write(token) };
                Code::SUCCESS
            }
            Err(code) => {
                if code == Code::OUT_OF_MEMORY {
                    Charge::refuse(Kind::Physical, Some(prop.location.id), bytes);
                }
                code
            }
        };
    }
    let charge = match prop.location.kind {
        location::DEVICE => Charge::take(Kind::Physical, Some(prop.location.id), bytes),
        location::HOST | location::HOST_NUMA | location::HOST_NUMA_CURRENT => {
            Charge::take(Kind::PhysicalHost, None, bytes)
        }
        // A kind of place that is not known here: the driver's business.
        _ => return call(),
    };
    let Some(charge) = charge else { return Code::OUT_OF_MEMORY };
    let code = call();
    if code.is_success()
        && let Some(handle) = result(handle)
    {
        charge.at(usize::try_from(handle.0).unwrap_or(0));
        let physical = Held::Fixed(Arc::new(Physical { charge: Mutex::new(charge) }));
        lock(&state::get().paging).handles.insert(handle.0, (1, physical));
    }
    code
}

pub(crate) fn import(call: Call<'_>, handle: *mut AllocationHandle, _shared: *mut c_void, _kind: c_uint) -> Code {
    let code = call();
    if code.is_success()
        && let Some(handle) = result(handle)
        // How large it is, its mapping will tell.
        && let Some(charge) = Charge::take(Kind::Imported, None, 0)
    {
        charge.at(usize::try_from(handle.0).unwrap_or(0));
        let physical = Held::Fixed(Arc::new(Physical { charge: Mutex::new(charge) }));
        lock(&state::get().paging).handles.insert(handle.0, (1, physical));
    }
    code
}

pub(crate) fn release(call: Call<'_>, handle: AllocationHandle) -> Code {
    let given_back = lock(&state::get().paging).give_back(handle.0);
    if let Some(Held::Chunk(_)) = given_back {
        // Its memory goes with the last of handles and mappings.
        return Code::SUCCESS;
    }
    let code = call();
    if let (false, Some(held)) = (code.is_success(), given_back) {
        lock(&state::get().paging).give_out(handle.0, held);
    }
    code
}

pub(crate) fn map(
    call: Call<'_>,
    address: DevicePtr,
    bytes: usize,
    offset: usize,
    handle: AllocationHandle,
    flags: u64,
) -> Code {
    let chunk = chunk_of(handle);
    let code = match (&chunk, moving::get()) {
        (Some(chunk), Some(moving)) => {
            note_context();
            chunk.map(moving, address, bytes, offset, flags)
        }
        _ => call(),
    };
    if code.is_success() {
        let mut paging = lock(&state::get().paging);
        // Other objects can be mapped as well; they are no memory.
        if let Some(held) = paging.handles.get(&handle.0).map(|(_, held)| held.clone()) {
            if let Held::Fixed(physical) = &held {
                let mut charge = lock(&physical.charge);
                if charge.kind == Kind::Imported && charge.bytes() < bytes as u64 {
                    charge.set(bytes as u64);
                }
            }
            paging.mappings.insert(address.0, (bytes, held));
        }
    }
    code
}

pub(crate) fn unmap(call: Call<'_>, address: DevicePtr, bytes: usize) -> Code {
    let end = address.0.saturating_add(bytes);
    let mut gone = {
        let mut paging = lock(&state::get().paging);
        let mut rest = paging.mappings.split_off(&address.0);
        let mut after = rest.split_off(&end);
        paging.mappings.append(&mut after);
        rest
    };
    let code = call();
    if !code.is_success() {
        lock(&state::get().paging).mappings.append(&mut gone);
    }
    for (_, (_, held)) in gone {
        if let Held::Chunk(chunk) = held {
            chunk.unmapped();
        }
    }
    code
}

pub(crate) fn set_access(
    call: Call<'_>,
    address: DevicePtr,
    bytes: usize,
    wanted: *const AccessDesc,
    count: usize,
) -> Code {
    let code = call();
    if code.is_success() && !wanted.is_null() {
        // SAFETY: the driver read as many.
        let wanted = unsafe { std::slice::from_raw_parts(wanted, count) };
        let end = address.0.saturating_add(bytes);
        let mapped: Vec<Held> = {
            let paging = lock(&state::get().paging);
            paging.mappings.range(address.0..end).map(|(_, (_, held))| held.clone()).collect()
        };
        for held in mapped {
            if let Held::Chunk(chunk) = held {
                chunk.granted(wanted);
            }
        }
    }
    code
}

pub(crate) fn retain(call: Call<'_>, handle: *mut AllocationHandle, address: *mut c_void) -> Code {
    if let Some(chunk) = chunk_at(address.addr())
        && !handle.is_null()
    {
        let token = chunk.token();
        lock(&state::get().paging).give_out(token.0, Held::Chunk(chunk));
        // SAFETY: the program's own place for it, which is not null.
        unsafe { handle.write(token) };
        return Code::SUCCESS;
    }
    if converted::chunk_at(DevicePtr(address.addr())).is_some() {
        // As for all memory of `cuMemAlloc`: there is no handle of it for programs.
        return Code::INVALID_VALUE;
    }
    let code = call();
    if code.is_success()
        && let Some(handle) = result(handle)
    {
        let mut paging = lock(&state::get().paging);
        let mapped = paging.at(address.addr());
        if let Some(held) = mapped {
            paging.give_out(handle.0, held);
        }
    }
    code
}

/// Memory is passed on to other processes, or to other devices in one operation: it stays where it is from now on.
pub(crate) fn export(call: Call<'_>, shared: *mut c_void, handle: AllocationHandle, kind: c_uint, flags: u64) -> Code {
    exposed(call, handle, |handle| real::export(shared, handle, kind, flags))
}

pub(crate) fn bind_multicast(
    call: Call<'_>,
    multicast: AllocationHandle,
    multicast_offset: usize,
    memory: AllocationHandle,
    offset: usize,
    bytes: usize,
    flags: u64,
) -> Code {
    exposed(call, memory, |memory| real::bind_multicast(multicast, multicast_offset, memory, offset, bytes, flags))
}

#[allow(clippy::too_many_arguments, reason = "the driver's function has as many")]
pub(crate) fn bind_multicast_on(
    call: Call<'_>,
    multicast: AllocationHandle,
    device: DeviceId,
    multicast_offset: usize,
    memory: AllocationHandle,
    offset: usize,
    bytes: usize,
    flags: u64,
) -> Code {
    exposed(call, memory, |memory| {
        real::bind_multicast_on(multicast, device, multicast_offset, memory, offset, bytes, flags)
    })
}

pub(crate) fn properties(call: Call<'_>, prop: *mut AllocationProp, handle: AllocationHandle) -> Code {
    match chunk_of(handle) {
        Some(chunk) if !prop.is_null() => {
            // SAFETY: the program's own place for it, which is not null.
            unsafe { prop.write(chunk.prop) };
            Code::SUCCESS
        }
        _ => call(),
    }
}

fn exposed(call: Call<'_>, handle: AllocationHandle, pass: impl FnOnce(AllocationHandle) -> Code) -> Code {
    match (chunk_of(handle), moving::get()) {
        (Some(chunk), Some(moving)) => chunk.expose(moving).map_or_else(|code| code, pass),
        _ => call(),
    }
}

/// The chunk that a token stands for.
fn chunk_of(handle: AllocationHandle) -> Option<Arc<Chunk>> {
    if !chunks::is_token(handle) {
        return None;
    }
    match lock(&state::get().paging).handles.get(&handle.0) {
        Some((_, Held::Chunk(chunk))) => Some(Arc::clone(chunk)),
        _ => None,
    }
}

/// The chunk of the program's that is mapped at an address.
pub(crate) fn chunk_at(address: usize) -> Option<Arc<Chunk>> {
    match lock(&state::get().paging).at(address) {
        Some(Held::Chunk(chunk)) => Some(chunk),
        _ => None,
    }
}

/// All of the program's chunks that are mapped, by their addresses.
pub(crate) fn mapped_chunks() -> Vec<Arc<Chunk>> {
    let paging = lock(&state::get().paging);
    let chunk = |held: &Held| match held {
        Held::Chunk(chunk) => Some(Arc::clone(chunk)),
        Held::Fixed(_) => None,
    };
    paging.mappings.values().filter_map(|(_, held)| chunk(held)).collect()
}

fn note_context() {
    if let Some((context, _)) = real::current() {
        state::get().note_context(context);
    }
}

impl Paging {
    /// What is mapped at an address.
    fn at(&self, address: usize) -> Option<Held> {
        let mapped = self.mappings.range(..=address).next_back();
        mapped.filter(|(start, (bytes, _))| address - **start < *bytes).map(|(_, (_, held))| held.clone())
    }

    /// A handle is given out, perhaps again.
    fn give_out(&mut self, handle: u64, held: Held) {
        self.handles.entry(handle).or_insert((0, held)).0 += 1;
    }

    /// And given back.
    fn give_back(&mut self, handle: u64) -> Option<Held> {
        let (count, held) = self.handles.get_mut(&handle)?;
        *count -= 1;
        if *count > 0 {
            return Some(held.clone());
        }
        self.handles.remove(&handle).map(|(_, held)| held)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use gpuheap_cuda::raw::MemLocation;
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::HOST;

    const UNIT: usize = 2 << 20;

    #[derive(Clone, Debug)]
    enum Step {
        Create(usize),
        Release(usize),
        Map(usize, usize),
        Unmap(usize, usize),
        Retain(usize),
    }

    fn step() -> impl Strategy<Value = (Step, bool)> {
        let step = prop_oneof![
            (1..4_usize).prop_map(Step::Create),
            (0..8_usize).prop_map(Step::Release),
            (0..8_usize, 0..16_usize).prop_map(|(handle, at)| Step::Map(handle, at)),
            (0..16_usize, 1..8_usize).prop_map(|(at, size)| Step::Unmap(at, size)),
            (0..16_usize).prop_map(Step::Retain),
        ];
        (step, prop::bool::weighted(0.8))
    }

    /// What a driver would do, by its rules: handles, mappings, memory that lives as long as either.
    #[derive(Default)]
    struct Model {
        next: u64,
        /// By handle: how often it was given out, which memory it is.
        handles: BTreeMap<u64, (u32, u64)>,
        /// By address in units: how many units, which memory.
        mappings: BTreeMap<usize, (usize, u64)>,
        /// By memory, how many units.
        sizes: BTreeMap<u64, usize>,
    }

    impl Model {
        fn held(&self) -> u64 {
            let lives = |memory: &u64| {
                self.handles.values().any(|(_, other)| other == memory)
                    || self.mappings.values().any(|(_, other)| other == memory)
            };
            self.sizes.iter().filter(|(memory, _)| lives(memory)).map(|(_, units)| (units * UNIT) as u64).sum()
        }

        fn handle(&self, number: usize) -> AllocationHandle {
            AllocationHandle(self.handles.keys().nth(number).copied().unwrap_or(4711))
        }
    }

    /// Carries a step out, in the model as the driver and in the shim's own table around it.
    #[allow(clippy::too_many_lines, reason = "one arm for each call")]
    fn carry_out(model: &mut Model, step: &Step, goes_well: bool) {
        let refused = if goes_well { None } else { Some(Code::OUT_OF_MEMORY) };
        match *step {
            Step::Create(units) => {
                let mut handle = AllocationHandle(0);
                let place: *mut AllocationHandle = &raw mut handle;
                let prop = AllocationProp::at(MemLocation { kind: location::HOST_NUMA, id: 0 });
                let shared = RefCell::new(model);
                let driver = || {
                    let mut model = shared.borrow_mut();
                    if let Some(code) = refused {
                        return code;
                    }
                    model.next += 1;
                    let number = model.next;
                    model.handles.insert(number, (1, number));
                    model.sizes.insert(number, units);
                    // SAFETY: `handle` is there.
                    unsafe { place.write(AllocationHandle(number)) };
                    Code::SUCCESS
                };
                create(&driver, place, units * UNIT, &raw const prop, 0);
            }
            Step::Release(number) => {
                let handle = model.handle(number);
                let shared = RefCell::new(model);
                let driver = || {
                    let mut model = shared.borrow_mut();
                    let Some((count, _)) = model.handles.get_mut(&handle.0) else { return Code::INVALID_VALUE };
                    if let Some(code) = refused {
                        return code;
                    }
                    *count -= 1;
                    if *count == 0 {
                        model.handles.remove(&handle.0);
                    }
                    Code::SUCCESS
                };
                release(&driver, handle);
            }
            Step::Map(number, at) => {
                let handle = model.handle(number);
                let memory = model.handles.get(&handle.0).map(|(_, memory)| *memory);
                let units = memory.map_or(1, |memory| model.sizes[&memory]);
                let shared = RefCell::new(model);
                let driver = || {
                    let mut model = shared.borrow_mut();
                    let Some(memory) = memory else { return Code::INVALID_VALUE };
                    let taken =
                        model.mappings.iter().any(|(start, (size, _))| at < start + size && *start < at + units);
                    if taken || !goes_well {
                        return Code::INVALID_VALUE;
                    }
                    model.mappings.insert(at, (units, memory));
                    Code::SUCCESS
                };
                map(&driver, DevicePtr(at * UNIT), units * UNIT, 0, handle, 0);
            }
            Step::Unmap(at, size) => {
                let shared = RefCell::new(model);
                let driver = || {
                    let mut model = shared.borrow_mut();
                    // Whole mappings, without a hole, from the first byte to the last.
                    let mut end = at;
                    while let Some((units, _)) = model.mappings.get(&end).filter(|_| end < at + size) {
                        end += units;
                    }
                    if end != at + size || !goes_well {
                        return Code::INVALID_VALUE;
                    }
                    model.mappings.retain(|start, _| *start < at || *start >= end);
                    Code::SUCCESS
                };
                unmap(&driver, DevicePtr(at * UNIT), size * UNIT);
            }
            Step::Retain(at) => {
                let mut handle = AllocationHandle(0);
                let place: *mut AllocationHandle = &raw mut handle;
                let shared = RefCell::new(model);
                let driver = || {
                    let mut model = shared.borrow_mut();
                    let mapping =
                        model.mappings.range(..=at).next_back().filter(|(start, (units, _))| at < *start + units);
                    let Some((_, (_, memory))) = mapping.filter(|_| goes_well) else { return Code::INVALID_VALUE };
                    let memory = *memory;
                    model.handles.entry(memory).or_insert((0, memory)).0 += 1;
                    // SAFETY: `handle` is there.
                    unsafe { place.write(AllocationHandle(memory)) };
                    Code::SUCCESS
                };
                retain(&driver, place, std::ptr::without_provenance_mut(at * UNIT + 5));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_charged_is_what_lives(steps in prop::collection::vec(step(), 1..60)) {
            let mut model = Model::default();
            *lock(&state::get().paging) = Paging::default();
            for (step, goes_well) in &steps {
                carry_out(&mut model, step, *goes_well);
                let charged = state::get().ledger.bytes(Kind::PhysicalHost, HOST);
                prop_assert_eq!(charged, model.held(), "after {:?}", step);
            }
            *lock(&state::get().paging) = Paging::default();
            prop_assert_eq!(state::get().ledger.bytes(Kind::PhysicalHost, HOST), 0);
            prop_assert_eq!(state::get().ledger.violations(), 0);
        }
    }
}
