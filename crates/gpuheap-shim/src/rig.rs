//! What moves memory, on the driver for tests and in the test's own process: chunks with contents, limits, and faults.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use gpuheap_cuda::raw::{AllocationProp, Code, DeviceId, DevicePtr, MemLocation, location};
use gpuheap_cuda::{Context, Driver, Stream};

use crate::charge::Kind;
use crate::chunks::{Chunk, own_access};
use crate::ledger::{Ledger, Limits};
use crate::moves::Mover;
use crate::moving::Moving;
use crate::state::State;

pub(crate) const MIB: usize = 1 << 20;

/// All that a test needs, for one at a time. Chunks are dropped before it.
pub(crate) struct Rig {
    pub(crate) moving: &'static Moving,
    pub(crate) context: Context,
    /// What was mapped for chunks.
    mapped: RefCell<Vec<(DevicePtr, usize)>>,
    _alone: MutexGuard<'static, ()>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let api = self.moving.api();
        control("reset");
        self.moving.ahead.give_back(self.moving);
        for (address, bytes) in self.mapped.take() {
            // SAFETY: mapped here for a chunk, which nobody has any more. One that was unmapped is refused.
            unsafe { (api.cuMemUnmap)(address, bytes) };
            // SAFETY: reserved here.
            unsafe { (api.cuMemAddressFree)(address, bytes) };
        }
        self.moving.mapped.trim(0);
        OWN.set(None);
    }
}

thread_local! {
    /// What a test has for itself, on the thread that it runs on.
    static OWN: Cell<Option<(&'static State, &'static Moving)>> = const { Cell::new(None) };
}

/// The state of the calling thread's test.
pub(crate) fn state() -> Option<&'static State> {
    OWN.get().map(|(state, _)| state)
}

/// And what moves its memory.
pub(crate) fn moving() -> Option<&'static Moving> {
    OWN.get().map(|(_, moving)| moving)
}

/// The driver's handle: it lies beside the test program, where cargo puts libraries of dependencies.
static LIBRARY: LazyLock<usize> = LazyLock::new(|| {
    let path = std::env::current_exe().unwrap().with_file_name("libgpuheap_fakecuda.so");
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: this workspace's driver for tests, which does nothing when it is loaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{} is not there", path.display());
    handle.expose_provenance()
});

fn find(name: &str) -> Option<*const c_void> {
    let name = CString::new(name).unwrap();
    // SAFETY: a handle that stays; the name ends in a zero byte.
    let found = unsafe { libc::dlsym(std::ptr::with_exposed_provenance_mut(*LIBRARY), name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const())
}

/// Ends the primary context; whoever retained it has another by the same handle. Memory by handles is not the context's.
#[track_caller]
pub(crate) fn reset() {
    let address = find("cuDevicePrimaryCtxReset_v2").unwrap();
    // SAFETY: the driver's function of that name has that signature.
    let call = unsafe { std::mem::transmute::<*const c_void, extern "C" fn(DeviceId) -> Code>(address) };
    assert!(call(0).is_success());
}

/// Bytes that count on the device.
pub(crate) fn used() -> u64 {
    crate::state::get().ledger.used(0)
}

/// A driver with nothing in it, and these limits.
pub(crate) fn rig(budget: usize, spill: usize) -> Rig {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the driver for tests, whose functions have the driver's signatures.
    let driver = unsafe { Driver::attach("libgpuheap_fakecuda.so".as_ref(), find) }.unwrap();
    control("devices 1; memory 1GiB; reset");
    // SAFETY: takes a number.
    assert!(unsafe { (driver.api().cuInit)(0) }.is_success());
    reset();
    let limits = Limits { budget: budget as u64, spill: spill as u64 };
    let state: &'static State = Box::leak(Box::new(State::with(Ledger::open(None, limits))));
    let moving: &'static Moving = Box::leak(Box::new(Moving::with(driver)));
    OWN.set(Some((state, moving)));
    let context = moving.device(0).unwrap().context().unwrap();
    Rig { moving, context, mapped: RefCell::default(), _alone: alone }
}

/// Sets the driver up, or lets it fail: see its `config`.
pub(crate) fn control(commands: &str) {
    let address = find("gpuheap_fake_control").unwrap();
    // SAFETY: the function of that name has that signature.
    let call = unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn(*const c_char) -> c_int>(address) };
    let text = CString::new(commands).unwrap();
    // SAFETY: the text ends in a zero byte.
    assert_eq!(unsafe { call(text.as_ptr()) }, 0, "{commands}");
}

/// How often something was called, or happened.
pub(crate) fn happened(what: &str) -> u64 {
    let address = find("gpuheap_fake_calls").unwrap();
    // SAFETY: the function of that name has that signature.
    let call = unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn(*const c_char) -> u64>(address) };
    let text = CString::new(what).unwrap();
    // SAFETY: the text ends in a zero byte.
    unsafe { call(text.as_ptr()) }
}

impl Rig {
    /// A chunk on the device, all of one value.
    #[track_caller]
    pub(crate) fn chunk(&self, bytes: usize, value: u8) -> Arc<Chunk> {
        let prop = AllocationProp::at(MemLocation { kind: location::DEVICE, id: 0 });
        let chunk = Chunk::new_on_device(self.moving, bytes, prop, Kind::Linear).unwrap();
        let (api, mut address, access) = (self.moving.api(), DevicePtr::NULL, own_access(0));
        // SAFETY: `address` outlives the call.
        let code = unsafe { (api.cuMemAddressReserve)(&raw mut address, bytes, 0, DevicePtr::NULL, 0) };
        assert!(code.is_success(), "{code}");
        assert!(chunk.map(self.moving, address, bytes, 0, 0).is_success());
        self.mapped.borrow_mut().push((address, bytes));
        // SAFETY: just mapped; `access` outlives the call.
        let code = unsafe { (api.cuMemSetAccess)(address, bytes, &raw const access, 1) };
        assert!(code.is_success(), "{code}");
        chunk.granted(&[access]);
        self.fill(&chunk, 0, bytes, value);
        chunk
    }

    /// What the program does: some of a chunk gets a value, by the time this returns.
    #[track_caller]
    pub(crate) fn fill(&self, chunk: &Chunk, offset: usize, bytes: usize, value: u8) {
        let stream = Stream::new(&self.context).unwrap();
        let (_current, api) = (self.context.enter().unwrap(), self.moving.api());
        let address = DevicePtr(chunk.inner().address.unwrap().0 + offset);
        // SAFETY: within the chunk, which stays.
        let code = unsafe { (api.cuMemsetD8Async)(address, value, bytes, stream.handle()) };
        assert!(code.is_success(), "{code}");
        stream.synchronize().unwrap();
    }

    /// What is in a chunk.
    #[track_caller]
    pub(crate) fn content(&self, chunk: &Chunk) -> Vec<u8> {
        let _current = self.context.enter().unwrap();
        let mut found = vec![0_u8; chunk.bytes];
        let address = chunk.inner().address.unwrap();
        // SAFETY: as many bytes as there is room for, of a chunk that stays.
        let code = unsafe { (self.moving.api().cuMemcpyDtoH_v2)(found.as_mut_ptr().cast(), address, chunk.bytes) };
        assert!(code.is_success(), "{code}");
        found
    }

    /// Whether all of a chunk has a value.
    #[track_caller]
    pub(crate) fn is_all(&self, chunk: &Chunk, value: u8) -> bool {
        self.content(chunk).iter().all(|byte| *byte == value)
    }

    /// Moves chunks both ways, all of them.
    #[track_caller]
    pub(crate) fn exchange(&self, outs: &[Arc<Chunk>], backs: &[Arc<Chunk>]) {
        let (gone, came) = Mover::new(self.moving, 0).unwrap().exchange(outs, backs);
        assert!(gone.error.is_none() && came.error.is_none(), "{gone:?} {came:?}");
        assert_eq!((gone.chunks, came.chunks), (outs.len(), backs.len()));
    }

    /// The program takes a chunk away.
    #[track_caller]
    pub(crate) fn unmap(&self, chunk: &Chunk) {
        let address = chunk.inner().address.unwrap();
        // SAFETY: mapped when the chunk was made.
        let code = unsafe { (self.moving.api().cuMemUnmap)(address, chunk.bytes) };
        assert!(code.is_success(), "{code}");
        chunk.unmapped();
    }
}
