//! What can go wrong, how it is shown, and the exit code that it gives.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstyle::AnsiColor;
use gpuheap_report::sanitize;

use crate::cli::Color;
use crate::{files, output};

/// Bad input or use.
const BAD_INPUT: u8 = 2;
/// Recordings in a folder that an error names.
const NAMED: usize = 10;

/// Why the command could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The recording cannot be read.
    #[error(transparent)]
    Import(gpuheap_import::Error),
    /// The recording cannot be explained as asked.
    #[error(transparent)]
    Explain(gpuheap_explain::Error),
    /// The report cannot be rendered.
    #[error(transparent)]
    Report(gpuheap_report::Error),
    /// The server cannot start.
    #[error(transparent)]
    Serve(gpuheap_serve::Error),
    /// Standard input was to be served.
    #[error("Standard input cannot be served: it can be read only once")]
    ServeStandardInput,
    /// The recording cannot be exported as asked.
    #[error(transparent)]
    Export(gpuheap_export::Error),
    /// A terminal cannot show what is to be written.
    #[error("The format `{format}` is not text: a terminal cannot show it")]
    Terminal {
        /// The format.
        format: &'static str,
    },
    /// A folder cannot be listed.
    #[error("Failed to list folder `{}`", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A folder has no recording.
    #[error("No recording in folder `{}`", path.display())]
    NoRecording {
        /// The folder.
        path: PathBuf,
    },
    /// A folder has several recordings.
    #[error("{} recordings in folder `{}`", found.len(), path.display())]
    ManyRecordings {
        /// The folder.
        path: PathBuf,
        /// Its recordings by name.
        found: Vec<PathBuf>,
    },
    /// A folder to check has several recordings.
    #[error("{count} recordings in folder `{}`", path.display())]
    ManyToCheck {
        /// The folder.
        path: PathBuf,
        /// How many.
        count: usize,
    },
    /// A budget file cannot be used.
    #[error("Failed to read budget file `{}`", path.display())]
    Budget {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A budget that everything keeps to.
    #[error("{}", nothing_to_check(file.as_deref()))]
    EmptyBudget {
        /// The budget file, if one was given.
        file: Option<PathBuf>,
    },
    /// A file cannot be written.
    #[error("Failed to write `{}`", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file stands where a subcommand belongs.
    #[error("`{}` is a file and no command", path.display())]
    NoCommand {
        /// The file.
        path: PathBuf,
    },
    /// There is no terminal to show a screen on.
    #[error("Standard {stream} is not a terminal")]
    NoTerminal {
        /// `input` or `output`.
        stream: &'static str,
    },
    /// The recording and the keys cannot both come from standard input.
    #[error("Keys cannot be read while the recording comes from standard input")]
    NoKeys,
    /// The screen cannot be shown.
    #[error(transparent)]
    Tui(gpuheap_tui::Error),
    /// A program cannot be run, or a run cannot be asked.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Run(crate::run::Error),
    /// A model cannot be fitted.
    #[error(transparent)]
    Fit(#[from] gpuheap_fit::Error),
    /// A model cannot be traced, or a plan not verified.
    #[error(transparent)]
    Child(crate::fit::error::ChildError),
    /// Standard output cannot be written.
    #[error("Failed to write to standard output")]
    Print(#[source] io::Error),
}

impl Error {
    fn exit_code(&self) -> u8 {
        match self {
            #[cfg(target_os = "linux")]
            Self::Run(error) => error.exit_code().unwrap_or(BAD_INPUT),
            _ => BAD_INPUT,
        }
    }

    /// What the user can do.
    fn hint(&self) -> Option<String> {
        match self {
            Self::Import(error) => error.hint().or_else(|| missing(error)),
            Self::Serve(error) => error.hint(),
            Self::Fit(error) => error.hint(),
            Self::Child(error) => error.hint(),
            Self::ServeStandardInput => Some("save it to a file, or show it with `gpuheap open -`".to_owned()),
            Self::Explain(gpuheap_explain::Error::Nothing) => {
                Some("the program allocated nothing on a GPU before the snapshot was taken".to_owned())
            }
            Self::Explain(gpuheap_explain::Error::NoSuchDevice { .. }) => {
                Some("leave `--device` out to take the fullest".to_owned())
            }
            Self::Explain(gpuheap_explain::Error::NoSuchMoment { .. }) => {
                Some("leave `--at` out to explain the peak".to_owned())
            }
            Self::Explain(gpuheap_explain::Error::OfDriver) => Some(
                "`gpuheap.record` in the program records PyTorch's allocator, which has settings".to_owned(),
            ),
            Self::Explain(gpuheap_explain::Error::BadConf { .. }) => Some(
                "`--conf` takes what `PYTORCH_CUDA_ALLOC_CONF` takes, such as `--conf expandable_segments:True`; \
                 `--conf \"\"` is stock PyTorch"
                    .to_owned(),
            ),
            Self::Export(gpuheap_export::Error::EveryMoment { .. }) => {
                Some("leave `--at` out; the named moments are marked in it".to_owned())
            }
            Self::Terminal { .. } => Some("name a file with `--output`, or send it on with `|` or `>`".to_owned()),
            Self::NoRecording { .. } => Some(
                "`torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")` writes one; folders in the folder are not searched"
                    .to_owned(),
            ),
            Self::EmptyBudget { .. } => Some(
                "give at least one of `--max-peak`, `--max-reserved`, `--max-waste` and `--no-leaks`, or a file that \
                 does so with `--budget-file`"
                    .to_owned(),
            ),
            #[cfg(target_os = "linux")]
            Self::Run(error) => error.hint(),
            Self::NoCommand { path } => Some(format!("`gpuheap explain {}` explains it", quoted(path))),
            Self::NoTerminal { .. } => Some("`gpuheap explain` shows the same as text".to_owned()),
            Self::NoKeys => Some("save the recording in a file first".to_owned()),
            Self::ManyRecordings { found, .. } => Some(choice("choose one:", found)),
            Self::ManyToCheck { path, .. } => Some(format!("`gpuheap check {}` checks all of them", every(path))),
            _ => None,
        }
    }
}

fn nothing_to_check(file: Option<&Path>) -> String {
    match file {
        Some(path) => format!("The budget in `{}` checks nothing", path.display()),
        None => "The budget checks nothing".to_owned(),
    }
}

/// Where a file that is not there may be instead.
fn missing(error: &gpuheap_import::Error) -> Option<String> {
    match error {
        gpuheap_import::Error::Open { source, .. } if source.kind() == io::ErrorKind::NotFound => {}
        _ => return None,
    }
    let folder = error.path().parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Some(format!("there is no folder `{}`", folder.display()));
    }
    let mut found = files::recordings(folder).unwrap_or_default();
    found.retain(|other| files::is_similar(error.path(), other));
    if found.is_empty() {
        let hint = "paths start from this folder; PyTorch wrote the file in the folder of the program that ran";
        return Some(hint.to_owned());
    }
    Some(choice("did you mean:", &found))
}

fn choice(start: &str, found: &[PathBuf]) -> String {
    let mut text = start.to_owned();
    for path in found.iter().take(NAMED) {
        let _ = write!(text, "\n  {}", quoted(path.strip_prefix(".").unwrap_or(path)));
    }
    if found.len() > NAMED {
        let _ = write!(text, "\n  … and {} more", found.len() - NAMED);
    }
    text
}

/// All files of a folder, as a shell names them.
fn every(folder: &Path) -> String {
    let folder = quoted(folder);
    format!("{}/*", folder.trim_end_matches('/'))
}

/// A path that can be pasted into a shell.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text.chars().all(|c| c.is_alphanumeric() || "/._-+=:,@%\\".contains(c)) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Shows an error, its causes and its hint on standard error, and says how the process is to end.
pub(crate) fn report(error: &Error, color: Color) -> ExitCode {
    let text = message(error, output::colored(&io::stderr(), color));
    // There is nowhere to say that this failed.
    let _ = anstream::AutoStream::new(io::stderr().lock(), anstream::ColorChoice::Always).write_all(text.as_bytes());
    ExitCode::from(error.exit_code())
}

fn message(error: &Error, colored: bool) -> String {
    let paint = |color: AnsiColor, text: &str| {
        let style = color.on_default().bold();
        if colored { format!("{style}{text}{style:#}") } else { text.to_owned() }
    };
    let mut text = format!("{}: {}\n", paint(AnsiColor::Red, "error"), lines(&error.to_string()));
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = writeln!(text, "  cause: {}", lines(&error.to_string()));
        cause = error.source();
    }
    if let Some(hint) = error.hint() {
        let _ = writeln!(text, "\n{}: {}", paint(AnsiColor::Cyan, "hint"), lines(&hint));
    }
    text
}

/// The text with its line ends, everything else harmless.
fn lines(text: &str) -> String {
    text.lines().map(sanitize).collect::<Vec<_>>().join("\n")
}

/// Shows what the argument parser has to say: help and version are answers, the rest is wrong use.
pub(crate) fn usage(answer: &clap::Error) -> ExitCode {
    let _ = answer.print();
    ExitCode::from(if answer.use_stderr() { BAD_INPUT } else { 0 })
}
