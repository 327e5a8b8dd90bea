//! Tests of whole reports.

mod json;
mod markdown;
mod random;
mod samples;
mod terminal;
