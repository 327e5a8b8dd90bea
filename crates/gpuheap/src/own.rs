//! How this command is called, and what came with it.

use std::ffi::OsString;
use std::path::PathBuf;

/// How the command can be called again, and where its files are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Own {
    /// The program and the arguments that come before the command's own.
    pub command: Vec<OsString>,
    /// The folder with the libraries that came with it.
    pub folder: Option<PathBuf>,
}

impl Own {
    /// This program: it is called by its path, and its libraries lie beside it.
    #[must_use]
    pub fn program() -> Self {
        let program = std::env::current_exe().ok();
        let folder = program.as_deref().and_then(|program| program.parent()).map(PathBuf::from);
        Self { command: program.into_iter().map(PathBuf::into_os_string).collect(), folder }
    }
}
