//! What can go wrong when the server starts, and why it refuses to answer.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::http::StatusCode;

/// Why the server cannot start, or refuses to answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is not to be had.
    #[error("Failed to listen on `{address}`")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// What is to be served cannot be looked at.
    #[error("Failed to look at `{name}`")]
    Look {
        /// The file or folder, as it was given.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The system gives no random numbers for a token.
    #[error("Failed to make a token: the system gives no random numbers")]
    Random,
    /// The system gives no threads or no way to wait.
    #[error("Failed to start the server")]
    Start(#[source] io::Error),
    /// The request is for another host.
    #[error("This server does not answer for the host that the request names")]
    Host,
    /// Another web page sent the request.
    #[error("Requests of other web pages are refused")]
    Origin,
    /// The request has no token.
    #[error("The token is missing or wrong")]
    Token,
    /// The request wants to change something.
    #[error("There are only questions here: GET and HEAD")]
    Method,
    /// The address is too long.
    #[error("The address of the request is too long")]
    TooLong,
    /// There is nothing at this address.
    #[error("There is nothing at this address")]
    NotFound,
    /// No recording has this number.
    #[error("There is no recording with this number")]
    NoRecording,
    /// The question cannot be read.
    #[error("The question is not complete: {0}")]
    Query(String),
    /// The recording has no such moment.
    #[error(transparent)]
    Ask(gpuheap_explain::Error),
    /// The recording is still read.
    #[error("The recording is being read")]
    Reading,
    /// The recording cannot be read or explained.
    #[error("{error}")]
    Unreadable {
        /// What and why.
        error: String,
        /// What can be done.
        hint: Option<String>,
    },
    /// The answer cannot be made.
    #[error("The answer cannot be made")]
    Internal,
}

impl Error {
    /// The status of the answer.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Host | Self::Origin | Self::Token => StatusCode::FORBIDDEN,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLong => StatusCode::URI_TOO_LONG,
            Self::NotFound | Self::NoRecording => StatusCode::NOT_FOUND,
            Self::Query(_) => StatusCode::BAD_REQUEST,
            Self::Ask(_) | Self::Unreadable { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Reading => StatusCode::SERVICE_UNAVAILABLE,
            Self::Listen { .. } | Self::Look { .. } | Self::Random | Self::Start(_) | Self::Internal => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }

    /// What the reader can do.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                "another program listens there: choose another port, or leave `--listen` out to get a free one"
            }
            Self::Listen { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "ports below 1024 are for the system: choose a higher one"
            }
            Self::Host => "use the address that `gpuheap serve` printed",
            Self::Origin => "open the address that `gpuheap serve` printed in a tab of its own",
            Self::Token => "use the whole address that `gpuheap serve` printed, with its token",
            Self::NoRecording => "it may have been removed from the folder: see /recordings",
            Self::Reading => "ask again in a second",
            Self::Unreadable { hint, .. } => return hint.clone(),
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// When to ask again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        matches!(self, Self::Reading).then_some(Duration::from_secs(1))
    }
}
