//! Which chunks the arguments of a launch name.
//!
//! An address can stand in any parameter of at least 8 bytes, and anywhere in one that is a structure passed by value
//! (a fused optimizer passes hundreds in one). So every word of every such parameter is looked up, in steps of 8 bytes
//! from the parameter's first one: structures that hold addresses are aligned to 8. A number that happens to be the
//! address of a chunk counts as one.
//!
//! **What this cannot know:** a kernel also reaches memory whose address is not among its arguments: through pointers that
//! lie in device memory (tables of pointers, linked structures), in the module's own variables (`__device__`,
//! `__constant__`), or that were computed from the address of another chunk. The arguments say what is used for certain
//! enough to choose by temperature; they do not prove that anything else is unused.

use std::ffi::c_void;

use gpuheap_cuda::raw::Function;

use crate::parameters::{Answer, Layout, MOST_BYTES, Parameters, Piece, WORD};
use crate::ranges::Ranges;

/// Names in `extra`, as the driver has them.
const END: usize = 0;
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;
/// The most pairs that are looked at; there are two names.
const MOST_PAIRS: usize = 8;

/// The arguments of a launch, as the program gave them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    /// What is launched.
    pub(crate) function: Function,
    /// A pointer to the value of each parameter.
    pub(crate) parameters: *mut *mut c_void,
    /// Names and values in turn: where all parameters are together. Looked at if `parameters` is null.
    pub(crate) extra: *mut *mut c_void,
}

/// Tells `touch` each chunk that the arguments name, and the address. Most places are told once, and some of those that
/// are named several times more often; so is one that `touch` does not take for an address. As long as there was no chunk,
/// nothing is looked at. False if the driver does not know the kernel's parameters, and then nothing was told.
///
/// `parameter` asks the driver for a parameter: see [`Parameters::with`]. Null where there should be arguments is the
/// driver's business: there is nothing to tell then.
///
/// # Safety
///
/// The arguments must be what the driver may be given for that kernel: it reads the same memory.
#[inline]
pub(crate) unsafe fn touched(
    arguments: Arguments,
    (kernels, chunks): (&Parameters, &Ranges),
    parameter: impl FnMut(usize) -> Answer,
    touch: impl FnMut(u32, u64) -> bool,
) -> bool {
    if chunks.is_untouched() {
        return true;
    }
    let mut words = Words { chunks, touch, told: [0; TOLD] };
    let look = |layout: &Layout| {
        if !arguments.parameters.is_null() {
            for piece in layout {
                // SAFETY: there is a pointer for each parameter, by the caller's promise.
                let place = unsafe { arguments.parameters.add(piece.number as usize) };
                // SAFETY: as above.
                let value = unsafe { place.read() };
                if !value.is_null() {
                    // SAFETY: it leads to a value of the parameter's size, by the caller's promise.
                    unsafe { words.look_at(value.cast_const(), piece.words as usize) };
                }
            }
        } else if !arguments.extra.is_null() {
            // SAFETY: the caller's promise.
            if let Some((start, bytes)) = unsafe { buffer(arguments.extra) } {
                for piece in layout {
                    let Piece { offset, words: count, .. } = *piece;
                    let (offset, count) = (offset as usize, count as usize);
                    if offset + count * WORD <= bytes {
                        // SAFETY: within the buffer, which has that many bytes by the caller's promise.
                        let value = unsafe { start.byte_add(offset) };
                        // SAFETY: as above.
                        unsafe { words.look_at(value, count) };
                    }
                }
            }
        }
    };
    kernels.with(arguments.function.0, parameter, look).is_some()
}

/// Whether a number that is an address in a chunk is one: that of a tensor. Expandable segments begin at 0x3'0000'0000, so
/// two small integers side by side, sizes and strides, often lead there as well. Tensors are aligned to more than numbers
/// are, but for a few views; and of 65,536 of them one begins where the lower half is as small as such a number. Only where
/// memory begins is it often nothing at all.
#[inline]
pub(crate) fn is_of_tensor(address: u64, chunks: &Ranges) -> bool {
    let lower = address & u64::from(u32::MAX);
    let begins = || lower == 0 && address.checked_sub(1).is_none_or(|before| chunks.find(before).is_none());
    address.is_multiple_of(ALIGNED) && (lower >= SMALL || begins())
}

const ALIGNED: u64 = 16;
const SMALL: u64 = 1 << 16;

/// Places that were told last are not told again: so many are remembered.
const TOLD: usize = 16;
/// What is within 512 bytes is one place: allocators align to that.
const UNIT_BITS: u32 = 9;

struct Words<'a, T> {
    chunks: &'a Ranges,
    touch: T,
    told: [u64; TOLD],
}

impl<T: FnMut(u32, u64) -> bool> Words<'_, T> {
    /// Looks `count` words up.
    ///
    /// # Safety
    ///
    /// They must be there.
    #[inline]
    unsafe fn look_at(&mut self, start: *const c_void, count: usize) {
        for number in 0..count {
            // SAFETY: within the words, by the caller's promise.
            let place = unsafe { start.byte_add(number * WORD) };
            // SAFETY: as above; the program's memory need not be aligned.
            let word = unsafe { place.cast::<u64>().read_unaligned() };
            if let Some(chunk) = self.chunks.find(word) {
                let place = word >> UNIT_BITS;
                let told = &mut self.told[usize::try_from(place).unwrap_or(0) % TOLD];
                if *told != place && (self.touch)(chunk, word) {
                    *told = place;
                }
            }
        }
    }
}

/// Where all parameters are together, and how many bytes they have; nothing if that is not what is said.
///
/// # Safety
///
/// `extra` must be names and values in turn, the last name being zero; the value of a size is a pointer to it.
unsafe fn buffer(extra: *mut *mut c_void) -> Option<(*const c_void, usize)> {
    let (mut start, mut bytes) = (std::ptr::null(), 0_usize);
    for pair in 0..MOST_PAIRS {
        // SAFETY: no name before was zero, so this pair is there.
        let place = unsafe { extra.add(2 * pair) };
        // SAFETY: as above.
        let name = unsafe { place.read() }.addr();
        if name == END {
            break;
        }
        // SAFETY: a name that is not zero has a value.
        let place = unsafe { place.add(1) };
        // SAFETY: as above.
        let value = unsafe { place.read() };
        match name {
            BUFFER_POINTER => start = value.cast_const(),
            BUFFER_SIZE if value.is_null() => return None,
            // SAFETY: the value of a size is a pointer to it.
            BUFFER_SIZE => bytes = unsafe { value.cast::<usize>().read_unaligned() },
            _ => return None,
        }
    }
    (!start.is_null()).then_some((start, bytes.min(MOST_BYTES)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::parameters::KERNELS;
    use crate::ranges::PAGE;

    const SPACE: u64 = 0x7f12_0000_0000;

    /// A hundred chunks of one to five pages, with gaps of a page.
    fn chunks() -> (Box<Ranges>, Vec<(u64, u64)>) {
        let (ranges, mut list, mut start) = (Box::new(Ranges::new()), Vec::new(), SPACE);
        for chunk in 0..100_u32 {
            let bytes = (u64::from(chunk) % 5 + 1) * PAGE;
            assert!(ranges.set(start, bytes, chunk));
            list.push((start, start + bytes));
            start += bytes + PAGE;
        }
        (ranges, list)
    }

    /// The same by looking at every chunk.
    fn naive(list: &[(u64, u64)], words: &[u64]) -> BTreeSet<u32> {
        let holds = |(start, end): &(u64, u64)| words.iter().any(|word| (*start..*end).contains(word));
        (0..).zip(list).filter(|(_, range)| holds(range)).map(|(chunk, _)| chunk).collect()
    }

    fn answers(sizes: &[usize]) -> impl Fn(usize) -> Answer {
        |number| match sizes.get(number) {
            Some(bytes) => {
                let before = sizes[..number].iter().map(|bytes| bytes.next_multiple_of(8)).sum();
                Answer::Parameter { offset: before, bytes: *bytes }
            }
            None => Answer::End,
        }
    }

    /// What is told, without what is told again.
    fn told(
        function: usize,
        sizes: &[usize],
        arguments: (*mut *mut c_void, *mut *mut c_void),
        ranges: &Ranges,
    ) -> BTreeSet<u32> {
        let arguments = Arguments { function: Function(function), parameters: arguments.0, extra: arguments.1 };
        let mut all = BTreeSet::new();
        // SAFETY: as the tests make them, for kernels of these parameters.
        let known = unsafe {
            touched(arguments, (&KERNELS, ranges), answers(sizes), |chunk, _| {
                all.insert(chunk);
                true
            })
        };
        assert!(known);
        all
    }

    /// Numbers near chunks, in them, and of any other sort.
    fn word() -> impl Strategy<Value = u64> {
        prop_oneof![
            3 => (0_u64..450 * PAGE).prop_map(|distance| SPACE - 10 * PAGE + distance),
            1 => any::<u64>(),
            1 => 0_u64..1000,
            1 => any::<(f32, f32)>().prop_map(|(one, other)| u64::from(one.to_bits()) << 32 | u64::from(other.to_bits())),
        ]
    }

    proptest! {
        #[test]
        fn both_forms_name_the_chunks_of_all_whole_words(
            parameters in prop::collection::vec((prop::collection::vec(word(), 0..12), 0_usize..8), 0..20),
            shift in 0_usize..8,
            function in 1_usize..1 << 47,
        ) {
            let (ranges, list) = chunks();
            let sizes: Vec<usize> = parameters.iter().map(|(words, rest)| words.len() * 8 + rest).collect();
            let expected = naive(&list, &parameters.iter().flat_map(|(words, _)| words.clone()).collect::<Vec<_>>());
            // All values in one buffer that begins anywhere, as `extra` has them.
            let mut buffer = vec![0xff; shift];
            let mut starts = Vec::new();
            for (words, rest) in &parameters {
                starts.push(buffer.len());
                buffer.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
                // The rest is less than an address, whatever it is.
                buffer.extend_from_slice(&SPACE.to_ne_bytes()[..*rest]);
                buffer.resize(shift + (buffer.len() - shift).next_multiple_of(8), 0);
            }
            let base = buffer.as_mut_ptr();
            let mut pointers: Vec<*mut c_void> = starts.iter().map(|start| base.wrapping_add(*start).cast()).collect();
            KERNELS.forget_all();
            prop_assert_eq!(&told(function, &sizes, (pointers.as_mut_ptr(), std::ptr::null_mut()), &ranges), &expected);
            let mut size = buffer.len() - shift;
            let mut extra = [
                std::ptr::without_provenance_mut(BUFFER_POINTER), base.wrapping_add(shift).cast(),
                std::ptr::without_provenance_mut(BUFFER_SIZE), (&raw mut size).cast(),
                std::ptr::null_mut(),
            ];
            prop_assert_eq!(&told(function, &sizes, (std::ptr::null_mut(), extra.as_mut_ptr()), &ranges), &expected);
            // The names may come in the other order.
            extra.swap(0, 2);
            extra.swap(1, 3);
            prop_assert_eq!(&told(function, &sizes, (std::ptr::null_mut(), extra.as_mut_ptr()), &ranges), &expected);
        }
    }

    #[test]
    fn a_structure_of_four_kibibytes_names_all_that_it_holds() {
        let (ranges, list) = chunks();
        let mut words: Vec<u64> = list.iter().cycle().take(512).map(|(start, _)| start + 77).collect();
        let mut pointers = [words.as_mut_ptr().cast()];
        let found = told(0x5000_0001, &[4096], (pointers.as_mut_ptr(), std::ptr::null_mut()), &ranges);
        assert_eq!(found, (0..100).collect());
    }

    #[test]
    fn a_place_is_not_told_for_each_pointer_into_it() {
        let (ranges, _) = chunks();
        let mut words: Vec<u64> = (0..512).map(|number| SPACE + number * 8).collect();
        let mut pointers = [words.as_mut_ptr().cast()];
        let arguments = Arguments {
            function: Function(0x5000_0002),
            parameters: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
        };
        let mut times = 0;
        let mut count = |_, address: u64| {
            // As if it were no address, and the first in its place is none.
            let is_one = !address.is_multiple_of(512);
            times += u32::from(is_one);
            is_one
        };
        // SAFETY: one parameter, of 4 KiB.
        assert!(unsafe { touched(arguments, (&KERNELS, &ranges), answers(&[4096]), &mut count) });
        assert_eq!(times, 4096 / 512);
    }

    #[test]
    fn null_and_what_is_no_form_of_arguments_name_nothing() {
        let (ranges, _) = chunks();
        let null = std::ptr::null_mut();
        let none = |arguments| assert_eq!(told(0x5000_0003, &[8, 8], arguments, &ranges), BTreeSet::new());
        none((null, null));
        let mut missing = [std::ptr::null_mut(); 2];
        none((missing.as_mut_ptr(), null));
        let name = |name| std::ptr::without_provenance_mut::<c_void>(name);
        let (mut values, mut small) = ([SPACE; 2], 7_usize);
        let values: *mut c_void = values.as_mut_ptr().cast();
        let small: *mut c_void = (&raw mut small).cast();
        for mut extra in [
            vec![name(END)],
            vec![name(BUFFER_POINTER), values, name(END)],
            vec![name(BUFFER_SIZE), small, name(END)],
            vec![name(BUFFER_SIZE), std::ptr::null_mut(), name(BUFFER_POINTER), values, name(END)],
            // A buffer that is too small for the first parameter.
            vec![name(BUFFER_POINTER), values, name(BUFFER_SIZE), small, name(END)],
            vec![name(77), values, name(END)],
        ] {
            none((null, extra.as_mut_ptr()));
        }
    }

    #[test]
    fn a_kernel_that_the_driver_does_not_know_is_not_looked_at() {
        let (ranges, _) = chunks();
        let mut value = SPACE;
        let mut pointers = [(&raw mut value).cast()];
        let arguments = Arguments {
            function: Function(0x5000_0004),
            parameters: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
        };
        // SAFETY: one parameter, which is not read.
        assert!(!unsafe { touched(arguments, (&KERNELS, &ranges), |_| Answer::Unknown, |_, _| unreachable!()) });
        let empty = Box::new(Ranges::new());
        // SAFETY: as above.
        assert!(unsafe { touched(arguments, (&KERNELS, &empty), |_| unreachable!(), |_, _| unreachable!()) });
    }

    #[test]
    fn small_numbers_side_by_side_are_no_tensors() {
        let chunks = Ranges::new();
        assert!(chunks.set(4 << 32, 8 << 20, 1) && chunks.set((5 << 32) - (8 << 20), 16 << 20, 2));
        for number in [4 << 32 | 1, 4 << 32 | 128, 5 << 32, 4 << 32 | 0x12_3457] {
            assert!(!is_of_tensor(number, &chunks), "{number:x}");
        }
        for tensor in [4 << 32, 4 << 32 | 0x12_3400, (5 << 32) - (8 << 20)] {
            assert!(is_of_tensor(tensor, &chunks), "{tensor:x}");
        }
    }
}
