//! What `gpuheap run` and the commands around it need.
//!
//! | module | what is there |
//! | --- | --- |
//! | `bases`, `folder` | where runs have their folders; the folder of a run: made, found again, swept |
//! | `shim`, `driver`, `cache`, `elf` | the library that stands before the driver; the driver; where the loader looks; what a file is |
//! | `probe` | whether a program gets the shim and a driver behind it, tried in a process of its own |
//! | `environment` | the variables that a program of a run gets |
//! | `program`, `signals` | the program: found, started, signals passed on, waited for |
//! | `spill` | how much host memory `auto` is |
//! | `watch` | refused requests and the summary, in words |
//! | `passing` | processes of a run that use the driver without the shim |
//! | `recording` | what happened to the driver's memory, as a recording |
//! | `processes` | what the system says of a process |
//! | `ask` | a process asked over its socket |

pub(crate) mod ask;
mod bases;
mod cache;
pub(crate) mod driver;
mod elf;
pub(crate) mod environment;
mod error;
pub(crate) mod folder;
pub(crate) mod passing;
pub(crate) mod probe;
pub(crate) mod processes;
pub(crate) mod program;
pub(crate) mod recording;
pub(crate) mod shim;
mod signals;
pub(crate) mod spill;
pub(crate) mod watch;

pub(crate) use error::Error;
