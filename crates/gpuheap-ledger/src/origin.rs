//! Who asked the driver for memory.

/// The library that asked the driver for memory. The numbers are those of files and of the shared ledger: none is ever
/// used again for another.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Origin {
    /// It could not be told.
    #[default]
    Unknown = 0,
    /// The program itself: its main executable.
    Program = 1,
    /// `PyTorch`, its caching allocator first of all.
    PyTorch = 2,
    /// XLA, which `JAX` runs on.
    Xla = 3,
    /// `TensorFlow`.
    TensorFlow = 4,
    /// `CuPy`.
    CuPy = 5,
    /// Python code that calls the driver itself: Numba, cuda-python, ctypes.
    CudaPython = 6,
    /// Triton.
    Triton = 7,
    /// cuBLAS and cuBLASLt.
    CuBlas = 8,
    /// cuDNN.
    CuDnn = 9,
    /// cuFFT.
    CuFft = 10,
    /// cuSPARSE.
    CuSparse = 11,
    /// cuSOLVER.
    CuSolver = 12,
    /// cuRAND.
    CuRand = 13,
    /// NCCL.
    Nccl = 14,
    /// A library that none of the others is.
    Other = 15,
}

impl Origin {
    /// All of them, by their numbers.
    pub const ALL: [Self; 16] = [
        Self::Unknown,
        Self::Program,
        Self::PyTorch,
        Self::Xla,
        Self::TensorFlow,
        Self::CuPy,
        Self::CudaPython,
        Self::Triton,
        Self::CuBlas,
        Self::CuDnn,
        Self::CuFft,
        Self::CuSparse,
        Self::CuSolver,
        Self::CuRand,
        Self::Nccl,
        Self::Other,
    ];

    /// The origin of that number; what is none is [`Origin::Unknown`].
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        usize::try_from(number).ok().and_then(|number| Self::ALL.get(number)).copied().unwrap_or_default()
    }

    /// Its number, as an index.
    #[must_use]
    pub fn number(self) -> usize {
        self as usize
    }

    /// Its name, one word in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Program => "program",
            Self::PyTorch => "pytorch",
            Self::Xla => "xla",
            Self::TensorFlow => "tensorflow",
            Self::CuPy => "cupy",
            Self::CudaPython => "cuda_python",
            Self::Triton => "triton",
            Self::CuBlas => "cublas",
            Self::CuDnn => "cudnn",
            Self::CuFft => "cufft",
            Self::CuSparse => "cusparse",
            Self::CuSolver => "cusolver",
            Self::CuRand => "curand",
            Self::Nccl => "nccl",
            Self::Other => "other",
        }
    }

    /// Its name for people, as it writes itself.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Unknown => "unknown caller",
            Self::Program => "the program itself",
            Self::PyTorch => "PyTorch",
            Self::Xla => "XLA (JAX)",
            Self::TensorFlow => "TensorFlow",
            Self::CuPy => "CuPy",
            Self::CudaPython => "CUDA from Python (Numba, cuda-python, ctypes)",
            Self::Triton => "Triton",
            Self::CuBlas => "cuBLAS",
            Self::CuDnn => "cuDNN",
            Self::CuFft => "cuFFT",
            Self::CuSparse => "cuSPARSE",
            Self::CuSolver => "cuSOLVER",
            Self::CuRand => "cuRAND",
            Self::Nccl => "NCCL",
            Self::Other => "other library",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::ORIGINS;

    #[test]
    fn origins_have_the_numbers_that_they_say_and_names_of_their_own() {
        assert_eq!(Origin::ALL.len(), ORIGINS);
        for (number, origin) in (0_u64..).zip(Origin::ALL) {
            assert_eq!(Origin::from_number(number), origin);
            assert_eq!(origin.number() as u64, number);
        }
        assert_eq!(Origin::from_number(16), Origin::Unknown);
        let names: std::collections::BTreeSet<_> = Origin::ALL.iter().map(|origin| origin.name()).collect();
        assert_eq!(names.len(), ORIGINS);
    }
}
