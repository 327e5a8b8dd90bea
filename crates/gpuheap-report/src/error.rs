//! What can go wrong when a report is rendered.

/// Why a report cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The report has a value that JSON has no form for.
    #[error("Failed to write the report as JSON")]
    Json(#[source] serde_json::Error),
}
