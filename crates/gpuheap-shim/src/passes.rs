//! How often a kernel reads what its arguments point to, about: products of matrices and their like read their operands
//! once for each tile of the result, others read once.
//!
//! It decides what is put on the host, and only there: each read of memory behind the link costs the same again. The name
//! tells, as well as it can; a kernel with a misleading name costs time and nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

/// Reads of an operand by a product of matrices at most: its tiles are of 128 to 256 rows, its operands of some thousand.
pub(crate) const MANY: u32 = 12;
/// Reads by all others.
pub(crate) const ONE: u32 = 1;

/// Reads by a launch on a grid of so many blocks. The result of a product has as many tiles as there are blocks, and each
/// operand is read once for each row or column of tiles, which is the root of their number; about half of that reaches
/// the memory (BERT-large on an H200: 12 of 45). A product with a single vector has few blocks and reads once. Blocks one
/// behind the other in the third direction work on other products, or on other parts of the operands.
#[inline]
pub(crate) fn of_grid(passes: u32, grid: [u32; 3]) -> u32 {
    if passes == ONE {
        return ONE;
    }
    let [columns, rows, _] = grid.map(u64::from);
    let blocks = columns * rows;
    u32::try_from(blocks.isqrt() / 2).unwrap_or(MANY).clamp(ONE, MANY)
}

/// Bytes that a block of most kernels works on at least: 128 threads, 16 bytes for each;
const BLOCK: u64 = 2 << 10;
/// and one of a product of matrices: a tile of 128 by 128 numbers of 4 bytes.
const TILE: u64 = 64 << 10;

/// How far operands go on behind their addresses, by a launch of so many blocks: about.
#[inline]
pub(crate) fn reach(is_product: bool, blocks: u64) -> u64 {
    blocks.saturating_mul(if is_product { TILE } else { BLOCK })
}

/// What names of such kernels have in them, in any case.
const NAMES: &[&str] = &[
    "gemm",
    "gemv",
    "cutlass",
    "xmma",
    "cublas",
    "conv",
    "wgrad",
    "dgrad",
    "fprop",
    "flash",
    "fmha",
    "attention",
    "wgmma",
];

/// And what names of kernels have in them that finish what those did: they add parts of a result up.
const NOT: &str = "reduce";

/// What is known, by the kernel's handle: 48 bits of it and the number. A newer one takes the place of one that is met
/// there.
pub(crate) struct Passes([AtomicU64; SLOTS]);

const SLOTS: usize = 1 << 14;
const NUMBER_BITS: u32 = 16;

/// Kernels of this process.
pub(crate) static PASSES: Passes = Passes::new();

impl Passes {
    #[expect(clippy::large_stack_arrays, reason = "it is made where it stays, by the compiler")]
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; SLOTS])
    }

    /// Of a kernel. The first time `is_product` is asked.
    #[inline]
    pub(crate) fn of(&self, function: usize, is_product: impl FnOnce() -> bool) -> u32 {
        let handle = function as u64;
        let slot = usize::try_from(handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOTS.trailing_zeros()));
        let slot = &self.0[slot.unwrap_or(0) % SLOTS];
        let word = slot.load(Ordering::Relaxed);
        if word >> NUMBER_BITS == handle << NUMBER_BITS >> NUMBER_BITS && word != 0 {
            return u32::try_from(word & ((1 << NUMBER_BITS) - 1)).unwrap_or(ONE);
        }
        let passes = if is_product() { MANY } else { ONE };
        slot.store(handle << NUMBER_BITS | u64::from(passes), Ordering::Relaxed);
        passes
    }

    /// Forgets all kernels, before any of them goes: see [`crate::parameters::forget_all`].
    pub(crate) fn forget_all(&self) {
        for slot in &self.0 {
            if slot.load(Ordering::Relaxed) != 0 {
                slot.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// Whether a kernel of that name works on products.
pub(crate) fn is_product(name: &[u8]) -> bool {
    let holds = |part: &str| name.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()));
    NAMES.iter().any(|part| holds(part)) && !holds(NOT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_products_are_told() {
        for name in [
            "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8",
            "_ZN7cutlass7Kernel2I66cutlass_80_tensorop_s1688gemm",
            "void cudnn::cnn::conv2d_grouped_direct_kernel",
            "nvjet_hsh_128x256_GEMM",
            "fmha_cutlassF_f32_aligned_64x64_rf_sm80",
        ] {
            assert!(is_product(name.as_bytes()), "{name}");
        }
        for name in ["_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffffLb0E", "cudnn::cnn::reduce_wgrad_nchw_helper"] {
            assert!(!is_product(name.as_bytes()), "{name}");
        }
        for name in ["vectorized_elementwise_kernel", "multi_tensor_apply_kernel", "layer_norm", "", "g"] {
            assert!(!is_product(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_product_reads_as_often_as_its_grid_says() {
        assert_eq!(of_grid(ONE, [64, 64, 1]), ONE);
        assert_eq!(of_grid(MANY, [64, 32, 1]), MANY);
        assert_eq!(of_grid(MANY, [132, 1, 1]), 5);
        assert_eq!(of_grid(MANY, [16, 1, 64]), 2, "of many products at once");
        assert_eq!(of_grid(MANY, [8, 1, 1]), ONE);
        assert_eq!(of_grid(MANY, [0, 1, 1]), ONE, "the driver refuses that one");
        assert_eq!(of_grid(MANY, [u32::MAX; 3]), MANY);
    }

    #[test]
    fn each_kernel_is_asked_about_once_until_all_are_forgotten() {
        let passes = Box::new(Passes::new());
        let handle = 0x7f12_3456_7890;
        assert_eq!(passes.of(handle, || true), MANY);
        assert_eq!(passes.of(handle, || unreachable!()), MANY);
        assert_eq!(passes.of(handle + 0x40, || false), ONE);
        passes.forget_all();
        assert_eq!(passes.of(handle, || false), ONE);
        assert_eq!(passes.of(0, || true), MANY, "a handle that is none is asked about each time");
    }
}
