//! Why a program cannot be run, or a run cannot be asked.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use gpuheap_record::Bytes;

/// As shells have it: there is no such program.
const NOT_FOUND: u8 = 127;
/// As shells have it: it is there and cannot be run.
const NOT_RUN: u8 = 126;
/// A process did not do what it was asked for.
const REFUSED: u8 = 1;

/// Why a program cannot be run, or a run cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The shim did not come with the command.
    #[error("Failed to find `libgpuheap_shim.so`, which stands between a program and the driver")]
    NoShim {
        /// Where it would be.
        searched: Vec<PathBuf>,
    },
    /// `GPUHEAP_SHIM` names something else.
    #[error("`{}`, which `GPUHEAP_SHIM` names, is not gpuheap's library", path.display())]
    NotShim {
        /// The file.
        path: PathBuf,
    },
    /// There is no driver.
    #[error("Failed to find the CUDA driver `libcuda.so.1`{}", listed(refused))]
    NoDriver {
        /// Folders that were searched.
        searched: Vec<PathBuf>,
        /// Files that are not it, and why.
        refused: Vec<(PathBuf, String)>,
    },
    /// A program would not get the shim.
    #[error("Failed to stand between programs and the CUDA driver: a program gets `{}` by its name", got.display())]
    NotAttached {
        /// What a program gets.
        got: PathBuf,
    },
    /// The shim is of another version than the command, or than the outer run.
    #[error("The library between programs and the driver is of another version of gpuheap")]
    OtherVersion,
    /// The attempt to load the driver cannot be made.
    #[error("Failed to try how a program gets the driver")]
    Probe(#[source] io::Error),
    /// No place has room for what processes share.
    #[error("Failed to make a folder for what the processes of the run share{}", listed(tried))]
    NoPlace {
        /// Where it was tried, and why it did not work.
        tried: Vec<(PathBuf, String)>,
    },
    /// The driver cannot be put behind the shim.
    #[error("Failed to write `{}`", path.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A run inside a run wants less than that one has.
    #[error("This is part of a run {}: a part of a run cannot have a budget of {budget}", outer_budget(*outer))]
    InnerBudget {
        /// What was wanted.
        budget: Bytes,
        /// What the outer run has; nothing is no budget.
        outer: Option<Bytes>,
    },
    /// A run inside a run wants what is the outer one's to say.
    #[error("This is part of a run: `{option}` is for the whole run")]
    InnerOption {
        /// What was wanted.
        option: &'static str,
    },
    /// There is no folder for the recording.
    #[error("Failed to find the folder of `{}`, where the recording is to be written", path.display())]
    NoFolder {
        /// The recording.
        path: PathBuf,
    },
    /// Two options that say the opposite.
    #[error("`--spill` moves memory to the host, and `--no-move` leaves it where it is")]
    SpillAndNoMove,
    /// What looks like an option stands where the program should be.
    #[error("There is no option `{}`", option.to_string_lossy())]
    NoOption {
        /// As it was given.
        option: OsString,
    },
    /// The recording cannot be written there.
    #[error("Failed to write the recording `{}`: it is a folder", path.display())]
    RecordFolder {
        /// Where it was to be.
        path: PathBuf,
    },
    /// Nothing can be written where the recording is to be.
    #[error("Failed to write the recording `{}`", path.display())]
    NotRecorded {
        /// The recording.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no such program.
    #[error("Failed to find the program `{}`", program.to_string_lossy())]
    NoProgram {
        /// As it was given.
        program: OsString,
    },
    /// The program cannot be run.
    #[error("Failed to run `{}`", program.display())]
    NotRun {
        /// The file.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Signals cannot be passed on.
    #[error("Failed to set up what passes signals on to the program")]
    Signals(#[source] io::Error),
    /// The program cannot be waited for.
    #[error("Failed to wait for the program")]
    Wait(#[source] io::Error),
    /// There is no process of that number.
    #[error("There is no process {process}")]
    NoProcess {
        /// Its number.
        process: u32,
    },
    /// The process belongs to somebody else.
    #[error("Process {process} belongs to user {user}")]
    OtherUser {
        /// Its number.
        process: u32,
        /// The user, by number.
        user: u32,
    },
    /// The process is of no run.
    #[error("Process {process} was not started by `gpuheap run`")]
    NoRun {
        /// Its number.
        process: u32,
    },
    /// The process holds nothing that could move.
    #[error("Process {process} has not used CUDA yet: it holds nothing on a device")]
    NoCuda {
        /// Its number.
        process: u32,
    },
    /// The number is that of a run with several processes.
    #[error("Process {process} is a run of {} processes", processes.len())]
    Several {
        /// The number.
        process: u32,
        /// The run's processes.
        processes: Vec<String>,
    },
    /// The process was started such that nothing moves.
    #[error("Process {process} was started with `--no-move`: its memory stays where it is")]
    NoMove {
        /// Its number.
        process: u32,
    },
    /// The process is stopped and cannot answer.
    #[error("Process {process} is stopped and cannot answer")]
    Stopped {
        /// Its number.
        process: u32,
    },
    /// The process cannot be reached.
    #[error("Failed to reach process {process} by `{}`", socket.display())]
    Reach {
        /// Its number.
        process: u32,
        /// Its socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The process went away, or says what nobody understands.
    #[error("Process {process} gave no answer")]
    Answer {
        /// Its number.
        process: u32,
        /// Why.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The process did not do it.
    #[error("Process {process} refused: {why}")]
    Refused {
        /// Its number.
        process: u32,
        /// In its own words.
        why: String,
    },
}

impl Error {
    /// The exit code, if it is another than for bad use.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        match self {
            Self::NoProgram { .. } => Some(NOT_FOUND),
            Self::NotRun { .. } => Some(NOT_RUN),
            Self::Refused { .. } => Some(REFUSED),
            _ => None,
        }
    }

    /// What the user can do.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::NoShim { searched } => {
                let places: Vec<String> = searched.iter().map(|path| format!("\n  {}", path.display())).collect();
                Some(format!("install gpuheap again, or name the file in `GPUHEAP_SHIM`; searched:{}", places.concat()))
            }
            Self::NotShim { .. } => Some("unset it to take the one that came with this command".to_owned()),
            Self::NoDriver { searched, .. } => {
                let folders: Vec<String> = searched.iter().map(|folder| format!("\n  {}", folder.display())).collect();
                let folders =
                    if folders.is_empty() { String::new() } else { format!(". Searched:{}", folders.concat()) };
                Some(format!(
                    "NVIDIA's driver brings it; in a container, start that with `--gpus all`. If it is elsewhere, add its \
                     folder to `LD_LIBRARY_PATH`{folders}"
                ))
            }
            Self::OtherVersion => Some(
                "install gpuheap again; `GPUHEAP_SHIM`, if it is set, must name the library that came with it"
                    .to_owned(),
            ),
            Self::NotAttached { .. } => {
                Some("is a driver in `LD_PRELOAD`, or in the loader's own settings (`/etc/ld.so.preload`)?".to_owned())
            }
            Self::NoPlace { .. } => {
                Some("set `TMPDIR` or `XDG_RUNTIME_DIR` to a folder of yours with room for some megabytes".to_owned())
            }
            Self::InnerBudget { .. } => Some("leave `--budget` out: what is run counts in the outer run's".to_owned()),
            Self::InnerOption { option } => {
                Some(format!("leave `{option}` out here, and give it to the outer `gpuheap run`"))
            }
            Self::NoOption { .. } => Some(
                "`gpuheap run --help` lists the options; for a program whose name begins so, write `./` before it"
                    .to_owned(),
            ),
            Self::RecordFolder { .. } => Some("give the name of a file".to_owned()),
            Self::NotRecorded { .. } => Some("name a file in a folder that you may write to".to_owned()),
            Self::SpillAndNoMove => Some("leave one of them out".to_owned()),
            Self::OtherUser { .. } => Some("only that user can ask it".to_owned()),
            Self::NoRun { .. } => Some("`gpuheap ps` lists the processes that can be asked".to_owned()),
            Self::Several { processes, .. } => Some(format!("choose one:\n  {}", processes.join("\n  "))),
            Self::Stopped { process } => Some(format!("`kill -CONT {process}` lets it go on")),
            Self::Reach { .. } => Some("it may have just ended: `gpuheap ps` lists what is there".to_owned()),
            _ => None,
        }
    }
}

fn outer_budget(budget: Option<Bytes>) -> String {
    budget.map_or_else(|| "without a budget".to_owned(), |budget| format!("with a budget of {budget}"))
}

/// Files or folders, each with what is wrong with it.
fn listed(found: &[(PathBuf, String)]) -> String {
    let line = |(path, why): &(PathBuf, String)| format!("\n  `{}`: {why}", Path::display(path));
    found.iter().map(line).collect()
}
