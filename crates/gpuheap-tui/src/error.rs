//! What can go wrong while the screen is held.

use std::io;

/// Why the screen cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The terminal does not do as it is told.
    #[error("Failed to use the terminal")]
    Terminal(#[source] io::Error),
}
