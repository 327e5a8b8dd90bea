//! The kernel that says whether pieces of the device's memory are the same. It is this library's own: the program's launches
//! are counted, this one's are not.

use std::ffi::{CStr, CString, c_void};

use gpuheap_cuda::raw::{DevicePtr, Function, Module, Stream};
use gpuheap_cuda::{Api, Error, check};

const TEXT: &str = include_str!("same.ptx");
const NAME: &CStr = c"gpuheap_same";
/// As many as devices of today have at once. Each answers for itself.
const BLOCKS: u32 = 1024;
const THREADS: u32 = 256;
/// What the kernel compares at a time.
const STEP: usize = 16;

/// The kernel in a context, with a place for the answers to so many questions.
#[derive(Debug)]
pub(super) struct Same {
    module: Module,
    kernel: Function,
    /// Page-locked memory of the host, which the device writes to.
    answers: *mut c_void,
    questions: usize,
}

// SAFETY: what the pointer leads to is the process's own, and whoever has this has it alone.
unsafe impl Send for Same {}

impl Same {
    /// Loads it into the current context, where drivers compile it.
    pub(super) fn load(api: &Api, questions: usize) -> Result<Self, Error> {
        let text = CString::new(TEXT).map_err(|_| Error::Text)?;
        let mut module = Module::NULL;
        // SAFETY: `module` and `text` outlive the call, and the text ends in a zero byte.
        check("cuModuleLoadData", unsafe { (api.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()) })?;
        let mut same = Self { module, kernel: Function::NULL, answers: std::ptr::null_mut(), questions };
        match same.fill(api) {
            Ok(()) => Ok(same),
            Err(error) => {
                same.unload(api);
                Err(error)
            }
        }
    }

    fn fill(&mut self, api: &Api) -> Result<(), Error> {
        let kernel = &raw mut self.kernel;
        // SAFETY: `kernel` outlives the call, and the name ends in a zero byte.
        check("cuModuleGetFunction", unsafe { (api.cuModuleGetFunction)(kernel, self.module, NAME.as_ptr()) })?;
        let bytes = self.questions * BLOCKS as usize * size_of::<u32>();
        // SAFETY: `answers` outlives the call.
        check("cuMemAllocHost_v2", unsafe { (api.cuMemAllocHost_v2)(&raw mut self.answers, bytes) })
    }

    /// The context is there and is the current one, and nothing that was asked is unanswered.
    pub(super) fn unload(self, api: &Api) {
        if !self.answers.is_null() {
            // SAFETY: made here, and freed here alone.
            unsafe { (api.cuMemFreeHost)(self.answers) };
        }
        // SAFETY: loaded here, and unloaded here alone.
        unsafe { (api.cuModuleUnload)(self.module) };
    }

    /// Asks. The answer is there once the stream was waited for. Both must stay mapped until then.
    pub(super) fn ask(
        &mut self,
        api: &Api,
        stream: Stream,
        question: usize,
        (one, other, bytes): (DevicePtr, DevicePtr, usize),
    ) -> Result<(), Error> {
        if question >= self.questions || !bytes.is_multiple_of(STEP) {
            return Err(Error::Range { offset: question, length: bytes, size: self.questions });
        }
        let place = self.place(question);
        for block in 0..BLOCKS as usize {
            // SAFETY: within the memory of that question, which the device was not asked to write to yet.
            let answer = unsafe { place.add(block) };
            // SAFETY: as above.
            unsafe { answer.write_volatile(0) };
        }
        // The device knows the host's page-locked memory by the same address.
        let (mut one, mut other, mut count, mut answers) =
            (one.0 as u64, other.0 as u64, (bytes / STEP) as u64, place.expose_provenance() as u64);
        let mut arguments: [*mut c_void; 4] =
            [(&raw mut one).cast(), (&raw mut other).cast(), (&raw mut count).cast(), (&raw mut answers).cast()];
        // SAFETY: a pointer for each parameter, which are read before this returns; the kernel reads `bytes` bytes of both,
        // and writes a word for each block to the place of the question, which has one for each.
        let code = unsafe {
            let (kernel, none) = (self.kernel, std::ptr::null_mut());
            (api.cuLaunchKernel)(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, arguments.as_mut_ptr(), none)
        };
        check("cuLaunchKernel", code)
    }

    /// Whether all blocks said so.
    pub(super) fn are_same(&self, question: usize) -> bool {
        let place = self.place(question);
        (0..BLOCKS as usize).all(|block| {
            // SAFETY: within the memory of that question, written when it was asked.
            let answer = unsafe { place.add(block) };
            // SAFETY: as above; the device has written what it writes.
            unsafe { answer.read_volatile() == 1 }
        })
    }

    fn place(&self, question: usize) -> *mut u32 {
        // SAFETY: the memory has room for all questions, and callers ask for one of them.
        unsafe { self.answers.cast::<u32>().add(question.min(self.questions - 1) * BLOCKS as usize) }
    }
}
