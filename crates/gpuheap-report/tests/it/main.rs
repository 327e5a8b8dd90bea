//! Tests of whole reports.

mod check;
mod diff;
mod json;
mod markdown;
mod random;
mod samples;
mod terminal;
mod whatif;
