//! Looking arguments up: by the number of chunks, of parameters, of threads.

use std::ffi::c_void;
use std::hint::black_box;
use std::thread;

use gpuheap_cuda::raw::Function;

use crate::clock::{nanoseconds, say};
use crate::parameters::{Answer, KERNELS};
use crate::ranges::{PAGE, Ranges};
use crate::temperature::Temperature;
use crate::touched::{Arguments, touched};

const SPACE: u64 = 0x7f12_0000_0000;
/// Different launches that are made in turn, of so many kernels.
const LAUNCHES: usize = 1024;
const KINDS: usize = 64;
const THREADS: u32 = 8;

/// Numbers without meaning, the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }
}

/// A chunk has 20 MiB, as PyTorch's expandable segments have them; the next one is beside it.
const BYTES: u64 = 10 * PAGE;

fn chunks(count: u32) -> Box<Ranges> {
    let ranges = Box::new(Ranges::new());
    for chunk in 0..count {
        assert!(ranges.set(SPACE + u64::from(chunk) * BYTES, BYTES, chunk));
    }
    ranges
}

/// What parameters hold: each of that many words; every `each`-th is an address of a chunk.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    parameters: usize,
    words: usize,
    each: u64,
}

const SHAPES: &[Shape] = &[
    Shape { name: "4 parameters, half addresses", parameters: 4, words: 1, each: 2 },
    Shape { name: "12 parameters, half addresses", parameters: 12, words: 1, each: 2 },
    Shape { name: "12 parameters, all addresses", parameters: 12, words: 1, each: 1 },
    Shape { name: "40 parameters, half addresses", parameters: 40, words: 1, each: 2 },
    Shape { name: "a structure of 4 KiB, half addresses", parameters: 1, words: 512, each: 2 },
];

impl Shape {
    fn answer(self, number: usize) -> Answer {
        let bytes = self.words * 8;
        if number < self.parameters { Answer::Parameter { offset: number * bytes, bytes } } else { Answer::End }
    }
}

/// The arguments of [`LAUNCHES`] launches.
struct Program {
    shape: Shape,
    /// They point into `_words`.
    pointers: Vec<*mut c_void>,
    _words: Vec<u64>,
}

// SAFETY: the memory behind the pointers is its own and only read.
unsafe impl Sync for Program {}

impl Program {
    fn new(shape: Shape, chunks: u32) -> Self {
        let mut numbers = Numbers(u64::from(chunks));
        let word = |index: usize| {
            let number = numbers.next();
            match (index as u64).is_multiple_of(shape.each) {
                true => SPACE + number % (u64::from(chunks.max(1)) * BYTES),
                // Sizes, strides, and pairs of floats.
                false if number.is_multiple_of(2) => number % 100_000,
                false => 0x3f80_0000_3f00_0000 + number % 1_000_000,
            }
        };
        let mut words: Vec<u64> = (0..LAUNCHES * shape.parameters * shape.words).map(word).collect();
        let starts = words.chunks_mut(shape.words).map(|words| words.as_mut_ptr().cast());
        Self { shape, pointers: starts.collect(), _words: words }
    }

    fn arguments(&self, launch: u32) -> Arguments {
        let launch = launch as usize % LAUNCHES;
        let kernel = launch % KINDS + KINDS * (self.shape.parameters + self.shape.words);
        let first = self.pointers[launch * self.shape.parameters..].as_ptr();
        Arguments {
            function: Function(0x5555_0000_0000 + kernel * 0x150),
            parameters: first.cast_mut(),
            extra: std::ptr::null_mut(),
        }
    }

    fn look_up(&self, ranges: &Ranges, count: u32, mut touch: impl FnMut(u32, u32)) {
        for launch in 0..count {
            // SAFETY: the arguments were made for a kernel of that shape.
            let known = unsafe {
                let tell = |chunk, _| {
                    touch(chunk, launch);
                    true
                };
                touched(self.arguments(launch), (&KERNELS, ranges), |number| self.shape.answer(number), tell)
            };
            assert!(known);
        }
    }

    /// As a launch does it.
    fn launch(&self, ranges: &Ranges, temperature: &Temperature, count: u32) {
        for launch in 0..count {
            let number = temperature.launch();
            // SAFETY: as above.
            let known = unsafe {
                let tell = |chunk, address| {
                    temperature.touch(chunk, number, address, 1);
                    true
                };
                touched(self.arguments(launch), (&KERNELS, ranges), |number| self.shape.answer(number), tell)
            };
            assert!(known);
        }
    }
}

pub(crate) fn measure() {
    for count in [0, 1_000, 100_000] {
        let ranges = chunks(count);
        let temperature = Box::new(Temperature::new());
        for shape in SHAPES {
            let program = Program::new(*shape, count);
            let look = |launches| program.look_up(&ranges, launches, |chunk, _| _ = black_box(chunk));
            say(&format!("{count} chunks, {}: found", shape.name), nanoseconds(look));
            let launch = |launches| program.launch(&ranges, &temperature, launches);
            say(&format!("{count} chunks, {}: found and counted", shape.name), nanoseconds(launch));
        }
    }
    find(&chunks(100_000));
    for chunks in [1_000, 100_000] {
        threads(chunks);
    }
}

/// One lookup.
fn find(ranges: &Ranges) {
    let mut numbers = Numbers(1);
    let mut many = |name: &str, word: &dyn Fn(u64) -> u64| {
        let words: Vec<u64> = (0..4096).map(|_| word(numbers.next())).collect();
        let look = |count: u32| {
            for number in 0..count {
                black_box(ranges.find(black_box(words[number as usize % words.len()])));
            }
        };
        say(&format!("find, 100000 chunks: {name}"), nanoseconds(look));
    };
    let span = 100_000 * BYTES;
    many("any chunk", &|number| SPACE + number % span);
    many("one of ten chunks", &|number| SPACE + number % (10 * BYTES));
    many("small numbers", &|number| number % 100_000);
    many("pairs of floats", &|number| 0x3f80_0000_3f00_0000 + number % 1_000_000);
    many("addresses of the host", &|number| 0x5555_0000_0000 + number % (1 << 30));
}

/// Several threads that launch at the same time.
fn threads(count: u32) {
    let ranges = chunks(count);
    let temperature = Box::new(Temperature::new());
    let shape = Shape { name: "12 parameters, half addresses", parameters: 12, words: 1, each: 2 };
    let program = Program::new(shape, count);
    let cores = thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
    for all in [1, THREADS] {
        let (ranges, temperature, program) = (&*ranges, &*temperature, &program);
        let together = |launches| {
            thread::scope(|scope| {
                for _ in 0..all {
                    scope.spawn(move || program.launch(ranges, temperature, launches));
                }
            });
        };
        let each = nanoseconds(together) / f64::from(all);
        say(&format!("{count} chunks, {}: {all} threads on {} cores", shape.name, all.min(cores)), each);
    }
}
