//! Modules, kernels, their parameters, and what they see of memory that moves.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use gpuheap_cuda::raw::Code;
use gpuheap_cuda::{
    Access, DeviceBuffer, DeviceMemory, HostBuffer, Kernel, Launch, Location, Module, Parameter, Physical, Reservation,
    Stream,
};

use crate::support::{Bench, KERNELS, bench};

/// The suite's kernels.
pub(crate) struct Kernels {
    fill: Kernel,
    add: Kernel,
    wait: Kernel,
}

impl Kernels {
    pub(crate) fn load(bench: &Bench) -> Self {
        let module = Module::from_ptx(&bench.context, KERNELS).unwrap();
        let kernel = |name| module.kernel(name).unwrap();
        Self { fill: kernel("gpuheap_fill"), add: kernel("gpuheap_add"), wait: kernel("gpuheap_wait") }
    }

    /// Writes `value` to the first `count` words, when the stream comes to it.
    pub(crate) fn fill(&self, stream: &Stream, memory: &impl DeviceMemory, count: u64, value: u32) {
        words(&self.fill, stream, memory, count, value);
    }

    /// Adds `value` to them.
    pub(crate) fn add(&self, stream: &Stream, memory: &impl DeviceMemory, count: u64, value: u32) {
        words(&self.add, stream, memory, count, value);
    }

    /// Reads them again and again until the flag is set.
    pub(crate) fn wait(&self, stream: &Stream, flag: &HostBuffer, memory: &impl DeviceMemory, count: u64) {
        memory.range(0, usize::try_from(count).unwrap() * 4).unwrap();
        let (mut flag, mut address, mut count) = (flag.address().0, memory.address().0, count);
        let mut arguments = [pointer(&mut flag), pointer(&mut address), pointer(&mut count)];
        let one = Launch { blocks: [1, 1, 1], threads: [1, 1, 1] };
        // SAFETY: the arguments are the kernel's, and the tests keep the memory until they set the flag and wait.
        unsafe { self.wait.launch(stream, one, &mut arguments) }.unwrap();
    }
}

fn words(kernel: &Kernel, stream: &Stream, memory: &impl DeviceMemory, count: u64, value: u32) {
    memory.range(0, usize::try_from(count).unwrap() * 4).unwrap();
    let (mut address, mut count, mut value) = (memory.address().0, count, value);
    let mut arguments = [pointer(&mut address), pointer(&mut count), pointer(&mut value)];
    let size = Launch { blocks: [8, 1, 1], threads: [128, 1, 1] };
    // SAFETY: the arguments are the kernel's, the words are within the memory, and the tests keep it until they waited.
    unsafe { kernel.launch(stream, size, &mut arguments) }.unwrap();
    // The values were read: these are others from now on.
    (address, count, value) = (0, 0, 0);
    std::hint::black_box((address, count, value));
}

fn pointer<T>(value: &mut T) -> *mut c_void {
    let pointer: *mut T = value;
    pointer.cast()
}

fn word(bench: &Bench, memory: &impl DeviceMemory, number: usize) -> u32 {
    let mut bytes = [0; 4];
    bench.context.read(memory, number * 4, &mut bytes).unwrap();
    u32::from_ne_bytes(bytes)
}

#[test]
fn parameters_are_told_with_their_places() {
    let bench = bench();
    let kernels = Kernels::load(&bench);
    if bench.driver.api().cuFuncGetParamInfo.is_none() {
        eprintln!("skipped: this driver cannot tell parameters");
        return;
    }
    let [a, b, c] = [(0, 8), (8, 8), (16, 4)].map(|(offset, bytes)| Parameter { offset, bytes });
    assert_eq!(kernels.fill.parameters().unwrap(), [a, b, c]);
    assert_eq!(kernels.wait.parameters().unwrap(), [a, b, Parameter { offset: 16, bytes: 8 }]);
}

#[test]
fn kernels_run_in_the_order_of_their_stream_with_the_arguments_of_their_launch() {
    let bench = bench();
    let kernels = Kernels::load(&bench);
    let stream = Stream::new(&bench.context).unwrap();
    let memory = DeviceBuffer::new(&bench.context, 40_000).unwrap();
    kernels.fill(&stream, &memory, 10_000, 1000);
    for _ in 0..10 {
        kernels.add(&stream, &memory, 10_000, 3);
    }
    kernels.add(&stream, &memory, 5000, 70);
    stream.synchronize().unwrap();
    assert_eq!(word(&bench, &memory, 0), 1100);
    assert_eq!(word(&bench, &memory, 4999), 1100);
    assert_eq!(word(&bench, &memory, 5000), 1030);
    assert_eq!(word(&bench, &memory, 9999), 1030);
}

#[test]
fn a_kernel_works_on_mapped_memory_across_neighbours() {
    let bench = bench();
    let kernels = Kernels::load(&bench);
    let here = Location::Device(bench.device.id());
    let unit = Physical::granularity(&bench.driver, here).unwrap();
    let reservation = Reservation::new(&bench.driver, 2 * unit).unwrap();
    let parts = [0, unit].map(|offset| {
        let physical = Physical::new(&bench.driver, here, unit).unwrap();
        let mapping = reservation.map(offset, &physical).unwrap();
        mapping.set_access(&bench.device, Access::ReadWrite).unwrap();
        mapping
    });
    let stream = Stream::new(&bench.context).unwrap();
    // Both parts as one range, by the address of the first.
    let whole = Whole(parts[0].address().0, 2 * unit);
    kernels.fill(&stream, &whole, (2 * unit / 4) as u64, 0xabcd_ef01);
    stream.synchronize().unwrap();
    assert_eq!(word(&bench, &parts[0], unit / 4 - 1), 0xabcd_ef01);
    assert_eq!(word(&bench, &parts[1], 0), 0xabcd_ef01);
    assert_eq!(word(&bench, &parts[1], unit / 4 - 1), 0xabcd_ef01);
}

struct Whole(usize, usize);

impl DeviceMemory for Whole {
    fn address(&self) -> gpuheap_cuda::raw::DevicePtr {
        gpuheap_cuda::raw::DevicePtr(self.0)
    }

    fn bytes(&self) -> usize {
        self.1
    }
}

/// What lets chunks move beside running kernels: an idle chunk is remapped while a kernel reads its neighbour.
#[test]
fn an_idle_chunk_is_remapped_while_a_kernel_runs_on_its_neighbour() {
    let bench = bench();
    let kernels = Kernels::load(&bench);
    let here = Location::Device(bench.device.id());
    let unit = Physical::granularity(&bench.driver, here).unwrap();
    let reservation = Reservation::new(&bench.driver, 2 * unit).unwrap();
    let physical = || Physical::new(&bench.driver, here, unit).unwrap();
    let (busy, idle, other) = (physical(), physical(), physical());
    let busy = reservation.map(0, &busy).unwrap();
    let mut idle = reservation.map(unit, &idle).unwrap();
    busy.set_access(&bench.device, Access::ReadWrite).unwrap();
    idle.set_access(&bench.device, Access::ReadWrite).unwrap();
    let flag = HostBuffer::new(&bench.context, 4).unwrap();
    let stream = Stream::new(&bench.context).unwrap();
    kernels.wait(&stream, &flag, &busy, 1024);

    let (done, late) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        // A driver that waits for the kernel would wait forever: then the flag ends it, and the test fails.
        scope.spawn(|| {
            for _ in 0..200 {
                thread::sleep(Duration::from_millis(50));
                if done.load(Ordering::SeqCst) {
                    return;
                }
            }
            late.store(true, Ordering::SeqCst);
            flag.write(0, 1).unwrap();
        });
        for _ in 0..4 {
            drop(std::mem::replace(&mut idle, {
                let reservation = Reservation::new(&bench.driver, unit).unwrap();
                reservation.map(0, &other).unwrap()
            }));
            idle = reservation.map(unit, &other).unwrap();
            idle.set_access(&bench.device, Access::ReadWrite).unwrap();
        }
        let running = !stream.is_idle().unwrap();
        done.store(true, Ordering::SeqCst);
        flag.write(0, 1).unwrap();
        stream.synchronize().unwrap();
        assert!(running && !late.load(Ordering::SeqCst), "remapping waited for the kernel");
    });
    bench.context.fill(&idle, 0, unit, 1).unwrap();
}

#[test]
fn what_is_no_module_and_no_kernel_is_told() {
    let bench = bench();
    let refused = Module::from_ptx(&bench.context, "int main() {}").unwrap_err().code().unwrap();
    assert!([Code::INVALID_IMAGE, Code::INVALID_PTX, Code::UNSUPPORTED_PTX_VERSION].contains(&refused), "{refused}");
    let module = Module::from_ptx(&bench.context, KERNELS).unwrap();
    assert_eq!(module.kernel("gpuheap_none").unwrap_err().code(), Some(Code::NOT_FOUND));
}
