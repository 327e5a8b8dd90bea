//! Tests of whole reports.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod check;
mod diff;
mod fit;
mod json;
mod markdown;
mod random;
mod samples;
mod terminal;
mod whatif;
