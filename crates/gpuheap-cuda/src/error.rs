//! What can go wrong, in words for people.

use std::path::PathBuf;

use crate::raw::Code;

/// An error of the driver, or of getting at one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The library cannot be opened.
    #[error("Failed to open the CUDA driver `{}`: {reason}", path.display())]
    Open {
        /// What was to be opened.
        path: PathBuf,
        /// What the loader said.
        reason: String,
    },
    /// The library opened, but is the toolkit's stand-in for linking and no driver.
    #[error("Failed to use the CUDA driver `{}`: it is a stub, made only to link programs with", path.display())]
    Stub {
        /// What was opened.
        path: PathBuf,
    },
    /// The library opened and is too old, or no CUDA driver at all.
    #[error("Failed to use the CUDA driver `{}`: it has no function `{function}`", path.display())]
    Function {
        /// What was opened.
        path: PathBuf,
        /// The first function that is missing.
        function: &'static str,
    },
    /// The driver is older than what this crate needs.
    #[error("Failed to use the CUDA driver `{}`: it is for CUDA {}, and CUDA {} is needed", path.display(), version(*found), version(*needed))]
    Old {
        /// What was opened.
        path: PathBuf,
        /// The driver's version, as 12080 for 12.8.
        found: u32,
        /// The version that is needed, likewise.
        needed: u32,
    },
    /// The driver lacks a function that came later than what this crate needs in any case.
    #[error("Failed to call `{function}`: this CUDA driver has no such function")]
    Lacks {
        /// The function.
        function: &'static str,
    },
    /// A call of the driver failed.
    #[error("Failed to call `{call}`: {code}")]
    Call {
        /// The function that was called.
        call: &'static str,
        /// What it returned.
        code: Code,
    },
    /// A range does not lie within the memory that it is meant for, or a size is not what the driver takes.
    #[error("Failed to use {length} bytes at byte {offset}: the memory has {size} bytes")]
    Range {
        /// The first byte.
        offset: usize,
        /// How many bytes.
        length: usize,
        /// How many there are.
        size: usize,
    },
    /// Text for the driver that has a zero byte inside.
    #[error("Failed to pass a name to the CUDA driver: it has a zero byte inside")]
    Text,
}

impl Error {
    /// The driver's own code, if it was the driver that failed.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Call { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// What the reader can do about it, if there is something.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Open { .. } => Some(
                "a machine with an NVIDIA GPU has it once its driver is installed; in a container, it comes with `--gpus all`",
            ),
            Self::Stub { .. } => Some("take the toolkit's `stubs` folder out of `LD_LIBRARY_PATH`"),
            Self::Function { .. } | Self::Old { .. } | Self::Lacks { .. } => Some("install a newer NVIDIA driver"),
            Self::Call { code, .. } => match *code {
                Code::NO_DEVICE => Some("`CUDA_VISIBLE_DEVICES` may hide every device"),
                Code::OUT_OF_MEMORY => Some("`nvidia-smi` shows who holds memory of this device"),
                Code::SYSTEM_NOT_READY => Some("the fabric manager of this machine may not be running"),
                _ => None,
            },
            Self::Range { .. } | Self::Text => None,
        }
    }
}

fn version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file_the_versions_and_the_driver_s_own_name() {
        let old = Error::Old { path: "/usr/lib/libcuda.so.1".into(), found: 11_040, needed: 12_000 };
        let text =
            "Failed to use the CUDA driver `/usr/lib/libcuda.so.1`: it is for CUDA 11.4, and CUDA 12.0 is needed";
        assert_eq!(old.to_string(), text);
        assert_eq!(old.hint(), Some("install a newer NVIDIA driver"));
        let call = Error::Call { call: "cuMemCreate", code: Code::OUT_OF_MEMORY };
        assert_eq!(call.to_string(), "Failed to call `cuMemCreate`: CUDA_ERROR_OUT_OF_MEMORY (2)");
        let unknown = Error::Call { call: "cuInit", code: Code(4711) };
        assert_eq!(unknown.to_string(), "Failed to call `cuInit`: CUDA error 4711");
    }
}
