//! Reports in the forms in which people and programs read them: text for a terminal, Markdown for issues and pull
//! requests, JSON.
//!
//! Renderers show what the report says and find nothing out. Names in a report come from files that nobody vouches
//! for: every form makes control characters harmless, see [`sanitize`].
#![forbid(unsafe_code)]

pub mod check;
mod document;
mod error;
pub mod html;
mod json;
mod markdown;
mod picture;
pub mod sentences;
mod terminal;
pub mod text;

pub use check::{CheckReport, CheckedRecording};
pub use document::{Document, render, to_markdown};
pub use error::Error;
pub use html::fit::{Changes, fit_to_html};
pub use html::to_html;
pub use json::to_json;
pub use picture::front_to_svg;
pub use terminal::{MIN_WIDTH, Style};
pub use text::sanitize;

/// The JSON Schema (draft 2020-12) of a [`Report`](gpuheap_explain::Report) as JSON.
pub const JSON_SCHEMA: &str = include_str!("../schema/report.schema.json");

/// The JSON Schema (draft 2020-12) of a [`CheckReport`] as JSON.
pub const CHECK_JSON_SCHEMA: &str = include_str!("../schema/check.schema.json");

/// The JSON Schema (draft 2020-12) of a [`Diff`](gpuheap_explain::Diff) as JSON.
pub const DIFF_JSON_SCHEMA: &str = include_str!("../schema/diff.schema.json");

/// The JSON Schema (draft 2020-12) of a [`WhatIfReport`](gpuheap_explain::WhatIfReport) as JSON.
pub const WHATIF_JSON_SCHEMA: &str = include_str!("../schema/whatif.schema.json");
