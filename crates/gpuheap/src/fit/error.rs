//! What can go wrong between this command and Python.

use std::io;
use std::path::PathBuf;

/// Why a model could not be traced, or a plan not verified.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChildError {
    /// There is no Python.
    #[error("No Python was found")]
    NoPython,
    /// Python cannot be started.
    #[error("Failed to start `{}`", path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A folder for traces cannot be made.
    #[error("Failed to make a folder for the trace")]
    Folder(#[source] io::Error),
    /// The child failed, and said why.
    #[error("{what}{}", if message.is_empty() { String::new() } else { format!(": {message}") })]
    Failed {
        /// What was tried.
        what: String,
        /// The first line that it said.
        message: String,
        /// What else it said.
        #[source]
        more: Option<Said>,
        /// How to go on, if it said so.
        hint: Option<String>,
    },
    /// The child took too long, and was ended.
    #[error("{what}: it took more than {seconds} s{}", doing.as_ref().map_or_else(String::new, |doing| format!(" ({doing})")))]
    Late {
        /// What was tried.
        what: String,
        /// The limit.
        seconds: u64,
        /// What it was doing.
        doing: Option<String>,
    },
    /// Python runs, but has no gpuheap.
    #[error("`{}` has no gpuheap", path.display())]
    NoPackage {
        /// The program.
        path: PathBuf,
    },
    /// Its answer is not what was agreed upon.
    #[error("The verification gave no answer")]
    NoAnswer(#[source] serde_json::Error),
}

/// What a child said.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Said(pub(crate) String);

impl ChildError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::NoPython | Self::Start { .. } => {
                Some("name the Python that has PyTorch and the model's packages with `--python`".to_owned())
            }
            Self::NoPackage { path } => Some(format!(
                "`{} -m pip install gpuheap` installs it there; or name another Python with `--python`",
                path.display()
            )),
            Self::Late { .. } => Some(
                "a loop that ends by the value of a tensor never ends here: a trace has shapes and no data; or give it \
                 longer with `--timeout`"
                    .to_owned(),
            ),
            Self::Failed { hint, .. } => hint.clone(),
            _ => None,
        }
    }
}
