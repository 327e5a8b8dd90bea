//! The arguments of `gpuheap completions`.

use clap::Args;

/// For which shell.
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}
