//! A [`Report`](gpuheap_explain::Report) in the forms in which people and programs read it: text for a terminal,
//! Markdown for issues and pull requests, JSON.
//!
//! Renderers show what the report says and find nothing out. Names in a report come from files that nobody vouches
//! for: every form makes control characters harmless, see [`sanitize`].
#![forbid(unsafe_code)]

mod error;
mod json;
mod markdown;
mod sentences;
mod terminal;
mod text;

pub use error::Error;
pub use json::to_json;
pub use markdown::to_markdown;
pub use terminal::{MIN_WIDTH, Style, render};
pub use text::sanitize;

/// The JSON Schema (draft 2020-12) of what [`to_json`] writes.
pub const JSON_SCHEMA: &str = include_str!("../schema/report.schema.json");
