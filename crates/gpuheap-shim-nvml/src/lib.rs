//! The `libnvidia-ml.so.1` that stands between a program and the driver's management library (NVML).
//!
//! A program that fits itself to the card asks CUDA or NVML how large the card is. Within a budget both have to say the
//! same, or it takes the whole card for its own and runs into the budget. This library is found and finds the driver's
//! in the same way as `gpuheap-shim` does for `libcuda.so.1`: it has the driver's name in a folder that comes first in
//! `LD_LIBRARY_PATH`, and needs `libnvidia-ml-real.so`, a link beside it to the driver's own. So `dlsym` on its handle
//! gives the two functions of this crate, and all others of NVML as they are, those that nobody knows yet included.
//!
//! | module | what is there |
//! | --- | --- |
//! | `overrides` | the overridden functions |
//! | `raw` | NVML's types and codes |
//! | `real` | the library behind: its functions by pointers of our own |
//! | `budget` | what a program is told within a budget: arithmetic alone |
//! | `run` | what the run's ledger says of a device |
//! | `quiet` | panics, which end here and say nothing |
//!
//! # What programs are told
//!
//! With `GPUHEAP_LEDGER` unset, or with no budget in the ledger: what NVML says. Else, of a device:
//!
//! | field | value |
//! | --- | --- |
//! | `total` | the budget, at most what the device has |
//! | `free` | what is left of the budget, at most what is free on the device: as `cuMemGetInfo` of the shim says |
//! | `used` | `total` less `free`; in the second version of the structure less `reserved`, too |
//! | `reserved` | memory that the driver keeps for itself, as far as it is the reason why less is free than the run left |
//!
//! Everything else is NVML's own: BAR1 memory, what each process holds, utilisation, MIG profiles.
//!
//! A device is the same for NVML and for the ledger if its UUID is: CUDA's numbers begin at the first device that a
//! process may see, in the order that it asked for, and NVML's do not. As long as no process of the run has started CUDA
//! on a device, the run holds nothing there. Of a GPU that is cut into parts (MIG), each part is a device of its own; what
//! the run holds in parts is not seen in the figures of the whole.
//!
//! # Settings
//!
//! | variable | meaning |
//! | --- | --- |
//! | `GPUHEAP_LEDGER` | the file that all processes of a run share |
//! | `GPUHEAP_BUDGET` | bytes that the run may hold on each device, where the ledger is not there yet |
//!
//! They are read once. The ledger is opened, read and closed at each call, so there is nothing to be locked, to survive a
//! fork, or to be torn down at exit. `gpuheap_shim_nvml_version()` tells this library from a driver's.
//!
//! # Traps
//!
//! By the letters of the notes on standing between a program and libcuda: L1, L7, L8, L10, L12, L13 as in `gpuheap-shim`
//! (`build.rs`, and a library without state). R5, a library that lacks an overridden function: `real`. A1, A2, A3:
//! NVML is called with the caller's own arguments, and only what it filled in is changed. A9: `budget`. S3, a library that
//! calls its own exported functions: the figures within a budget, taken within it once more, are the same. S6, S7, S9,
//! S10, S11: nothing is kept, locked, printed or destroyed, and panics end in `quiet`. S12, S13: the ledger's readers
//! leave the dead out. Open: I7, another such library behind this one, is for whoever starts a run to see.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "C functions are exported, and the library behind is called")]

mod budget;
mod overrides;
mod quiet;
mod raw;
mod real;
mod run;

pub use overrides::NAMES;
